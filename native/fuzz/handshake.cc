// The handshake: raw bytes, a genuine talk with changed bytes, and claims with a right MAC.
#include "transport/tcp/handshake.h"

#include "fuzz.h"
#include "transport/sha256.h"
#include "transport/wire.h"

namespace kf::fuzz {

namespace {

const View kView{3, {"a", "b", "c"}};
const std::string kServerNonce(kNonceBytes, 's');
const std::string kClientNonce(kNonceBytes, 'c');

Handshake end_of(Handshake::Role role, int rank) {
  const bool client = role == Handshake::Role::client;
  return {role, {&kView, rank, "job", "secret"}, client ? kClientNonce : kServerNonce, 0};
}

// A stranger without the secret, to either role: it is never let in.
void stranger(Handshake::Role role, Input input) {
  Handshake mine = end_of(role, role == Handshake::Role::client ? 1 : 0);
  while (mine.wants() > 0) {
    std::string message(input.text(mine.wants()));
    message.resize(mine.wants());
    mine.receive(message);
    mine.take_output();
  }
  promise(mine.state() == Handshake::State::refused, "a stranger was let in");
}

// Two members, between whom somebody changes bytes: if any was, not both accept.
void changed(Input input) {
  Handshake client = end_of(Handshake::Role::client, 1);
  Handshake server = end_of(Handshake::Role::server, 0);
  bool genuine = true;
  const auto pass = [&](Handshake& from, Handshake& to) {
    std::string message = from.take_output();
    if (message.empty() || message.size() != to.wants()) return;
    for (int changes = input.byte() % 4; changes > 0; --changes) {
      const std::uint8_t mask = input.byte();
      char& at = message[input.byte() % message.size()];
      at = static_cast<char>(at ^ mask);
      genuine = genuine && mask == 0;
    }
    to.receive(message);
  };
  for (int turn = 0; turn < 2; ++turn) {
    pass(client, server);
    pass(server, client);
  }
  const bool both = client.state() == Handshake::State::accepted &&
                    server.state() == Handshake::State::accepted;
  // changes may cancel each other, so `genuine` is only the cheap half of the truth
  promise(both || !genuine, "two members did not find each other");
}

// A member of some view that knows the secret and claims anything.
void claim(Input input) {
  Handshake server = end_of(Handshake::Role::server, 0);
  std::string hello("KFh1");
  append_number(hello, kProtocolVersion, 4);
  hello += kClientNonce;
  server.receive(hello);
  const std::string transcript = hello + server.take_output();
  const std::uint64_t rank = input.number(4);
  const std::uint64_t version = input.byte() % 2 == 0 ? 3 : input.number(8);
  std::string proof;
  append_number(proof, rank, 4);
  append_number(proof, version, 8);
  const bool member = rank < 3 && input.byte() % 2 == 0;
  std::string digest =
      member ? std::string(bytes_of(sha256(kView.members[static_cast<std::size_t>(rank)])))
             : std::string(input.text(32));
  digest.resize(32);
  proof += digest;
  std::string text("client");
  append_number(text, 3, 8);
  text.append("job").append(transcript).append(proof);
  proof += bytes_of(hmac_sha256("secret", text));
  server.receive(proof);
  const bool right = member && version == 3 && rank != 0;
  promise(!right || server.state() == Handshake::State::accepted, "a member was refused");
  promise(server.state() != Handshake::State::accepted || (version == 3 && rank - 1 < 2),
          "a rank outside the view was let in");
}

}  // namespace

void handshake(Bytes bytes) {
  Input input(bytes);
  switch (input.byte() % 4) {
    case 0:
      return stranger(Handshake::Role::server, input);
    case 1:
      return stranger(Handshake::Role::client, input);
    case 2:
      return changed(input);
    default:
      return claim(input);
  }
}

}  // namespace kf::fuzz
