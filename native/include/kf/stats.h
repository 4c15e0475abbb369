// What one session has sent and received so far, counted where it happens.
//
// Threads: a value; Session::stats() returns a consistent copy.
#pragma once

#include <cstdint>
#include <vector>

namespace kf {

struct PeerStats {
  std::int64_t messages_sent = 0;  // data messages handed to the transport
  std::int64_t bytes_sent = 0;     // payload bytes of those messages, without headers
  std::int64_t messages_received = 0;
  std::int64_t bytes_received = 0;
};

struct SessionStats {
  std::int64_t operations = 0;        // operations completed
  std::int64_t control_messages = 0;  // announcements sent (start frames)
  std::vector<PeerStats> peers;       // one for each rank; this rank's own stays zero
};

}  // namespace kf
