// Physical floors of a two-process all-reduce on this machine: what no implementation can beat.
// Prints one JSON object a line: {"case", "bytes", "min_us", "p50_us"}.
//
//   floor_bench [bytes ...]
//
// Cases. memcpy, add: one core, b = a and b += a. pingpong_line: round trip over a shared cache
// line, spinning; pingpong_futex: the same, sleeping. registered: both buffers lie in shared
// memory; each process adds its half of both and writes the sum to both, so memory is touched
// once. staged: private buffers; data goes through 32 KiB slots of shared memory (read, add,
// write back), as it must when a buffer cannot be mapped by the peer. Before each operation
// both processes write their buffer and meet, outside the time, as `kf bench` has every
// contender do: what the other process is to read lies in this one's caches, as after a
// backward pass. The
// *_again cases leave the buffers alone instead, so each core finds its half where it left it.
// A floor spins and does nothing else: it knows no deadline, no mismatch, no third rank.
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSlotBytes = 32 * 1024;
constexpr int kSlots = 8;

struct alignas(64) Line {
  std::atomic<std::uint32_t> value{0};
};

// What both processes see. Counters only grow, so no reset can race.
struct Shared {
  Line arrived[2];
  Line filled[2];   // slots that process i has written
  Line emptied[2];  // slots of process i that the other has consumed
  alignas(64) float slots[2][kSlots][kSlotBytes / sizeof(float)];
};

void* map_shared(std::size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  return memory;
}

void spin_until(const Line& line, std::uint32_t value) {
  while (static_cast<std::int32_t>(line.value.load(std::memory_order_acquire) - value) < 0) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

void meet(Shared& shared, int me, std::uint32_t& round) {
  ++round;
  shared.arrived[me].value.store(round, std::memory_order_release);
  spin_until(shared.arrived[1 - me], round);
}

void add(float* into, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] += from[i];
}

void add_to_both(float* a, float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}

void registered(Shared& shared, int me, std::uint32_t& round, float* mine, float* other,
                std::size_t count) {
  meet(shared, me, round);
  const std::size_t half = count / 2;
  if (me == 0) {
    add_to_both(mine, other, half);
  } else {
    add_to_both(mine + half, other + half, count - half);
  }
  meet(shared, me, round);
}

// Both send their whole buffer slot by slot and add what arrives: with two ranks this moves as
// many bytes as reduce-scatter plus all-gather and needs one phase less.
void staged(Shared& shared, int me, std::uint32_t& sent, float* mine, std::size_t count) {
  constexpr std::size_t kSlotFloats = kSlotBytes / sizeof(float);
  for (std::size_t begin = 0; begin < count; begin += kSlotFloats, ++sent) {
    const std::size_t length = std::min(kSlotFloats, count - begin);
    const std::uint32_t slot = sent % kSlots;
    if (sent >= kSlots) spin_until(shared.emptied[me], sent - kSlots + 1);
    std::memcpy(shared.slots[me][slot], mine + begin, length * sizeof(float));
    shared.filled[me].value.store(sent + 1, std::memory_order_release);
    spin_until(shared.filled[1 - me], sent + 1);
    add(mine + begin, shared.slots[1 - me][slot], length);
    shared.emptied[1 - me].value.store(sent + 1, std::memory_order_release);
  }
}

void futex_wait(Line& line, std::uint32_t value) {
  std::uint32_t seen = 0;
  while (static_cast<std::int32_t>((seen = line.value.load()) - value) < 0) {
    syscall(SYS_futex, &line.value, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
}

void futex_pingpong(Shared& shared, int me, std::uint32_t& round) {
  ++round;
  const auto tell = [&] {
    shared.arrived[me].value.store(round);
    syscall(SYS_futex, &shared.arrived[me].value, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  };
  if (me == 0) tell();
  futex_wait(shared.arrived[1 - me], round);
  if (me == 1) tell();
}

void line_pingpong(Shared& shared, int me, std::uint32_t& round) {
  ++round;
  if (me == 0) shared.arrived[0].value.store(round, std::memory_order_release);
  spin_until(shared.arrived[1 - me], round);
  if (me == 1) shared.arrived[1].value.store(round, std::memory_order_release);
}

void report(const char* name, std::size_t bytes, std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  std::printf("{\"case\": \"%s\", \"bytes\": %zu, \"min_us\": %.3f, \"p50_us\": %.3f}\n", name,
              bytes, us.front(), us[us.size() / 2]);
  std::fflush(stdout);
}

int iterations_for(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>((1u << 28) / (bytes + 1024), 7, 2000));
}

// Times `body(me, counter)` in two processes, each after `prepare` of the same; process 0
// reports.
template <typename Prepare, typename Body>
void measure(const char* name, std::size_t bytes, Prepare prepare, Body body) {
  const int iterations = iterations_for(bytes);
  const pid_t child = fork();
  const int me = child == 0 ? 1 : 0;
  std::uint32_t counter = 0;
  std::vector<double> us;
  for (int i = 0; i < iterations + 3; ++i) {
    prepare(me, counter);
    const auto start = Clock::now();
    body(me, counter);
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (i >= 3) us.push_back(took.count());
  }
  if (me == 1) _exit(0);
  waitpid(child, nullptr, 0);
  report(name, bytes, us);
}

void nothing(int, std::uint32_t&) {}

void registered_case(std::size_t bytes, bool again) {
  const std::size_t count = bytes / sizeof(float);
  auto* shared = new (map_shared(sizeof(Shared))) Shared;
  auto* both = static_cast<float*>(map_shared(2 * bytes + 128));
  std::fill_n(both, 2 * count, 0.0f);
  const auto place = [&](int me) { return both + (me == 0 ? 0 : count); };
  const auto fill = [&](int me, std::uint32_t& counter) {
    std::fill_n(place(me), count, 1.0f);
    meet(*shared, me, counter);
  };
  const auto reduce = [&](int me, std::uint32_t& counter) {
    registered(*shared, me, counter, place(me), place(1 - me), count);
  };
  if (again) {
    measure("registered_again", bytes, nothing, reduce);
  } else {
    measure("registered", bytes, fill, reduce);
  }
  munmap(both, 2 * bytes + 128);
  munmap(shared, sizeof(Shared));
}

void staged_case(std::size_t bytes, bool again) {
  const std::size_t count = bytes / sizeof(float);
  auto* shared = new (map_shared(sizeof(Shared))) Shared;
  std::vector<float> mine(count, 0.0f);
  std::uint32_t round = 0;  // each process has its own
  const auto fill = [&](int me, std::uint32_t&) {
    std::fill(mine.begin(), mine.end(), 1.0f);
    meet(*shared, me, round);
  };
  const auto reduce = [&](int me, std::uint32_t& counter) {
    staged(*shared, me, counter, mine.data(), count);
  };
  if (again) {
    measure("staged_again", bytes, nothing, reduce);
  } else {
    measure("staged", bytes, fill, reduce);
  }
  munmap(shared, sizeof(Shared));
}

void one_process_cases(std::size_t bytes) {
  const std::size_t count = bytes / sizeof(float);
  std::vector<float> a(count, 1.0f);
  std::vector<float> b(count, 2.0f);
  for (const bool copy : {true, false}) {
    std::vector<double> us;
    for (int i = 0; i < iterations_for(bytes); ++i) {
      const auto start = Clock::now();
      if (copy) {
        std::memcpy(b.data(), a.data(), bytes);
      } else {
        add(b.data(), a.data(), count);
      }
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      us.push_back(took.count());
    }
    report(copy ? "memcpy" : "add", bytes, us);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty())
    sizes = {1u << 10, 1u << 14, 1u << 18, 1u << 20, 1u << 22, 1u << 24, 1u << 26};
  auto* lines = new (map_shared(sizeof(Shared))) Shared;
  measure("pingpong_line", 64, nothing,
          [&](int me, std::uint32_t& counter) { line_pingpong(*lines, me, counter); });
  auto* sleepers = new (map_shared(sizeof(Shared))) Shared;
  measure("pingpong_futex", 64, nothing,
          [&](int me, std::uint32_t& counter) { futex_pingpong(*sleepers, me, counter); });
  for (const std::size_t bytes : sizes) {
    if (bytes < sizeof(float)) {
      std::fprintf(stderr, "floor_bench: bytes must be >= %zu, got %zu\n", sizeof(float),
                   bytes);
      return 2;
    }
    one_process_cases(bytes);
    for (const bool again : {false, true}) {
      registered_case(bytes, again);
      staged_case(bytes, again);
    }
  }
  return 0;
}
