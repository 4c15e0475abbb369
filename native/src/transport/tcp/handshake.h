// The handshake as a state machine over bytes. No sockets, no clock, no randomness.
//
// Terms: client: the end that connected; server: the end that accepted. Each proves that it
//        knows the job secret by a MAC over both nonces, before it is told anything.
//
//   client -> server  hello      mark, protocol version, nonce
//   server -> client  challenge  mark, protocol version, nonce
//   client -> server  proof      rank, view version, member, MAC
//   server -> client  verdict    status, view version, MAC     (nothing at all after a bad
//   proof)
//
// A server that sees a bad proof closes without a word, so a stranger learns only the protocol
// version. All four messages have fixed lengths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kf/view.h"

namespace kf {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::size_t kNonceBytes = 16;

// Who this end is. The view must outlive the handshake.
struct Identity {
  const View* view;
  int rank;
  std::string_view job_id;
  std::string_view job_secret;
};

class Handshake {
 public:
  enum class Role : std::uint8_t { client, server };
  enum class State : std::uint8_t { running, accepted, refused };

  // expected_peer: the rank the client connects to; a server learns its peer from the proof.
  Handshake(Role role, Identity self, std::string nonce, int expected_peer = -1);

  std::string take_output();               // bytes to send now
  std::size_t wants() const noexcept;      // length of the next message; 0 when over
  void receive(std::string_view message);  // exactly wants() bytes

  State state() const noexcept { return state_; }
  int peer() const noexcept { return peer_; }                     // once accepted
  const std::string& reason() const noexcept { return reason_; }  // once refused, for this end
  // A client's: the server has seen the proof, so its hanging up is an answer.
  bool proved() const noexcept { return role_ == Role::client && received_ > 0; }
  // The refusing server's view version, proven genuine; 0 when it said nothing.
  std::int64_t server_view_version() const noexcept { return server_view_version_; }

 private:
  void on_hello(std::string_view message);
  void on_challenge(std::string_view message);
  void on_proof(std::string_view message);
  void on_verdict(std::string_view message);
  void refuse(std::string reason);
  std::string mac(std::string_view label, std::string_view message) const;
  std::string greeting(std::string_view mark) const;

  Role role_;
  Identity self_;
  std::string nonce_;
  int peer_;
  State state_ = State::running;
  int received_ = 0;        // messages so far
  std::string transcript_;  // hello and challenge
  std::string output_;
  std::string reason_;
  std::int64_t server_view_version_ = 0;
};

}  // namespace kf
