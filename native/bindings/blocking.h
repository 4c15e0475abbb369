// Running an operation while Python's lock is released.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "kf/session.h"

namespace kf::bindings {

// The clock's time after `timeout_s` seconds, at most a century.
Clock::time_point deadline_after(double timeout_s);

// Lets Ctrl-C and other Python signal handlers run while a call blocks, and carries the
// exception one of them raised across the core.
class SignalCheck {
 public:
  bool operator()();
  void rethrow();

 private:
  std::optional<nanobind::python_error> raised_;
};

// Call it without the lock. Throws what the session throws, and what a signal handler raised.
void run_blocking(Session& session, Collective collective, const std::vector<Piece>& pieces,
                  int root, const std::string& name, double timeout_s,
                  std::shared_ptr<NormSums> norms = nullptr);
void wait_blocking(Session& session, const Session::Handle& handle, double timeout_s);

}  // namespace kf::bindings
