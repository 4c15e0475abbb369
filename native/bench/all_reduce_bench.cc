// Times in-place float32 sum all-reduces of real processes on this host, without Python.
// Prints one JSON object a line: {"case", "ranks", "bytes", "iterations", "min_us", "p50_us",
// "p95_us"}; times are rank 0's.
//
//   all_reduce_bench RANKS registered|private|tcp SCHEDULE BYTES...
//
// Each size is verified once against the closed form, warmed up, and timed operation by
// operation. Before each one every rank writes its buffer and meets the others, outside the
// time, as in `kf bench`.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kf/host.h"
#include "kf/session.h"
#include "kf/shared_memory.h"

namespace {

using kf::Clock;

struct Options {
  int ranks = 2;
  std::string how;
  std::string schedule;
  std::vector<std::size_t> sizes;
};

Clock::time_point soon() {
  return Clock::now() + std::chrono::seconds(120);
}

kf::Piece piece_of(float* data, std::size_t count) {
  return {data, static_cast<std::int64_t>(count), kf::DType::f32, kf::ReduceOp::sum};
}

void verify(kf::Session& session, float* data, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(session.rank()));
  }
  session.run(kf::Collective::all_reduce, {piece_of(data, count)}, 0, "", soon());
  const auto n = static_cast<std::size_t>(session.world_size());
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] == static_cast<float>(n * (i % 1000) + n * (n - 1) / 2)) continue;
    std::fprintf(stderr, "all_reduce_bench: wrong sum at %zu: %f\n", i, double(data[i]));
    std::exit(1);
  }
  std::memset(data, 0, count * sizeof(float));
}

void measure(kf::Session& session, const Options& options, std::size_t bytes, float* data) {
  const std::size_t count = bytes / sizeof(float);
  verify(session, data, count);
  const auto iterations = std::clamp<std::size_t>((1U << 28) / (bytes + 4096), 9, 2000);
  const std::vector<kf::Piece> pieces = {piece_of(data, count)};
  std::vector<double> us;
  for (std::size_t i = 0; i < iterations + 5; ++i) {
    std::fill_n(data, count, 1.0F);
    session.run(kf::Collective::barrier, {}, 0, "", soon());
    const auto start = Clock::now();
    session.run(kf::Collective::all_reduce, pieces, 0, "", soon());
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (i >= 5) us.push_back(took.count());
  }
  if (session.rank() != 0) return;
  std::sort(us.begin(), us.end());
  std::printf(
      "{\"case\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"iterations\": %zu, \"min_us\": "
      "%.2f, \"p50_us\": %.2f, \"p95_us\": %.2f}\n",
      options.how.c_str(), options.ranks, bytes, iterations, us.front(), us[us.size() / 2],
      us[us.size() * 95 / 100]);
  std::fflush(stdout);
}

int work(const Options& options, int rank, kf::TcpListener& listener,
         const std::vector<std::string>& addresses) {
  const auto pool = std::make_shared<kf::SharedMemory>();
  kf::View view{1, {}};
  for (int r = 0; r < options.ranks; ++r) view.members.push_back(std::to_string(r));
  kf::HostOptions host;
  host.registered = pool;
  host.share_memory = options.how != "tcp";
  kf::SessionOptions session_options;
  session_options.schedule = options.schedule;
  kf::Session session(
      view, rank,
      kf::connect_host(listener, {view, rank, "bench", "", addresses, soon(), {}}, host)
          .transport,
      session_options);
  for (const std::size_t bytes : options.sizes) {
    std::vector<float> own;
    float* data = nullptr;
    if (options.how == "registered") {
      data = reinterpret_cast<float*>(pool->allocate(bytes));
    } else {
      own.resize(bytes / sizeof(float));
      data = own.data();
    }
    measure(session, options, bytes, data);
  }
  session.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc < 5) {
    std::fprintf(stderr, "all_reduce_bench RANKS registered|private|tcp SCHEDULE BYTES...\n");
    return 2;
  }
  options.ranks = std::atoi(argv[1]);
  options.how = argv[2];
  options.schedule = argv[3];
  for (int i = 4; i < argc; ++i) options.sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  std::vector<kf::TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < options.ranks; ++r) {
    listeners.emplace_back("127.0.0.1", 0);
    addresses.push_back(listeners.back().address());
  }
  std::vector<pid_t> children;
  int rank = 0;
  for (int r = 1; r < options.ranks && rank == 0; ++r) {
    const pid_t child = fork();
    if (child == 0)
      rank = r;
    else
      children.push_back(child);
  }
  int status = 1;
  try {
    status = work(options, rank, listeners[static_cast<std::size_t>(rank)], addresses);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "all_reduce_bench: rank %d: %s\n", rank, error.what());
  }
  if (rank != 0) _exit(status);
  for (const pid_t child : children) {
    int ended = 0;
    waitpid(child, &ended, 0);
    if (ended != 0) status = 1;
  }
  return status;
}
