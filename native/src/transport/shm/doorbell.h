// How a rank sleeps until a peer of the same host has something for it, and is woken.
//
// Terms: bell: one word a rank, in memory that all its peers have mapped.
// Threads: one sleeper at a time; any thread and process may ring.
//
// A sleeper arms the bell, looks once more whether there is something to do, and only then
// sleeps. Whoever gives it something to do looks at the bell afterwards. So one of the two
// always sees the other, and a rank that is awake costs its peers no system call.
#pragma once

#include <atomic>
#include <cstdint>

#include "kf/transport.h"

namespace kf {

struct Bell {
  std::atomic<std::uint32_t> state;
};

enum class Sleep : std::uint32_t {
  awake = 0,
  on_bell = 1,     // in a futex on the bell itself
  on_sockets = 2,  // in poll(): wake it with a byte on the socket
};

void arm(Bell& bell, Sleep how) noexcept;
void disarm(Bell& bell) noexcept;
void sleep_on(Bell& bell,
              Clock::time_point until) noexcept;  // armed with on_bell; may wake early
// Wakes a sleeper on the bell. True: the sleeper is in poll() and the caller must write to its
// socket.
bool ring(Bell& bell) noexcept;

}  // namespace kf
