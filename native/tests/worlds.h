// Worlds of threads for tests: every rank a session, over any transport; the first error wins.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kf/session.h"
#include "kf/shared_memory.h"

namespace kf::testing {

using RankFn = std::function<void(Session&)>;

struct WorldOptions {
  // or "tcp", "shm", or "mixed": even and odd ranks share memory among themselves only
  std::string transport = "inproc";
  bool attach = true;  // ranks may read each other's private memory
  std::shared_ptr<const SharedMemory> registered;
  std::string host = "127.0.0.1";
  SessionOptions session;
  bool close = true;  // close sessions when `fn` returns
};

View view_of(int world_size, std::int64_t version = 1);
// Runs `fn` on one thread a rank and rethrows the first error that is not a consequence.
void run_world(int world_size, const WorldOptions& options, const RankFn& fn);
Clock::time_point soon(double seconds = 10);

}  // namespace kf::testing
