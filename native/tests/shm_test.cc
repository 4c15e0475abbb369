// Shared memory between ranks: rings, registered memory, lent and staged payloads, loss.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "kf/error.h"
#include "kf/host.h"
#include "kf/session.h"
#include "kf/shared_memory.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/ring.h"
#include "transport/shm/segment.h"
#include "worlds.h"

namespace kf {

namespace {

using testing::run_world;
using testing::soon;
using testing::WorldOptions;

constexpr std::size_t kRing = 4096;

struct RingPair {
  RingPair()
      : memory(kRing),
        out(&control, memory.data(), kRing),
        in(&control, memory.data(), kRing) {}
  RingControl control{};
  std::vector<std::byte> memory;
  RingProducer out;
  RingConsumer in;

  bool put(std::size_t bytes, std::uint8_t value, bool all = true) {
    const auto room = out.reserve(bytes, all);
    if (room.data() == nullptr) return false;
    std::memset(room.data(), value, room.size());
    Record record{};
    record.kind = RecordKind::frame;
    record.bytes = static_cast<std::uint32_t>(room.size());
    out.publish(record);
    return true;
  }
};

Piece piece_of(float* data, std::size_t count) {
  return {data, static_cast<std::int64_t>(count), DType::f32, ReduceOp::sum};
}

// A float that sums exactly, different at every place and rank.
float value_at(std::size_t i, int rank) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 1000);
}

struct Case {
  const char* name;
  bool registered;
  bool attach;
};

class SharedPayloads : public ::testing::TestWithParam<Case> {};

}  // namespace

TEST(Ring, HandsRecordsOverInOrderThroughManyLaps) {
  RingPair pair;
  std::uint8_t written = 0;
  std::uint8_t read = 0;
  for (int lap = 0; lap < 200; ++lap) {
    const std::size_t bytes = static_cast<std::size_t>(lap * 37) % 400;
    while (pair.put(bytes, written)) ++written;
    while (const Record* record = pair.in.peek()) {
      ASSERT_TRUE(pair.in.sound());
      ASSERT_EQ(record->kind, RecordKind::frame);
      for (const std::byte byte : pair.in.payload()) ASSERT_EQ(byte, std::byte{read});
      pair.in.pop();
      ++read;
    }
    ASSERT_EQ(read, written);
  }
}

TEST(Ring, NeverOverwritesWhatWasNotRead) {
  RingPair pair;
  int put = 0;
  while (pair.put(100, static_cast<std::uint8_t>(put))) ++put;
  EXPECT_EQ(put, static_cast<int>(kRing / 192));  // one header line, two payload lines
  EXPECT_FALSE(pair.out.half_empty());
  pair.in.peek();
  pair.in.pop();
  EXPECT_TRUE(pair.put(100, 0));
  EXPECT_FALSE(pair.put(100, 0));
}

TEST(Ring, SeesARecordLongerThanWhatWasWritten) {
  RingPair pair;
  ASSERT_TRUE(pair.put(100, 1));
  reinterpret_cast<Record*>(pair.memory.data())->bytes = 3000;
  ASSERT_NE(pair.in.peek(), nullptr);
  EXPECT_FALSE(pair.in.sound());
}

TEST(Ring, OwesAWakeOnceHalfIsFree) {
  RingPair pair;
  while (pair.put(400, 0)) {
  }
  pair.control.wants_room.store(1);
  int popped = 0;
  while (!pair.in.owes_wake()) {
    ASSERT_NE(pair.in.peek(), nullptr);
    pair.in.pop();
    ++popped;
  }
  EXPECT_GT(popped, 1);
  EXPECT_TRUE(pair.out.half_empty());
}

TEST(Bell, WakesASleeperAndNoOneElse) {
  Bell bell{};
  EXPECT_FALSE(ring(bell));
  arm(bell, Sleep::on_sockets);
  EXPECT_TRUE(ring(bell));  // the caller must write to the socket
  EXPECT_FALSE(ring(bell));
  arm(bell, Sleep::on_bell);
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ring(bell);
  });
  const auto start = Clock::now();
  sleep_on(bell, soon(20));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  waker.join();
  sleep_on(bell, soon(20));  // was rung: does not sleep
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

TEST(SharedMemory, ReusesFreedBuffersAndRefusesThemTwice) {
  SharedMemory pool;
  std::byte* a = pool.allocate(10000);
  std::byte* b = pool.allocate(1);
  EXPECT_EQ(pool.bytes_in_use(), 12288U + 4096U);
  std::memset(a, 7, 10000);
  ASSERT_TRUE(pool.find(a + 5, 100).has_value());
  EXPECT_EQ(pool.find(a + 5, 100)->offset, 5U);
  int local = 0;
  EXPECT_FALSE(pool.find(&local, sizeof(local)).has_value());
  pool.free(a);
  EXPECT_THROW(pool.free(a), Error);
  EXPECT_THROW(pool.free(b + 1), Error);
  EXPECT_EQ(pool.allocate(12288), a);
  EXPECT_EQ(a[0], std::byte{0});  // its pages went back to the system
  pool.free(a);
  pool.free(b);
  EXPECT_EQ(pool.bytes_in_use(), 0U);
  EXPECT_THROW(pool.allocate(std::size_t{1} << 60), Error);
}

TEST(SharedMemory, OutlivesTheProcessThatMadeIt) {
  Segment segment;
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Segment made = Segment::create("kf-test", 8192);
    std::memcpy(made.data(), "left behind", 12);
    const int fd = made.fd();
    [[maybe_unused]] const ssize_t written = ::write(fds[1], &fd, sizeof(fd));
    ::pause();
  }
  int fd = -1;
  ASSERT_EQ(::read(fds[0], &fd, sizeof(fd)), static_cast<ssize_t>(sizeof(fd)));
  segment = Segment::attach(child, fd, 8192);
  EXPECT_THROW(Segment::attach(child, fd, 8193), Error);
  EXPECT_THROW(Segment::attach(child, fds[0], 0), Error);  // a pipe
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_STREQ(reinterpret_cast<const char*>(segment.data()), "left behind");
  EXPECT_THROW(Segment::attach(child, fd, 8192), Error);
  ::close(fds[0]);
  ::close(fds[1]);
}

// Payloads of several records, registered and private, read in place, attached and staged.
TEST_P(SharedPayloads, AllReduceIsExact) {
  const auto pool = std::make_shared<SharedMemory>();
  for (const int n : {2, 3}) {
    for (const char* schedule : {"ring", "recursive_doubling", "star", "clique"}) {
      WorldOptions options;
      options.transport = "shm";
      options.attach = GetParam().attach;
      options.registered = pool;
      options.session.schedule = schedule;
      run_world(n, options, [&](Session& session) {
        for (const std::size_t count : {5000UL, 100'003UL, 4'300'000UL}) {
          std::vector<float> own;
          float* data = nullptr;
          if (GetParam().registered) {
            data = reinterpret_cast<float*>(pool->allocate((count + 3) * sizeof(float))) + 3;
          } else {
            own.resize(count);
            data = own.data();
          }
          for (std::size_t i = 0; i < count; ++i) data[i] = value_at(i, session.rank());
          session.run(Collective::all_reduce, {piece_of(data, count)}, 0, "", soon());
          for (std::size_t i = 0; i < count; ++i) {
            float sum = 0;
            for (int r = 0; r < n; ++r) sum += value_at(i, r);
            ASSERT_EQ(data[i], sum) << schedule << " at " << i;
          }
          if (GetParam().registered) pool->free(reinterpret_cast<std::byte*>(data - 3));
        }
      });
    }
  }
}

// Elements of 1, 8 and 16 bytes behind each other: records end inside elements.
// Rank 2 lends to rank 1, dies waiting for rank 0, and takes the loan back before rank 1 looks.
TEST(SharedMemoryLoss, ALoanTakenBackDoesNotMakeItsLenderTheCulprit) {
  WorldOptions options;
  options.transport = "shm";
  options.session.schedule = "clique";
  options.close = false;
  std::mutex lock;
  std::vector<std::string> said;
  run_world(3, options, [&](Session& session) {
    // longer than the others need even under a sanitizer, or they hear of its leaving first
    if (session.rank() == 0) return std::this_thread::sleep_for(std::chrono::seconds(4));
    std::vector<float> data(5'000'000, 1.0F);
    const auto handle =
        session.start(Collective::broadcast, {piece_of(data.data(), data.size())}, 2);
    if (session.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    try {
      session.wait(handle, soon(session.rank() == 2 ? 0.3 : 10));
      ADD_FAILURE() << "rank " << session.rank() << " was told of no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::deadline) << error.what();
      const std::lock_guard guard(lock);
      said.emplace_back(error.what());
    }
  });
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0], said[1]);
  EXPECT_NE(said[0].find("on rank 2: waiting for ranks [0"), std::string::npos) << said[0];
}

TEST_P(SharedPayloads, PiecesOfAllSizesKeepTheirElements) {
  const auto pool = std::make_shared<SharedMemory>();
  WorldOptions options;
  options.transport = "shm";
  options.attach = GetParam().attach;
  options.registered = pool;
  options.session.schedule = "binary_tree";
  run_world(2, options, [&](Session& session) {
    const auto make = [&](std::size_t bytes) { return pool->allocate(bytes); };
    std::vector<Piece> pieces;
    std::vector<std::byte> bytes(3 + 8 * 40'001 + 16 * 5000 + 5);
    std::byte* at = GetParam().registered ? make(bytes.size()) : bytes.data();
    std::byte* const base = at;
    const auto add = [&](std::int64_t count, DType dtype) {
      pieces.push_back({at, count, dtype, ReduceOp::sum});
      at += count * element_bytes(dtype);
    };
    add(3, DType::u8);
    add(40'001, DType::i64);
    add(5000, DType::c128);
    add(5, DType::i8);
    for (std::int64_t i = 0; i < 40'001; ++i) std::memcpy(base + 3 + 8 * i, &i, 8);
    const double one[2] = {1.0, -2.0};
    for (std::int64_t i = 0; i < 5000; ++i) std::memcpy(base + 320'011 + 16 * i, one, 16);
    std::fill_n(base, 3, std::byte{2});
    std::fill_n(at - 5, 5, std::byte{3});
    session.run(Collective::all_reduce, pieces, 0, "", soon());
    for (std::int64_t i = 0; i < 40'001; ++i) {
      std::int64_t value = 0;
      std::memcpy(&value, base + 3 + 8 * i, 8);
      ASSERT_EQ(value, 2 * i);
    }
    for (std::int64_t i = 0; i < 5000; ++i) {
      double sum[2];
      std::memcpy(sum, base + 320'011 + 16 * i, 16);
      ASSERT_EQ(sum[0], 2.0);
      ASSERT_EQ(sum[1], -4.0);
    }
    EXPECT_EQ(base[2], std::byte{4});
    EXPECT_EQ(at[-1], std::byte{6});
  });
}

INSTANTIATE_TEST_SUITE_P(Matrix, SharedPayloads,
                         ::testing::Values(Case{"registered", true, false},
                                           Case{"attached", false, true},
                                           Case{"staged", false, false}),
                         [](const auto& each) { return each.param.name; });

TEST(HostTransport, NamesWhatItIsMadeOf) {
  for (const auto& [transport, name] :
       {std::pair{"shm", "shm"}, {"tcp", "tcp"}, {"mixed", "shm+tcp"}}) {
    WorldOptions options;
    options.transport = transport;
    run_world(4, options, [&, expected = std::string(name)](Session& session) {
      EXPECT_EQ(session.transport(), expected);
    });
  }
}

TEST(HostTransport, SomeRanksMayRefuseToShareMemory) {
  const View view = testing::view_of(3);
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < 3; ++r) {
    listeners.emplace_back("127.0.0.1", 0);
    addresses.push_back(listeners.back().address());
  }
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      HostOptions host;
      host.share_memory = rank != 1;
      HostConnection connection =
          connect_host(listeners[static_cast<std::size_t>(rank)],
                       {view, rank, "job", "secret", addresses, soon(), {}}, host);
      EXPECT_STREQ(connection.transport->name(), rank == 1 ? "tcp" : "shm+tcp");
      EXPECT_EQ(connection.warning, "");
      Session session(view, rank, std::move(connection.transport));
      std::vector<float> values(50'000, 1.0F);
      for (int i = 0; i < 20; ++i) {
        std::fill(values.begin(), values.end(), 1.0F);
        session.run(Collective::all_reduce, {piece_of(values.data(), values.size())}, 0, "",
                    soon());
        ASSERT_EQ(values[49'999], 3.0F);
      }
      session.close();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// The child of a fork has the parent's sockets too, so only the end of the process tells.
TEST(HostTransport, NoticesAKilledProcessWhoseSocketsLiveOn) {
  const View view = testing::view_of(2);
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < 2; ++r) {
    listeners.emplace_back("127.0.0.1", 0);
    addresses.push_back(listeners.back().address());
  }
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t peer = ::fork();
  if (peer == 0) {
    Session session(
        view, 1,
        connect_host(listeners[1], {view, 1, "job", "secret", addresses, soon(), {}})
            .transport);
    session.run(Collective::barrier, {}, 0, "", soon());
    const pid_t heir = ::fork();
    if (heir == 0) {
      ::close(fds[1]);
      try {
        session.run(Collective::barrier, {}, 0, "", soon());
      } catch (const Error& error) {
        ::_exit(error.code() == ErrorCode::usage ? ::pause() : 1);
      }
      ::_exit(1);
    }
    [[maybe_unused]] const ssize_t written = ::write(fds[1], &heir, sizeof(heir));
    ::pause();
  }
  Session session(
      view, 0,
      connect_host(listeners[0], {view, 0, "job", "secret", addresses, soon(), {}}).transport);
  session.run(Collective::barrier, {}, 0, "", soon());
  pid_t heir = 0;
  ASSERT_EQ(::read(fds[0], &heir, sizeof(heir)), static_cast<ssize_t>(sizeof(heir)));
  ::kill(peer, SIGKILL);
  const auto start = Clock::now();
  try {
    session.run(Collective::barrier, {}, 0, "", soon());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  ::kill(heir, SIGKILL);
  ::waitpid(peer, nullptr, 0);
  ::close(fds[0]);
  ::close(fds[1]);
}

// A rank that gave up may write over the buffer it had lent; a late peer must not use it.
TEST(HostTransport, LentMemoryIsTakenBackWhenTheLenderGivesUp) {
  const auto pool = std::make_shared<SharedMemory>();
  for (const bool registered : {true, false}) {
    WorldOptions options;
    options.transport = "shm";
    options.registered = pool;
    options.session.schedule = "binary_tree";
    run_world(2, options, [&](Session& session) {
      constexpr std::size_t kCount = 5'000'000;
      std::vector<float> own(kCount);
      float* data = registered
                        ? reinterpret_cast<float*>(pool->allocate(kCount * sizeof(float)))
                        : own.data();
      std::fill_n(data, kCount, 1.0F);
      const auto handle = session.start(Collective::reduce, {piece_of(data, kCount)}, 0, "");
      if (session.rank() == 1) {
        // rank 0 has started, too, so this rank lends its buffer and then gives up
        EXPECT_THROW(session.wait(handle, soon(0.2)), Error);
        std::fill_n(data, kCount, 666.0F);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      EXPECT_THROW(session.wait(handle, soon()), Error);
    });
  }
}

}  // namespace kf
