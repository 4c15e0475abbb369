// The one exception type of the core, and the codes a caller can react to.
//
// Terms: code: what kind of reaction is asked of the caller (docs/errors.md).
// Threads: values; safe everywhere.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace kf {

enum class ErrorCode {
  usage,       // the caller's mistake; the same call fails again
  mismatch,    // ranks disagree about an operation; raised on every rank with both sides
  conflict,    // ranks proposed different changes; nothing was changed anywhere
  transport,   // the environment failed; the view is suspect
  peer_lost,   // a connection was closed or reset
  deadline,    // no progress before the deadline
  stale_view,  // a message or call from an older view
  no_quorum,   // too few members to agree
  aborted,     // this side closed the session
  internal,    // a broken invariant: a bug
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// Name of the Python class in kfcore.errors for a code: the only code-to-class table.
const char* error_class_name(ErrorCode code) noexcept;

}  // namespace kf
