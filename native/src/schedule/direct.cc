// Schedules in which data goes straight from its source to its destination.
//
// clique: everyone talks to everyone in one round (KungFu's CLIQUE: n stars, star i rooted at
//   rank i, each for chunk i). Fewest rounds, but n-1 senders meet at every port.
// pairwise: the same transfers, spread over n-1 rounds: in round k rank r sends to rank r+k+1,
// so
//   every port carries one message at a time. Source: Thakur, Rabenseifner and Gropp,
//   "Optimization of collective communication operations in MPICH", IJHPCA 2005.
// dissemination: barrier in ceil(log2 n) rounds; in round k rank r tells rank r+2^k. Source:
//   Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
#include "schedule/generator.h"

namespace kf {

namespace {

using std::size_t;

// Collects the transfers of one phase at a time.
class Direct {
 public:
  Direct(int n, bool spread) : n_(n), spread_(spread) {}

  // Adds a transfer to the running phase.
  void send(int src, int dst, int chunk, Combine combine) {
    const int offset = ((dst - src) % n_ + n_) % n_;
    const size_t round = spread_ ? static_cast<size_t>(offset - 1) : 0;
    add(channel_, phase_start_ + round, {src, dst, chunk, 1, combine});
  }

  void next_phase() { phase_start_ = channel_.rounds.size(); }

  // Everyone's contribution to chunk c goes to rank c.
  void reduce_scatter() {
    for (int src = 0; src < n_; ++src) {
      for (int dst = 0; dst < n_; ++dst) {
        if (src != dst) send(src, dst, dst, Combine::reduce);
      }
    }
    next_phase();
  }

  // Rank c's chunk goes to everyone, save to one that has it already (skip < 0: nobody).
  void all_gather(int skip) {
    for (int src = 0; src < n_; ++src) {
      for (int dst = 0; dst < n_; ++dst) {
        if (src != dst && dst != skip) send(src, dst, src, Combine::replace);
      }
    }
  }

  void gather(int root) {
    for (int src = 0; src < n_; ++src) {
      if (src != root) send(src, root, src, Combine::replace);
    }
  }

  void scatter(int root) {
    for (int dst = 0; dst < n_; ++dst) {
      if (dst != root) send(root, dst, dst, Combine::replace);
    }
    next_phase();
  }

  void all_to_all() {
    for (int src = 0; src < n_; ++src) {
      for (int dst = 0; dst < n_; ++dst) {
        if (src != dst) send(src, dst, src * n_ + dst, Combine::replace);
      }
    }
  }

  void barrier() {
    for (int src = 0; src < n_; ++src) {
      for (int dst = 0; dst < n_; ++dst) {
        if (src != dst) send(src, dst, 0, Combine::reduce);
      }
    }
  }

  Channel take() { return std::move(channel_); }

 private:
  int n_;
  bool spread_;
  size_t phase_start_ = 0;
  Channel channel_;
};

Schedule direct(const char* name, const Request& request, bool spread) {
  const int n = request.world_size;
  Schedule schedule = empty_schedule(name, request, n);
  Direct phases(n, spread);
  switch (request.collective) {
    case Collective::all_reduce:
      phases.reduce_scatter();
      phases.all_gather(-1);
      break;
    case Collective::reduce_scatter:
      phases.reduce_scatter();
      break;
    case Collective::all_gather:
      phases.all_gather(-1);
      break;
    case Collective::reduce:
      phases.reduce_scatter();
      phases.gather(request.root);
      break;
    case Collective::broadcast:
      phases.scatter(request.root);
      phases.all_gather(request.root);
      break;
    case Collective::gather:
      phases.gather(request.root);
      break;
    case Collective::scatter:
      phases.scatter(request.root);
      break;
    case Collective::all_to_all:
      schedule.chunk_count = n * n;
      phases.all_to_all();
      break;
    case Collective::barrier:
      schedule.chunk_count = 1;
      phases.barrier();
      break;
  }
  schedule.channels.push_back(phases.take());
  return schedule;
}

}  // namespace

Schedule build_clique(Arguments&, const Request& request) {
  return direct("clique", request, false);
}

Schedule build_pairwise(Arguments&, const Request& request) {
  return direct("pairwise", request, true);
}

Schedule build_dissemination(Arguments&, const Request& request) {
  const int n = request.world_size;
  Schedule schedule = empty_schedule("dissemination", request, 1);
  Channel channel;
  size_t round = 0;
  for (int distance = 1; distance < n; distance *= 2, ++round) {
    for (int rank = 0; rank < n; ++rank) {
      add(channel, round, {rank, (rank + distance) % n, 0, 1, Combine::reduce});
    }
  }
  schedule.channels.push_back(std::move(channel));
  return schedule;
}

}  // namespace kf
