#include "kf/error.h"

namespace kf {

const char* error_class_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::usage:
      return "UsageError";
    case ErrorCode::mismatch:
      return "MismatchError";
    case ErrorCode::conflict:
      return "ConflictingProposals";
    case ErrorCode::transport:
      return "TransportError";
    case ErrorCode::peer_lost:
      return "PeerLostError";
    case ErrorCode::deadline:
      return "DeadlineError";
    case ErrorCode::stale_view:
      return "StaleViewError";
    case ErrorCode::no_quorum:
      return "NoQuorumError";
    case ErrorCode::aborted:
      return "AbortedError";
    case ErrorCode::internal:
      return "InternalError";
  }
  return "InternalError";
}

}  // namespace kf
