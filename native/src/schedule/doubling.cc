// Recursive doubling (fewest rounds) and recursive halving-doubling (fewest bytes).
//
// Both need 2^k ranks. With n = 2^k + rem ranks, rank 2i+1 first folds into rank 2i, for i <
// rem: the 2^k ranks left are numbered v = 0.. and work; at the end 2i tells 2i+1. Blocks: rank
// v stands for a run of chunks. While halving, v and v^d exchange the halves they do not keep
// (d = 2^(k-1)..1), so v ends with the sum of its own block; while doubling (d = 1..) they
// exchange all they have. Source: Rabenseifner, "Optimization of collective reduction
// operations", ICCS 2004; Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", 2005.
#include <bit>

#include "schedule/generator.h"

namespace kf {

namespace {

using std::size_t;

// How the buffer is cut: not at all, a chunk for each working rank, or chunk r owned by rank r.
enum class Cut { whole, blocks, owned };

class Doubling {
 public:
  // Ranks are numbered from `root`, so that it is working rank 0.
  Doubling(int n, Cut cut, int root)
      : n_(n),
        working_(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))),
        folded_(n - working_),
        cut_(cut),
        root_(root) {}

  int chunk_count() const {
    if (cut_ == Cut::whole) return 1;
    return cut_ == Cut::owned ? n_ : working_;
  }

  void fold(Combine combine, bool own_chunk_only) {
    for (int v = 0; v < folded_; ++v) {
      const int first = own_chunk_only ? first_chunk(v) + 1 : 0;
      send(folded_rank(v), rank(v), first, own_chunk_only ? 1 : chunk_count(), combine);
    }
    next_round();
  }

  // skip_own: the folded rank has its own chunk already.
  void unfold_all(bool skip_own) {
    for (int v = 0; v < folded_; ++v) {
      if (!skip_own) {
        send(rank(v), folded_rank(v), 0, chunk_count(), Combine::replace);
        continue;
      }
      const int own = first_chunk(v) + 1;
      send(rank(v), folded_rank(v), 0, own, Combine::replace);
      send(rank(v), folded_rank(v), own + 1, n_ - own - 1, Combine::replace);
    }
    next_round();
  }

  void unfold_own() {
    for (int v = 0; v < folded_; ++v) {
      send(rank(v), folded_rank(v), first_chunk(v) + 1, 1, Combine::replace);
    }
    next_round();
  }

  void halve() {
    for (int d = working_ / 2; d >= 1; d /= 2) {
      for (int v = 0; v < working_; ++v)
        send_blocks(v, v ^ d, (v ^ d) & ~(d - 1), d, Combine::reduce);
      next_round();
    }
  }

  // after_scatter: rank v got the blocks [v, v + lowest bit of v) from scatter(); they are not
  // sent to it again.
  void double_up(bool after_scatter) {
    for (int d = 1; d < working_; d *= 2) {
      for (int v = 0; v < working_; ++v) {
        const int partner = v ^ d;
        if (after_scatter && partner % (2 * d) == 0) continue;
        send_blocks(v, partner, v & ~(d - 1), d, Combine::replace);
      }
      next_round();
    }
  }

  void exchange_everything() {
    for (int d = 1; d < working_; d *= 2) {
      for (int v = 0; v < working_; ++v)
        send(rank(v), rank(v ^ d), 0, chunk_count(), Combine::reduce);
      next_round();
    }
  }

  // Working rank v's block climbs a binomial tree to working rank 0.
  void gather() {
    for (int d = 1; d < working_; d *= 2) {
      for (int v = d; v < working_; v += 2 * d) send_blocks(v, v - d, v, d, Combine::replace);
      next_round();
    }
  }

  void scatter() {
    for (int d = working_ / 2; d >= 1; d /= 2) {
      for (int v = 0; v < working_; v += 2 * d)
        send_blocks(v, v + d, v + d, d, Combine::replace);
      next_round();
    }
  }

  Channel take() { return std::move(channel_); }

 private:
  int number(int from_root) const { return (from_root + root_) % n_; }
  int rank(int v) const { return number(v < folded_ ? 2 * v : v + folded_); }
  int folded_rank(int v) const { return number(2 * v + 1); }

  int first_chunk(int v) const {
    if (cut_ != Cut::owned) return v;
    return v < folded_ ? 2 * v : v + folded_;
  }

  void send_blocks(int v, int to, int first_block, int blocks, Combine combine) {
    const int begin = first_chunk(first_block);
    send(rank(v), rank(to), begin, first_chunk(first_block + blocks) - begin, combine);
  }

  void send(int src, int dst, int begin, int count, Combine combine) {
    if (count > 0) add(channel_, round_, {src, dst, begin, count, combine});
  }

  void next_round() { ++round_; }

  int n_;
  int working_;
  int folded_;
  Cut cut_;
  int root_;
  size_t round_ = 0;
  Channel channel_;
};

Cut cut_of(Collective collective) {
  const bool owned =
      collective == Collective::reduce_scatter || collective == Collective::all_gather;
  return owned ? Cut::owned : Cut::blocks;
}

bool is_rooted(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast;
}

Schedule finish(const char* name, const Request& request, Doubling& steps) {
  Schedule schedule = empty_schedule(name, request, steps.chunk_count());
  schedule.channels.push_back(steps.take());
  return schedule;
}

void all_gather(Doubling& steps) {
  steps.fold(Combine::replace, true);
  steps.double_up(false);
  steps.unfold_all(true);
}

}  // namespace

Schedule build_recursive_doubling(Arguments&, const Request& request) {
  const bool gathers = request.collective == Collective::all_gather;
  Doubling steps(request.world_size, gathers ? Cut::owned : Cut::whole, 0);
  if (gathers) {
    all_gather(steps);
  } else {
    steps.fold(Combine::reduce, false);
    steps.exchange_everything();
    steps.unfold_all(false);
  }
  return finish("recursive_doubling", request, steps);
}

Schedule build_halving_doubling(Arguments&, const Request& request) {
  const int root = is_rooted(request.collective) ? request.root : 0;
  Doubling steps(request.world_size, cut_of(request.collective), root);
  switch (request.collective) {
    case Collective::all_reduce:
      steps.fold(Combine::reduce, false);
      steps.halve();
      steps.double_up(false);
      steps.unfold_all(false);
      break;
    case Collective::reduce_scatter:
      steps.fold(Combine::reduce, false);
      steps.halve();
      steps.unfold_own();
      break;
    case Collective::all_gather:
      all_gather(steps);
      break;
    case Collective::reduce:
      steps.fold(Combine::reduce, false);
      steps.halve();
      steps.gather();
      break;
    case Collective::broadcast:
      steps.scatter();
      steps.double_up(true);
      steps.unfold_all(false);
      break;
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all:
    case Collective::barrier:
      break;  // not offered
  }
  return finish("halving_doubling", request, steps);
}

}  // namespace kf
