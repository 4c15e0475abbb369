#include "transport/tcp/handshake.h"

#include <gtest/gtest.h>

#include "transport/wire.h"

namespace kf {

namespace {

const View kView{3, {"a", "b", "c"}};

// Passes messages back and forth until neither end has anything to say.
void converse(Handshake& client, Handshake& server) {
  for (int turn = 0; turn < 4; ++turn) {
    const std::string up = client.take_output();
    if (!up.empty() && server.wants() == up.size()) server.receive(up);
    const std::string down = server.take_output();
    if (!down.empty() && client.wants() == down.size()) client.receive(down);
  }
}

Handshake client_of(const View& view, int rank, std::string_view job, std::string_view secret) {
  return {Handshake::Role::client, {&view, rank, job, secret}, std::string(16, 'c'), 0};
}

Handshake server_of(const View& view) {
  return {Handshake::Role::server, {&view, 0, "job", "secret"}, std::string(16, 's')};
}

using State = Handshake::State;

}  // namespace

TEST(Handshake, AcceptsAMemberThatKnowsTheSecret) {
  Handshake client = client_of(kView, 2, "job", "secret");
  Handshake server = server_of(kView);
  converse(client, server);
  EXPECT_EQ(client.state(), State::accepted);
  EXPECT_EQ(server.state(), State::accepted);
  EXPECT_EQ(server.peer(), 2);
}

TEST(Handshake, TellsAClientWithoutTheRightProofNothing) {
  for (const auto& [job, secret] : {std::pair{"job", "wrong"}, std::pair{"other", "secret"}}) {
    Handshake client = client_of(kView, 2, job, secret);
    Handshake server = server_of(kView);
    server.receive(client.take_output());
    client.receive(server.take_output());
    server.receive(client.take_output());
    EXPECT_EQ(server.state(), State::refused);
    EXPECT_EQ(server.take_output(), "");
    EXPECT_NE(server.reason().find("proof"), std::string::npos);
  }
}

TEST(Handshake, TellsAMemberOfAnotherViewTheVersion) {
  const View older{2, {"a", "b", "c"}};
  Handshake client = client_of(older, 1, "job", "secret");
  Handshake server = server_of(kView);
  converse(client, server);
  EXPECT_EQ(client.state(), State::refused);
  EXPECT_EQ(client.server_view_version(), 3);
  EXPECT_EQ(server.state(), State::refused);
}

TEST(Handshake, RefusesAnotherMemberAtTheSameRank) {
  const View other{3, {"a", "impostor", "c"}};
  Handshake client = client_of(other, 1, "job", "secret");
  Handshake server = server_of(kView);
  converse(client, server);
  EXPECT_EQ(client.state(), State::refused);
  EXPECT_EQ(server.state(), State::refused);
  EXPECT_NE(server.reason().find("rank 1"), std::string::npos);
}

TEST(Handshake, RefusesAServerOfAnotherRankOrWithoutTheSecret) {
  Handshake client = client_of(kView, 2, "job", "secret");
  Handshake wrong_rank(Handshake::Role::server, {&kView, 1, "job", "secret"},
                       std::string(16, 's'));
  converse(client, wrong_rank);
  EXPECT_EQ(client.state(), State::refused);  // it wanted rank 0
}

TEST(Handshake, NamesBothProtocolVersions) {
  Handshake server = server_of(kView);
  std::string hello("KFh1");
  append_number(hello, 99, 4);
  server.receive(hello + std::string(16, 'c'));
  EXPECT_EQ(server.state(), State::refused);
  EXPECT_EQ(server.reason(), "it speaks protocol version 99, this is version 1");
  EXPECT_EQ(read_number(server.take_output(), 4, 4), kProtocolVersion);
}

TEST(Handshake, RefusesGarbage) {
  Handshake server = server_of(kView);
  server.receive(std::string(24, 'x'));
  EXPECT_EQ(server.state(), State::refused);
  EXPECT_EQ(server.take_output(), "");
}

TEST(Wire, HeadersSurviveTheRoundTripAndLengthsAreBounded) {
  Frame frame;
  frame.kind = FrameKind::data;
  frame.transfer = 7;
  frame.cell = 0xFFFFFFFF;
  frame.key = {~std::uint64_t{0}, 42};
  frame.fingerprint = 0x0123456789ABCDEF;
  frame.payload_bytes = 1 << 20;
  Frame back;
  ASSERT_TRUE(decode(encode(frame).data(), back));
  EXPECT_EQ(back.transfer, frame.transfer);
  EXPECT_EQ(back.cell, frame.cell);
  EXPECT_EQ(back.key, frame.key);
  EXPECT_EQ(back.fingerprint, frame.fingerprint);
  EXPECT_EQ(back.payload_bytes, frame.payload_bytes);
  frame.payload_bytes = std::uint64_t{1} << 60;
  EXPECT_FALSE(decode(encode(frame).data(), back));
  frame.kind = FrameKind::start;
  frame.payload_bytes = kMaxControlBytes + 1;
  EXPECT_FALSE(decode(encode(frame).data(), back));
  Header garbage{};
  EXPECT_FALSE(decode(garbage.data(), back));
}

}  // namespace kf
