#include "blocking.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kf/error.h"

namespace nb = nanobind;

namespace kf::bindings {

Clock::time_point deadline_after(double timeout_s) {
  // beyond a century the sum would overflow the clock
  const double bounded = std::isfinite(timeout_s) ? std::min(timeout_s, 3.0e9) : 3.0e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::max(bounded, 0.0)));
}

bool SignalCheck::operator()() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  raised_.emplace();  // fetches the pending exception
  return true;
}

void SignalCheck::rethrow() {
  if (!raised_) return;
  const nb::gil_scoped_acquire gil;
  nb::python_error error = std::move(*raised_);
  raised_.reset();
  throw error;
}

void run_blocking(Session& session, Collective collective, const std::vector<Piece>& pieces,
                  int root, const std::string& name, double timeout_s,
                  std::shared_ptr<NormSums> norms) {
  SignalCheck signals;
  try {
    session.run(
        collective, pieces, root, name, deadline_after(timeout_s), [&] { return signals(); },
        std::move(norms));
  } catch (const Error&) {
    signals.rethrow();
    throw;
  }
}

void wait_blocking(Session& session, const Session::Handle& handle, double timeout_s) {
  SignalCheck signals;
  try {
    session.wait(handle, deadline_after(timeout_s), [&] { return signals(); });
  } catch (const Error&) {
    signals.rethrow();
    throw;
  }
}

}  // namespace kf::bindings
