#include "kf/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kf/error.h"
#include "kf/generators.h"
#include "worlds.h"

namespace kf {

namespace {

using testing::run_world;
using testing::soon;
using testing::WorldOptions;

// Element j of rank r holds j * n + r, so every sum has a closed form and every place is told
// apart.
std::vector<std::int64_t> contribution(std::int64_t count, int rank, int world_size) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t j = 0; j < count; ++j) {
    values[static_cast<std::size_t>(j)] = j * world_size + rank;
  }
  return values;
}

std::int64_t sum_of(std::int64_t j, int n) {
  return j * n * n + static_cast<std::int64_t>(n) * (n - 1) / 2;
}

Piece piece_of(std::vector<std::int64_t>& values, ReduceOp op = ReduceOp::sum) {
  return {values.data(), static_cast<std::int64_t>(values.size()), DType::i64, op};
}

struct Case {
  std::string transport;
  int world_size;
  std::string schedule;
};

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  WorldOptions options() const {
    WorldOptions options;
    options.transport = GetParam().transport;
    options.session.schedule = GetParam().schedule;
    options.session.eager_bytes = 256;  // so that the lengths below meet both ways of sending
    options.session.segment_bytes = 512;
    return options;
  }
};

constexpr std::int64_t kLengths[] = {0, 1, 2, 7, 64, 1000, 4097};

}  // namespace

TEST_P(Collectives, AllReduceSumsEverywhere) {
  const int n = GetParam().world_size;
  run_world(n, options(), [&](Session& session) {
    for (const std::int64_t count : kLengths) {
      auto values = contribution(count, session.rank(), n);
      session.run(Collective::all_reduce, {piece_of(values)}, 0, "", soon());
      for (std::int64_t j = 0; j < count; ++j) {
        ASSERT_EQ(values[static_cast<std::size_t>(j)], sum_of(j, n)) << count << " at " << j;
      }
    }
  });
}

TEST_P(Collectives, ReduceAndBroadcastServeTheirRoot) {
  const int n = GetParam().world_size;
  run_world(n, options(), [&](Session& session) {
    for (const std::int64_t count : kLengths) {
      for (const int root : {0, n - 1}) {
        auto values = contribution(count, session.rank(), n);
        session.run(Collective::reduce, {piece_of(values)}, root, "", soon());
        auto copies = contribution(count, session.rank(), n);
        session.run(Collective::broadcast, {piece_of(copies)}, root, "", soon());
        for (std::int64_t j = 0; j < count; ++j) {
          if (session.rank() == root) {
            ASSERT_EQ(values[static_cast<std::size_t>(j)], sum_of(j, n));
          }
          ASSERT_EQ(copies[static_cast<std::size_t>(j)], j * n + root);
        }
      }
    }
  });
}

TEST_P(Collectives, OwnedCollectivesMoveWholeBlocks) {
  const int n = GetParam().world_size;
  run_world(n, options(), [&](Session& session) {
    const int r = session.rank();
    for (const std::int64_t block : {0, 1, 3, 130}) {
      const std::int64_t count = block * n;
      auto sums = contribution(count, r, n);
      session.run(Collective::reduce_scatter, {piece_of(sums)}, 0, "", soon());
      auto gathered = contribution(count, r, n);
      session.run(Collective::all_gather, {piece_of(gathered)}, 0, "", soon());
      auto scattered = contribution(count, r, n);
      session.run(Collective::scatter, {piece_of(scattered)}, n - 1, "", soon());
      for (std::int64_t j = 0; j < count; ++j) {
        const auto at = static_cast<std::size_t>(j);
        if (j / block == r) {
          ASSERT_EQ(sums[at], sum_of(j, n));
          ASSERT_EQ(scattered[at], j * n + n - 1);
        }
        ASSERT_EQ(gathered[at], j * n + j / block);
      }
      auto exchanged = contribution(count * n, r, n);
      session.run(Collective::all_to_all, {piece_of(exchanged)}, 0, "", soon());
      for (int s = 0; s < n; ++s) {
        for (std::int64_t i = 0; i < block; ++i) {
          const std::int64_t j = (static_cast<std::int64_t>(s) * n + r) * block + i;
          ASSERT_EQ(exchanged[static_cast<std::size_t>(j)], j * n + s);
        }
      }
      session.run(Collective::barrier, {}, 0, "", soon());
    }
  });
}

TEST_P(Collectives, GroupedPiecesKeepTheirTypesAndOperators) {
  const int n = GetParam().world_size;
  std::mutex mutex;
  std::vector<std::string> bytes;
  run_world(n, options(), [&](Session& session) {
    const int r = session.rank();
    std::vector<float> grads(333);
    for (std::size_t j = 0; j < grads.size(); ++j) {
      grads[j] = 0.1F * static_cast<float>(j) + 0.7F * static_cast<float>(r);
    }
    std::vector<double> sums = {r + 1.0, 2.0, 3.0};
    std::vector<double> maxes = {static_cast<double>(r), -static_cast<double>(r)};
    std::vector<std::uint8_t> flags = {static_cast<std::uint8_t>(r == 0), 0};
    session.run(Collective::all_reduce,
                {{grads.data(), 333, DType::f32, ReduceOp::avg},
                 {sums.data(), 3, DType::f64, ReduceOp::sum},
                 {maxes.data(), 2, DType::f64, ReduceOp::max},
                 {flags.data(), 2, DType::boolean, ReduceOp::sum}},
                0, "step", soon());
    for (std::size_t j = 0; j < grads.size(); ++j) {
      ASSERT_NEAR(grads[j], 0.1F * static_cast<float>(j) + 0.35F * static_cast<float>(n - 1),
                  1e-4);
    }
    EXPECT_EQ(sums, (std::vector<double>{n * (n + 1) / 2.0, 2.0 * n, 3.0 * n}));
    EXPECT_EQ(maxes, (std::vector<double>{n - 1.0, 0.0}));
    EXPECT_EQ(flags, (std::vector<std::uint8_t>{1, 0}));
    const std::lock_guard lock(mutex);
    bytes.emplace_back(reinterpret_cast<const char*>(grads.data()),
                       grads.size() * sizeof(float));
  });
  for (const std::string& other : bytes)
    EXPECT_EQ(other, bytes[0]);  // the same bits everywhere
}

namespace {

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.world_size << " ranks, " << value.transport << ", " << value.schedule;
}

// Some generators need arguments or a certain number of ranks; their laws are tested elsewhere.
bool runs_bare(const std::string& name, int world_size) {
  try {
    build_schedule(name, Collective::all_reduce, world_size);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return false;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    for (const std::string& name : generator_names()) {
      if (runs_bare(name, n)) all.push_back({"inproc", n, name});
    }
    for (const char* name : {"ring", "recursive_doubling", "double_binary_tree"}) {
      for (const char* transport : {"tcp", "shm", "mixed"}) all.push_back({transport, n, name});
    }
  }
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.transport + "_" + std::to_string(info.param.world_size) + "_" +
         info.param.schedule;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Matrix, Collectives, ::testing::ValuesIn(cases()), case_name);

TEST(Session, SumsTheSameBitsFromRunToRun) {
  std::vector<float> first;
  std::mutex mutex;
  for (int run = 0; run < 5; ++run) {
    WorldOptions options;
    options.session.schedule = "star";
    options.transport = run % 2 == 0 ? "inproc" : "tcp";
    run_world(5, options, [&](Session& session) {
      std::vector<float> values(1000);
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] =
            std::sin(static_cast<float>(j * 7 + static_cast<std::size_t>(session.rank())));
      }
      // arrival order differs from run to run
      std::this_thread::sleep_for(
          std::chrono::milliseconds((run * 3 + session.rank() * 5) % 7));
      session.run(Collective::all_reduce, {{values.data(), 1000, DType::f32, ReduceOp::sum}}, 0,
                  "", soon());
      const std::lock_guard lock(mutex);
      if (first.empty()) first = values;
      EXPECT_EQ(0, std::memcmp(first.data(), values.data(), 4000));
    });
  }
}

TEST(Session, SendsTheMessagesOfTheScheduleAndNoMore) {
  for (const char* transport : {"inproc", "tcp", "shm", "mixed"}) {
    WorldOptions options;
    options.transport = transport;
    run_world(4, options, [&](Session& session) {
      auto values = contribution(400, session.rank(), 4);
      session.run(Collective::all_reduce, {piece_of(values)}, 0, "", soon());
      const SessionStats stats = session.stats();
      std::int64_t messages = 0;
      std::int64_t bytes = 0;
      for (const PeerStats& peer : stats.peers) {
        messages += peer.messages_sent;
        bytes += peer.bytes_sent;
      }
      EXPECT_EQ(messages, 6);         // ring: 2 (n - 1)
      EXPECT_EQ(bytes, 6 * 100 * 8);  // 2 (n - 1) / n of the buffer
      EXPECT_EQ(stats.control_messages, 0);
      EXPECT_EQ(stats.operations, 1);
    });
  }
}

TEST(Session, RunsSeveralOperationsAtOnce) {
  for (const char* transport : {"inproc", "tcp", "shm", "mixed"}) {
    WorldOptions options;
    options.transport = transport;
    options.session.eager_bytes = 128;
    run_world(3, options, [&](Session& session) {
      std::vector<std::vector<std::int64_t>> buffers;
      for (int i = 0; i < 20; ++i) buffers.push_back(contribution(i * 37, session.rank(), 3));
      std::vector<Session::Handle> handles(buffers.size());
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        // every rank starts them in another order
        const std::size_t at = (i * 7 + static_cast<std::size_t>(session.rank()) * 5) % 20;
        handles[at] = session.start(Collective::all_reduce, {piece_of(buffers[at])}, 0,
                                    "op" + std::to_string(at));
      }
      for (std::size_t i = 0; i < buffers.size(); ++i) session.wait(handles[19 - i], soon());
      for (const auto& buffer : buffers) {
        for (std::size_t j = 0; j < buffer.size(); ++j) {
          ASSERT_EQ(buffer[j], sum_of(static_cast<std::int64_t>(j), 3));
        }
      }
    });
  }
}

TEST(Session, QueuesOperationsOfOneName) {
  run_world(2, {}, [](Session& session) {
    auto a = contribution(5, session.rank(), 2);
    auto b = contribution(9, session.rank(), 2);
    const auto first = session.start(Collective::all_reduce, {piece_of(a)}, 0, "x");
    const auto second = session.start(Collective::all_reduce, {piece_of(b)}, 0, "x");
    session.wait(second, soon());
    session.wait(first, soon());
    EXPECT_EQ(a[4], sum_of(4, 2));
    EXPECT_EQ(b[8], sum_of(8, 2));
  });
}

TEST(Session, DeadlineNamesTheMissingRanksAndKillsTheSession) {
  for (const char* transport : {"inproc", "tcp", "shm", "mixed"}) {
    WorldOptions options;
    options.transport = transport;
    std::mutex mutex;
    std::vector<std::string> texts;
    run_world(3, options, [&](Session& session) {
      if (session.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(900));
        return;
      }
      for (int again = 0; again < 2; ++again) {
        try {
          session.run(Collective::barrier, {}, 0, "", soon(again == 0 ? 0.3 : 10));
          FAIL() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::deadline);
          const std::lock_guard lock(mutex);
          texts.emplace_back(error.what());
        }
      }
    });
    for (const std::string& text : texts) {
      EXPECT_NE(text.find("waiting for ranks ["), std::string::npos) << text;
      EXPECT_NE(text.find("barrier"), std::string::npos) << text;
    }
  }
}

TEST(Session, RefusesBadCallsWithoutHarm) {
  run_world(2, {}, [](Session& session) {
    auto values = contribution(4, session.rank(), 2);
    auto odd = contribution(3, session.rank(), 2);
    const auto usage = [](auto&& call) {
      try {
        call();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
      }
    };
    usage([&] { session.run(Collective::broadcast, {piece_of(values)}, 2, "", soon()); });
    usage([&] { session.run(Collective::reduce_scatter, {piece_of(odd)}, 0, "", soon()); });
    usage([&] {
      session.run(Collective::all_reduce, {{nullptr, 4, DType::f32, ReduceOp::sum}}, 0, "",
                  soon());
    });
    usage([&] {
      session.run(Collective::all_reduce, {{values.data(), 2, DType::c128, ReduceOp::min}}, 0,
                  "", soon());
    });
    const auto shared = [&](std::int64_t a, std::int64_t b, std::int64_t count) {
      const auto at = [&](std::int64_t first) {
        return Piece{values.data() + first, count, piece_of(values).dtype, ReduceOp::sum};
      };
      session.run(Collective::all_reduce, {at(a), at(b)}, 0, "", soon());
    };
    usage([&] { shared(0, 0, 1); });
    usage([&] { shared(2, 1, 2); });
    usage([&] { session.set_schedule("spiral"); });
    session.run(Collective::all_reduce, {piece_of(values)}, 0, "", soon());  // still alive
    EXPECT_EQ(values[3], sum_of(3, 2));
  });
}

TEST(Session, InterruptKillsItEverywhere) {
  run_world(2, {}, [](Session& session) {
    if (session.rank() == 1) {
      try {
        session.run(Collective::barrier, {}, 0, "", soon(), [] { return true; });
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::aborted);
      }
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_THROW(
        {
          for (int i = 0; i < 2; ++i) session.run(Collective::barrier, {}, 0, "", soon());
        },
        Error);
  });
}

TEST(Session, CloseWakesAThreadThatWaits) {
  WorldOptions options;
  options.close = false;
  run_world(2, options, [](Session& session) {
    if (session.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      return;
    }
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      session.close();
    });
    try {
      session.run(Collective::barrier, {}, 0, "", soon());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
    }
    closer.join();
  });
}

TEST(Session, ManyThreadsMayWaitAtOnce) {
  for (const char* transport : {"inproc", "tcp", "shm", "mixed"}) {
    WorldOptions options;
    options.transport = transport;
    run_world(2, options, [](Session& session) {
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&session, t] {
          for (int i = 0; i < 50; ++i) {
            auto values = contribution(100 * t, session.rank(), 2);
            session.run(Collective::all_reduce, {piece_of(values)}, 0, "t" + std::to_string(t),
                        soon());
            for (std::size_t j = 0; j < values.size(); ++j) {
              ASSERT_EQ(values[j], sum_of(static_cast<std::int64_t>(j), 2));
            }
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

TEST(Session, ReopeningLeaksNoDescriptors) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  WorldOptions options;
  options.transport = "tcp";
  const auto once = [&] {
    run_world(3, options,
              [](Session& session) { session.run(Collective::barrier, {}, 0, "", soon()); });
  };
  once();
  const auto before = descriptors();
  for (int i = 0; i < 20; ++i) once();
  EXPECT_EQ(descriptors(), before);
}

}  // namespace kf
