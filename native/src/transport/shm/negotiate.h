// How two ranks that are connected find out whether they can share memory, and set it up.
//
//   both -> other   offer    host identity, where the sender's segment is, a secret token in it
//   both -> other   verdict  whether this end could map the other's segment
//
// Memory is shared when both could. A segment holds its rank's bell and one ring for each rank
// of the view, in which that rank sends to it; pages of rings that nobody uses take no memory.
// Threads: none; blocks until the deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kf/host.h"
#include "transport/shm/link.h"

namespace kf {

struct OwnSegment {
  Segment segment;
  Bell* bell = nullptr;
};

struct Negotiated {
  std::unique_ptr<OwnSegment> own;  // null when no peer shares memory
  std::vector<LinkParts> links;     // with the sockets of those peers
  std::string warning;
};

// Takes the sockets of peers that share memory out of `sockets`. Throws Error{peer_lost},
// Error{deadline}, Error{transport} when a connection breaks or is silent meanwhile.
Negotiated negotiate(std::vector<Fd>& sockets, const TcpOptions& options,
                     const HostOptions& host);

}  // namespace kf
