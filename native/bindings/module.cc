// The private module kfcore._native: a list of calls, nothing else.
#include "bindings.h"

NB_MODULE(_native, m) {
  // Threads that still wait when the program ends keep what they hold; that is no leak to
  // report.
  nanobind::set_leak_warnings(false);
  m.doc() = "C++ core of KungFu Lab. Private: use kfcore.";
  kf::bindings::bind_errors(m);
  kf::bindings::bind_schedule(m);
  kf::bindings::bind_replay(m);
  kf::bindings::bind_memory(m);
  kf::bindings::bind_session(m);
  kf::bindings::bind_calls(m);
  kf::bindings::bind_caller(m);
  kf::bindings::bind_adapt(m);
  kf::bindings::bind_simd(m);
  kf::bindings::bind_membership(m);
}
