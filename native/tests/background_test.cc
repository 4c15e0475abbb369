// Background operations, groups and messages: what goes on while nobody waits, and among whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "kf/error.h"
#include "kf/session.h"
#include "worlds.h"

namespace kf {

namespace {

using testing::run_world;
using testing::soon;
using testing::WorldOptions;

std::size_t threads_of_this_process() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                    std::filesystem::directory_iterator()));
}

// A joined thread stays listed until the kernel has taken it down: looks again for up to 30 s.
bool threads_come_down_to(std::size_t count) {
  for (int i = 0; i < 3000 && threads_of_this_process() > count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return threads_of_this_process() <= count;
}

Piece piece_of(std::vector<float>& values, ReduceOp op = ReduceOp::sum) {
  return {values.data(), static_cast<std::int64_t>(values.size()), DType::f32, op};
}

Call message(std::vector<float>& values, bool background = false) {
  Call call;
  call.pieces = {piece_of(values)};
  call.background = background;
  call.deadline = soon();
  return call;
}

Call background_sum(std::vector<float>& values, const std::string& name = {}) {
  Call call;
  call.pieces = {piece_of(values)};
  call.name = name;
  call.background = true;
  call.deadline = soon();
  return call;
}

class Transports : public ::testing::TestWithParam<std::string> {
 protected:
  WorldOptions options() const {
    WorldOptions options;
    options.transport = GetParam();
    return options;
  }
};

}  // namespace

TEST_P(Transports, BackgroundOperationsFinishWhileNobodyWaits) {
  run_world(3, options(), [](Session& session) {
    std::vector<std::vector<float>> buffers;
    for (int i = 0; i < 6; ++i) buffers.emplace_back(200'000 >> i, 1.0F);
    std::vector<Session::Handle> handles;
    for (auto& buffer : buffers) handles.push_back(session.start(background_sum(buffer)));
    const auto until = soon(8);
    for (const auto& handle : handles) {
      while (!session.done(handle) && Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ASSERT_TRUE(session.done(handle));
    }
    for (const auto& buffer : buffers) {
      EXPECT_EQ(buffer.front(), 3.0F);
      EXPECT_EQ(buffer.back(), 3.0F);
    }
    session.run(Collective::barrier, {}, 0, "", soon());
  });
}

TEST_P(Transports, WaitersAndBackgroundOperationsShareTheTransport) {
  run_world(2, options(), [](Session& session) {
    for (int i = 0; i < 40; ++i) {
      std::vector<float> late(5000, 1.0F);
      std::vector<float> soon_done(64, 2.0F);
      const auto handle = session.start(background_sum(late));
      session.run(Collective::all_reduce, {piece_of(soon_done)}, 0, "", soon());
      session.wait(handle, soon());
      ASSERT_EQ(late[4999], 2.0F);
      ASSERT_EQ(soon_done[63], 4.0F);
    }
  });
}

TEST_P(Transports, DeadlinesOfBackgroundOperationsNeedNoWaiter) {
  run_world(2, options(), [](Session& session) {
    if (session.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      return;
    }
    std::vector<float> values(4, 1.0F);
    Call call = background_sum(values);
    call.deadline = soon(0.2);
    const auto handle = session.start(std::move(call));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_TRUE(session.done(handle));  // there is an error to fetch
    try {
      session.wait(handle, soon());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::deadline);
      EXPECT_NE(std::string(error.what()).find("ranks [1]"), std::string::npos) << error.what();
    }
  });
}

TEST_P(Transports, GroupsOfDisjointRanksWorkAtTheSameTime) {
  run_world(5, options(), [](Session& session) {
    const int r = session.rank();
    if (r == 4) return session.run(Collective::barrier, {}, 0, "end", soon());
    const auto group = session.group(r < 2 ? std::vector{0, 1} : std::vector{3, 2});
    for (int i = 0; i < 20; ++i) {
      std::vector<float> values(i * 100 + 1, static_cast<float>(r));
      Call call;
      call.pieces = {piece_of(values, i % 2 == 0 ? ReduceOp::sum : ReduceOp::avg)};
      call.group = group;
      call.name = i % 3 == 0 ? "named" : "";
      session.wait(session.start(std::move(call)), soon());
      const float sum = r < 2 ? 1.0F : 5.0F;
      ASSERT_EQ(values.back(), i % 2 == 0 ? sum : sum / 2);
    }
    Call call;
    std::vector<float> root = {static_cast<float>(r)};
    call.collective = Collective::broadcast;
    call.pieces = {piece_of(root)};
    call.group = group;
    call.root = 1;
    session.wait(session.start(std::move(call)), soon());
    EXPECT_EQ(root[0], r < 2 ? 1.0F : 2.0F);  // the second of {3, 2} is rank 2
    session.run(Collective::barrier, {}, 0, "end", soon());
  });
}

TEST_P(Transports, AMemberThatNeverComesIsNamed) {
  std::string text;
  run_world(4, options(), [&](Session& session) {
    if (session.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      return;
    }
    if (session.rank() != 2) return std::this_thread::sleep_for(std::chrono::milliseconds(600));
    Call call;
    call.collective = Collective::barrier;
    call.group = session.group({2, 3});
    try {
      session.wait(session.start(std::move(call)), soon(0.3));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::deadline);
      text = error.what();
    }
  });
  EXPECT_NE(text.find("waiting for ranks [3]"), std::string::npos) << text;
  EXPECT_NE(text.find("in group [2, 3]"), std::string::npos) << text;
}

TEST_P(Transports, MessagesOfATagArriveInOrder) {
  run_world(3, options(), [](Session& session) {
    const int n = session.world_size();
    const int next = (session.rank() + 1) % n;
    const int before = (session.rank() + n - 1) % n;
    std::vector<Session::Handle> sends;
    std::vector<std::vector<float>> out;
    for (int i = 0; i < 50; ++i) {
      out.emplace_back(i % 5 == 0 ? 100'000 : 10, static_cast<float>(session.rank() * 100 + i));
    }
    for (int i = 0; i < 50; ++i) {
      auto& values = out[static_cast<std::size_t>(i)];
      sends.push_back(session.send(next, i % 2, message(values, true)));
    }
    for (const int parity : {1, 0}) {  // the tags are received the other way round
      for (int i = parity; i < 50; i += 2) {
        std::vector<float> in(i % 5 == 0 ? 100'000 : 10);
        session.wait(session.receive(before, parity, message(in)), soon());
        ASSERT_EQ(in.back(), static_cast<float>(before * 100 + i));
      }
    }
    for (const auto& handle : sends) session.wait(handle, soon());
  });
}

// Rank s has s + d + 1 elements for rank d, and none where s + d is a multiple of 3.
TEST_P(Transports, BlocksOfAnySizeAreExchangedBetweenTwoBuffers) {
  run_world(4, options(), [](Session& session) {
    const int n = session.world_size();
    for (const std::int64_t scale : {1, 40'000}) {
      std::vector<std::int64_t> counts;
      for (int s = 0; s < n; ++s) {
        for (int d = 0; d < n; ++d)
          counts.push_back((s + d) % 3 == 0 ? 0 : (s + d + 1) * scale);
      }
      const auto count = [&](int s, int d) {
        return static_cast<std::size_t>(counts[static_cast<std::size_t>(s * n + d)]);
      };
      std::vector<float> input;
      std::vector<float> expected;
      for (int other = 0; other < n; ++other) {
        const int r = session.rank();
        input.insert(input.end(), count(r, other), static_cast<float>(r * 10 + other));
        expected.insert(expected.end(), count(other, r), static_cast<float>(other * 10 + r));
      }
      std::vector<float> output(expected.size());
      session.wait(session.start(exchange(input.data(), output.data(), DType::f32, counts,
                                          session.rank(), n)),
                   soon());
      EXPECT_EQ(output, expected);
    }
  });
}

TEST_P(Transports, OwnersMayHaveBlocksOfAnySize) {
  run_world(3, options(), [](Session& session) {
    for (const char* schedule : {"ring", "pairwise", "clique"}) {
      session.set_schedule(schedule);
      for (const std::int64_t scale : {1, 50'000}) {
        const std::vector<std::int64_t> blocks = {0, 3 * scale, 5 * scale};
        std::vector<float> values(static_cast<std::size_t>(8 * scale));
        const auto begin = static_cast<std::ptrdiff_t>(session.rank() == 2 ? 3 * scale : 0);
        std::fill_n(values.begin() + begin, blocks[static_cast<std::size_t>(session.rank())],
                    static_cast<float>(session.rank()));
        Call call;
        call.collective = Collective::all_gather;
        call.pieces = {piece_of(values)};
        call.blocks = blocks;
        session.wait(session.start(std::move(call)), soon());
        EXPECT_EQ(values.front(), 1.0F);
        EXPECT_EQ(values[static_cast<std::size_t>(3 * scale - 1)], 1.0F);
        EXPECT_EQ(values[static_cast<std::size_t>(3 * scale)], 2.0F);
        EXPECT_EQ(values.back(), 2.0F);
      }
    }
  });
}

TEST_P(Transports, SmallMessagesNeedNoReceiverAndOutliveTheirSender) {
  run_world(2, options(), [](Session& session) {
    std::vector<float> values(10, 7.0F);
    if (session.rank() == 0) {
      for (int i = 0; i < 100; ++i) {
        session.wait(session.send(1, 0, message(values)), soon());
      }
      return;  // says goodbye
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (int i = 0; i < 100; ++i) {
      std::vector<float> in(10);
      session.wait(session.receive(0, 0, message(in)), soon());
      ASSERT_EQ(in[9], 7.0F);
    }
  });
}

TEST_P(Transports, ASenderMayNotRunAheadWithoutEnd) {
  run_world(2, options(), [](Session& session) {
    std::vector<float> values(16'000, 1.0F);
    if (session.rank() == 0) {
      for (int i = 0; i < 1500; ++i) {
        session.wait(session.send(1, 0, message(values)), soon());
      }
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (int i = 0; i < 1500; ++i) {
        session.wait(session.receive(0, 0, message(values)), soon());
      }
    }
    session.run(Collective::barrier, {}, 0, "", soon());
  });
}

TEST_P(Transports, MessagesMustAgreeInSize) {
  run_world(2, options(), [](Session& session) {
    std::vector<float> values(session.rank() == 0 ? 3 : 4, 0.0F);
    const bool sends = session.rank() == 0;
    try {
      session.wait(
          sends ? session.send(1, 5, message(values)) : session.receive(0, 5, message(values)),
          soon());
      // a small send is done before the receiver can object
      session.run(Collective::barrier, {}, 0, "", soon());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      const std::string text = error.what();
      EXPECT_NE(text.find("send/recv float32[3] from rank 0 to rank 1, tag 5"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("send/recv float32[4]"), std::string::npos) << text;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Background, Transports, ::testing::Values("inproc", "tcp", "shm"),
                         [](const auto& values) { return values.param; });

TEST(BackgroundThread, ExistsOnlyWhileThereIsSomethingToDo) {
  run_world(1, {}, [](Session& session) {
    std::vector<float> values(10, 1.0F);
    session.wait(session.start(background_sum(values)), soon());
  });
  const std::size_t before = threads_of_this_process();
  run_world(2, {}, [&](Session& session) {
    std::vector<float> values(10, 1.0F);
    for (int i = 0; i < 3; ++i) {
      session.wait(session.start(background_sum(values)), soon());
    }
    session.run(Collective::barrier, {}, 0, "", soon());
    EXPECT_TRUE(threads_come_down_to(before + 2));  // the two ranks of this world
  });
  EXPECT_TRUE(threads_come_down_to(before));
}

TEST(Groups, AreRefusedUnlessTheRanksAreDifferentMembersOfTheView) {
  run_world(3, {}, [](Session& session) {
    const std::vector<std::vector<int>> wrong = {{},
                                                 {session.rank(), session.rank()},
                                                 {session.rank(), 3},
                                                 {-1, session.rank()},
                                                 {(session.rank() + 1) % 3}};
    for (const auto& members : wrong) {
      try {
        session.group(members);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage);
      }
    }
    EXPECT_EQ(session.group({2, 1, 0})->rank, 2 - session.rank());
  });
}

}  // namespace kf
