#include "kf/validate.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schedule/generator.h"

namespace kf {

namespace {

using std::size_t;
using Word = std::uint64_t;

constexpr int kWordBits = 64;
constexpr size_t kMemoryBytes = size_t{64} << 20;
constexpr int kMaxChunks = 1 << 20;  // bounds what a schedule file can make a reader allocate

std::string text(int value) {
  return std::to_string(value);
}

[[noreturn]] void fail(const Schedule& schedule, const std::string& what) {
  throw_usage("schedule " + schedule.name + " (" + to_string(schedule.collective) + ", " +
              text(schedule.world_size) + " ranks) is wrong: " + what);
}

struct Place {
  size_t channel;
  size_t round;
};

std::string text(const Place& place, const Transfer& transfer) {
  return "channel " + std::to_string(place.channel) + ", round " + std::to_string(place.round) +
         ", rank " + text(transfer.src) + " to rank " + text(transfer.dst) + ": ";
}

template <typename Visit>
void for_each_transfer(const Schedule& schedule, Visit visit) {
  for (size_t c = 0; c < schedule.channels.size(); ++c) {
    const auto& rounds = schedule.channels[c].rounds;
    for (size_t r = 0; r < rounds.size(); ++r) {
      for (const Transfer& transfer : rounds[r]) visit(Place{c, r}, transfer);
    }
  }
}

bool sums(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter || collective == Collective::barrier;
}

bool owned(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather ||
         collective == Collective::gather || collective == Collective::scatter;
}

void check_header(const Schedule& schedule) {
  const int n = schedule.world_size;
  if (n < 1 || n > kMaxWorldSize) {
    fail(schedule, "world_size must be in [1, " + text(kMaxWorldSize) + "], got " + text(n));
  }
  if (schedule.root < 0 || schedule.root >= n) {
    fail(schedule, "root must be in [0, " + text(n) + "), got " + text(schedule.root));
  }
  if (schedule.chunk_count < 1) {
    fail(schedule, "chunk_count must be >= 1, got " + text(schedule.chunk_count));
  }
  if (owned(schedule.collective) && schedule.chunk_count % n != 0) {
    fail(schedule, "chunk_count must be a multiple of world_size, because every rank owns " +
                       std::string("equally many chunks; got ") + text(schedule.chunk_count));
  }
  if (schedule.collective == Collective::all_to_all && schedule.chunk_count != n * n) {
    fail(schedule, "chunk_count must be " + text(n * n) +
                       " (a chunk for each pair of ranks), got " + text(schedule.chunk_count));
  }
  if (schedule.collective != Collective::all_to_all && schedule.chunk_count > kMaxChunks) {
    fail(schedule,
         "chunk_count must be <= " + text(kMaxChunks) + ", got " + text(schedule.chunk_count));
  }
}

void check_ranges(const Schedule& schedule) {
  const int n = schedule.world_size;
  const int chunks = schedule.chunk_count;
  for_each_transfer(schedule, [&](Place place, const Transfer& transfer) {
    const auto wrong = [&](const std::string& what) {
      fail(schedule, text(place, transfer) + what);
    };
    if (transfer.src < 0 || transfer.src >= n || transfer.dst < 0 || transfer.dst >= n) {
      wrong("ranks must be in [0, " + text(n) + ")");
    }
    if (transfer.src == transfer.dst) wrong("a rank cannot send to itself");
    if (transfer.chunk_count < 1 || transfer.chunk_begin < 0 ||
        transfer.chunk_begin > chunks - transfer.chunk_count) {
      wrong("chunks must be a run inside [0, " + text(chunks) + "), got " +
            text(transfer.chunk_count) + " from " + text(transfer.chunk_begin));
    }
  });
}

void check_channels_are_disjoint(const Schedule& schedule) {
  constexpr size_t kNobody = ~size_t{0};
  std::vector<size_t> user(static_cast<size_t>(schedule.chunk_count), kNobody);
  for_each_transfer(schedule, [&](Place place, const Transfer& transfer) {
    for (int i = 0; i < transfer.chunk_count; ++i) {
      size_t& channel = user[static_cast<size_t>(transfer.chunk_begin + i)];
      if (channel == kNobody) channel = place.channel;
      if (channel == place.channel) continue;
      fail(schedule, text(place, transfer) + "chunk " + text(transfer.chunk_begin + i) +
                         " is used by channel " + std::to_string(channel) +
                         " too; channels must use chunks of their own");
    }
  });
}

// Executes the schedule on sets of contributions, for the chunks [first, first + count) only:
// chunks never mix, so they can be proved in blocks that fit in memory.
class Symbolic {
 public:
  // Where only one rank has anything to give to a chunk, one contribution stands for it.
  explicit Symbolic(const Schedule& schedule)
      : schedule_(schedule),
        n_(schedule.world_size),
        contributions_(sums(schedule.collective) ? n_ : 1),
        words_(static_cast<size_t>((contributions_ + kWordBits - 1) / kWordBits)) {}

  int chunks_that_fit() const {
    const size_t bytes_per_chunk =
        static_cast<size_t>(n_) * (words_ * sizeof(Word) + sizeof(Write));
    return static_cast<int>(std::clamp<size_t>(kMemoryBytes / bytes_per_chunk, 1,
                                               static_cast<size_t>(schedule_.chunk_count)));
  }

  void prove(int first, int count) {
    first_ = first;
    count_ = count;
    const size_t cells = static_cast<size_t>(n_) * static_cast<size_t>(count);
    sets_.assign(cells * words_, 0);
    writes_.assign(cells, Write{});
    for (int rank = 0; rank < n_; ++rank) {
      for (int c = first; c < first + count; ++c) give(rank, c);
    }
    int stamp = 0;
    for (size_t c = 0; c < schedule_.channels.size(); ++c) {
      const auto& rounds = schedule_.channels[c].rounds;
      for (size_t r = 0; r < rounds.size(); ++r) run(Place{c, r}, rounds[r], ++stamp);
    }
    for (int rank = 0; rank < n_; ++rank) {
      for (int c = first; c < first + count; ++c) check_end(rank, c);
    }
  }

 private:
  struct Write {
    int stamp = 0;  // number of the last round that wrote the cell
    Combine combine = Combine::reduce;
  };

  size_t cell(int rank, int chunk) const {
    return static_cast<size_t>(rank) * static_cast<size_t>(count_) +
           static_cast<size_t>(chunk - first_);
  }
  Word* set(int rank, int chunk) { return sets_.data() + cell(rank, chunk) * words_; }

  int owner(int chunk) const { return chunk / (schedule_.chunk_count / n_); }

  void give(int rank, int chunk) {
    bool has = true;
    switch (schedule_.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
      case Collective::reduce_scatter:
      case Collective::barrier:
        set(rank, chunk)[rank / kWordBits] |= Word{1} << (rank % kWordBits);
        return;
      case Collective::broadcast:
      case Collective::scatter:
        has = rank == schedule_.root;
        break;
      case Collective::all_gather:
      case Collective::gather:
      case Collective::all_to_all:
        has = rank == owner(chunk);
        break;
    }
    set(rank, chunk)[0] = has ? 1 : 0;
  }

  bool must_hold(int rank, int chunk) const {
    switch (schedule_.collective) {
      case Collective::all_reduce:
      case Collective::broadcast:
      case Collective::all_gather:
      case Collective::barrier:
        return true;
      case Collective::reduce:
      case Collective::gather:
        return rank == schedule_.root;
      case Collective::reduce_scatter:
      case Collective::scatter:
        return rank == owner(chunk);
      case Collective::all_to_all:
        return rank == chunk % n_;
    }
    return true;
  }

  // All reads happen before any write: a transfer sends what stood there when the round began.
  void run(Place place, const Round& round, int stamp) {
    read_.clear();
    visit(round, [&](const Transfer& transfer, int chunk) {
      const Word* source = set(transfer.src, chunk);
      read_.insert(read_.end(), source, source + words_);
      if (std::all_of(source, source + words_, [](Word word) { return word == 0; })) {
        fail(schedule_, text(place, transfer) + "rank " + text(transfer.src) +
                            " has nothing in chunk " + text(chunk) + " yet");
      }
    });
    const Word* incoming = read_.data();
    visit(round, [&](const Transfer& transfer, int chunk) {
      check_write(place, transfer, chunk, stamp);
      if (transfer.combine == Combine::replace) {
        std::copy(incoming, incoming + words_, set(transfer.dst, chunk));
      } else {
        add_set(place, transfer, chunk, incoming);
      }
      incoming += words_;
    });
  }

  template <typename Visit>
  void visit(const Round& round, Visit each) {
    for (const Transfer& transfer : round) {
      const int begin = std::max(transfer.chunk_begin, first_);
      const int end = std::min(transfer.chunk_begin + transfer.chunk_count, first_ + count_);
      for (int chunk = begin; chunk < end; ++chunk) each(transfer, chunk);
    }
  }

  void check_write(Place place, const Transfer& transfer, int chunk, int stamp) {
    Write& last = writes_[cell(transfer.dst, chunk)];
    const bool both_reduce =
        last.combine == Combine::reduce && transfer.combine == Combine::reduce;
    if (last.stamp == stamp && !both_reduce) {
      fail(schedule_, text(place, transfer) + "chunk " + text(chunk) + " of rank " +
                          text(transfer.dst) + " is written twice in this round");
    }
    last = {stamp, transfer.combine};
  }

  void add_set(Place place, const Transfer& transfer, int chunk, const Word* incoming) {
    Word* target = set(transfer.dst, chunk);
    bool holds_nothing = true;
    for (size_t w = 0; w < words_; ++w) {
      const Word twice = target[w] & incoming[w];
      holds_nothing = holds_nothing && target[w] == 0;
      if (twice != 0 && schedule_.collective != Collective::barrier) {
        fail(schedule_, text(place, transfer) + "adds " + contribution(w, twice) +
                            " to chunk " + text(chunk) +
                            ", which has it already; each must count once");
      }
      target[w] |= incoming[w];
    }
    if (holds_nothing) {
      fail(schedule_, text(place, transfer) + "adds to chunk " + text(chunk) +
                          ", in which the receiver has nothing yet");
    }
  }

  std::string contribution(size_t word, Word bits) const {
    if (contributions_ == 1) return "the data";
    const int rank = static_cast<int>(word) * kWordBits + std::countr_zero(bits);
    return "the contribution of rank " + text(rank);
  }

  void check_end(int rank, int chunk) {
    if (!must_hold(rank, chunk)) return;
    const Word* held = set(rank, chunk);
    for (size_t w = 0; w < words_; ++w) {
      const int left = contributions_ - static_cast<int>(w) * kWordBits;
      const Word all = left >= kWordBits ? ~Word{0} : (Word{1} << left) - 1;
      if (held[w] == all) continue;
      fail(schedule_, "after the last round chunk " + text(chunk) + " of rank " + text(rank) +
                          " lacks " + contribution(w, all & ~held[w]));
    }
  }

  const Schedule& schedule_;
  int n_;
  int contributions_;
  size_t words_;  // per cell
  int first_ = 0;
  int count_ = 0;
  std::vector<Word> sets_;
  std::vector<Write> writes_;
  std::vector<Word> read_;  // what the transfers of the running round carry
};

}  // namespace

void check_numbers(const Schedule& schedule) {
  check_header(schedule);
  check_ranges(schedule);
}

void validate(const Schedule& schedule) {
  check_numbers(schedule);
  check_channels_are_disjoint(schedule);
  Symbolic proof(schedule);
  const int block = proof.chunks_that_fit();
  for (int first = 0; first < schedule.chunk_count; first += block) {
    proof.prove(first, std::min(block, schedule.chunk_count - first));
  }
}

}  // namespace kf
