#include "transport/tcp/handshake.h"

#include <utility>

#include "transport/sha256.h"
#include "transport/wire.h"

namespace kf {

namespace {

constexpr std::string_view kHelloMark = "KFh1";
constexpr std::string_view kChallengeMark = "KFc1";
constexpr std::size_t kGreetingBytes = 4 + 4 + kNonceBytes;
constexpr std::size_t kMacBytes = 32;
constexpr std::size_t kProofBytes = 4 + 8 + 32 + kMacBytes;  // rank, view, member, MAC
constexpr std::size_t kVerdictBytes = 1 + 8 + kMacBytes;     // status, view, MAC

enum Status : std::uint64_t { kAccepted = 0, kOtherView = 1, kOtherMember = 2 };

std::string member_digest(const View& view, int rank) {
  return std::string(bytes_of(sha256(view.members[static_cast<std::size_t>(rank)])));
}

}  // namespace

Handshake::Handshake(Role role, Identity self, std::string nonce, int expected_peer)
    : role_(role), self_(self), nonce_(std::move(nonce)), peer_(expected_peer) {
  if (role_ == Role::client) {
    output_ = greeting(kHelloMark);
    transcript_ = output_;
  }
}

std::string Handshake::greeting(std::string_view mark) const {
  std::string bytes(mark);
  append_number(bytes, kProtocolVersion, 4);
  return bytes + nonce_;
}

std::string Handshake::take_output() {
  return std::exchange(output_, {});
}

std::size_t Handshake::wants() const noexcept {
  if (state_ != State::running) return 0;
  if (received_ == 0) return kGreetingBytes;
  return role_ == Role::client ? kVerdictBytes : kProofBytes;
}

void Handshake::receive(std::string_view message) {
  const bool first = received_++ == 0;
  if (role_ == Role::server) {
    first ? on_hello(message) : on_proof(message);
  } else {
    first ? on_challenge(message) : on_verdict(message);
  }
}

void Handshake::refuse(std::string reason) {
  state_ = State::refused;
  reason_ = std::move(reason);
}

// Job id and transcript are part of every MAC: a proof is good for one connection of one job.
std::string Handshake::mac(std::string_view label, std::string_view message) const {
  std::string text(label);
  append_number(text, self_.job_id.size(), 8);
  text.append(self_.job_id).append(transcript_).append(message);
  return std::string(bytes_of(hmac_sha256(self_.job_secret, text)));
}

void Handshake::on_hello(std::string_view message) {
  if (message.substr(0, 4) != kHelloMark) return refuse("it is not a worker of this library");
  output_ = greeting(kChallengeMark);
  transcript_ = std::string(message) + output_;
  const std::uint64_t version = read_number(message, 4, 4);
  if (version != kProtocolVersion) {  // the challenge tells the client our version
    refuse("it speaks protocol version " + std::to_string(version) + ", this is version " +
           std::to_string(kProtocolVersion));
  }
}

void Handshake::on_challenge(std::string_view message) {
  if (message.substr(0, 4) != kChallengeMark)
    return refuse("it is not a worker of this library");
  const std::uint64_t version = read_number(message, 4, 4);
  if (version != kProtocolVersion) {
    return refuse("it speaks protocol version " + std::to_string(version) +
                  ", this is version " + std::to_string(kProtocolVersion));
  }
  transcript_ += message;
  append_number(output_, static_cast<std::uint64_t>(self_.rank), 4);
  append_number(output_, static_cast<std::uint64_t>(self_.view->version), 8);
  output_ += member_digest(*self_.view, self_.rank);
  output_ += mac("client", output_);
}

void Handshake::on_proof(std::string_view message) {
  const std::string_view claim = message.substr(0, kProofBytes - kMacBytes);
  if (!equal_in_constant_time(message.substr(claim.size()), mac("client", claim))) {
    return refuse("its proof of the job secret is wrong");  // and not a word to it
  }
  const std::uint64_t rank = read_number(claim, 0, 4);
  const auto view_version = static_cast<std::int64_t>(read_number(claim, 4, 8));
  const int world_size = self_.view->world_size();
  Status status = kAccepted;
  if (view_version != self_.view->version) {
    status = kOtherView;
    refuse("it is in view " + std::to_string(view_version) + ", this is view " +
           std::to_string(self_.view->version));
  } else if (rank >= static_cast<std::uint64_t>(world_size) ||
             static_cast<int>(rank) == self_.rank ||
             claim.substr(12) != member_digest(*self_.view, static_cast<int>(rank))) {
    status = kOtherMember;
    refuse("it is not the member of rank " + std::to_string(rank));
  } else {
    peer_ = static_cast<int>(rank);
    state_ = State::accepted;
  }
  append_number(output_, status, 1);
  append_number(output_, static_cast<std::uint64_t>(self_.view->version), 8);
  std::string signed_part = output_;
  append_number(signed_part, static_cast<std::uint64_t>(self_.rank), 4);
  output_ += mac("server", signed_part);
}

void Handshake::on_verdict(std::string_view message) {
  const std::string_view verdict = message.substr(0, kVerdictBytes - kMacBytes);
  std::string signed_part(verdict);
  append_number(signed_part, static_cast<std::uint64_t>(peer_), 4);
  if (!equal_in_constant_time(message.substr(verdict.size()), mac("server", signed_part))) {
    return refuse("its proof of the job secret is wrong");
  }
  server_view_version_ = static_cast<std::int64_t>(read_number(verdict, 1, 8));
  switch (read_number(verdict, 0, 1)) {
    case kAccepted:
      state_ = State::accepted;
      return;
    case kOtherView:
      return refuse("it is in view " + std::to_string(server_view_version_) +
                    ", this is view " + std::to_string(self_.view->version));
    default:
      return refuse("its view has another member at rank " + std::to_string(self_.rank));
  }
}

}  // namespace kf
