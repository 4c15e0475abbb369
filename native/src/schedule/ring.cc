// Ring. Position p sends to position p+1 only; with `order` position p is held by rank
// order[p].
//
// all_reduce is reduce_scatter, then all_gather. In round s of reduce_scatter position p sends
// chunk p-s-1, so that the sum of chunk p is complete at position p after n-1 rounds; in round
// s of all_gather it sends chunk p-s, which it received (or owned) just before. Source:
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// JPDC 2009.
//
// The rooted collectives use the ring as a chain that starts at the root: broadcast and reduce
// are cut into n chunks that follow each other down the chain, so each link carries the buffer
// once and is busy in n of 2n-2 rounds.
#include <algorithm>
#include <numeric>

#include "schedule/generator.h"

namespace kf {

namespace {

using std::size_t;

// The cyclic order of ranks, with positions taken modulo n.
struct Ring {
  std::vector<int> order;

  int n() const { return static_cast<int>(order.size()); }
  int at(int position) const {
    return order[static_cast<size_t>(((position % n()) + n()) % n())];
  }
};

// Every round moves one chunk over every link of the ring.
void rotate(const Ring& ring, Channel& channel, int first_shift, Combine combine) {
  const size_t start = channel.rounds.size();
  for (int s = 0; s < ring.n() - 1; ++s) {
    for (int p = 0; p < ring.n(); ++p) {
      const int chunk = ring.at(p - s - first_shift);
      add(channel, start + static_cast<size_t>(s),
          {ring.at(p), ring.at(p + 1), chunk, 1, combine});
    }
  }
}

// A token that meets everyone (reduce), then tells everyone (replace).
Channel barrier_rounds(const Ring& ring) {
  Channel channel;
  const auto last = static_cast<size_t>(ring.n() - 1);
  for (int p = 0; p + 1 < ring.n(); ++p) {
    add(channel, static_cast<size_t>(p), {ring.at(p), ring.at(p + 1), 0, 1, Combine::reduce});
    add(channel, last + static_cast<size_t>(p),
        {ring.at(p - 1), ring.at(p), 0, 1, Combine::replace});
  }
  return channel;
}

// Chain positions count from the root. Chunk c crosses link d -> d+1 in round c + d
// (broadcast), or link d+1 -> d in round c + (n-2-d) (reduce).
Channel pipelined_chain(const Ring& chain, Collective collective) {
  Channel channel;
  const int n = chain.n();
  for (int chunk = 0; chunk < n; ++chunk) {
    for (int d = 0; d + 1 < n; ++d) {
      if (collective == Collective::broadcast) {
        add(channel, static_cast<size_t>(chunk + d),
            {chain.at(d), chain.at(d + 1), chunk, 1, Combine::replace});
      } else {
        add(channel, static_cast<size_t>(chunk + n - 2 - d),
            {chain.at(d + 1), chain.at(d), chunk, 1, Combine::reduce});
      }
    }
  }
  return channel;
}

// The chunk owned at distance `owner` passes every link between it and the root. Gather:
// nearest first; scatter: farthest first; so no link ever carries two chunks in one round.
Channel owned_chain(const Ring& chain, Collective collective) {
  Channel channel;
  const int n = chain.n();
  for (int owner = 1; owner < n; ++owner) {
    const int chunk = chain.at(owner);
    for (int d = 0; d < owner; ++d) {
      if (collective == Collective::scatter) {
        add(channel, static_cast<size_t>(n - 1 - owner + d),
            {chain.at(d), chain.at(d + 1), chunk, 1, Combine::replace});
      } else {
        add(channel, static_cast<size_t>(owner - 1 - d),
            {chain.at(d + 1), chain.at(d), chunk, 1, Combine::replace});
      }
    }
  }
  return channel;
}

std::vector<int> read_order(const std::string& text, int n) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (text.empty()) return order;
  std::vector<int> given = parse_int_list(text, "ring's order");
  std::vector<int> sorted = given;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != order) {
    throw_usage("ring's order must hold each rank of [0, " + std::to_string(n) +
                ") once, got " + text);
  }
  return given;
}

std::string ring_name(const std::vector<int>& order) {
  if (std::is_sorted(order.begin(), order.end())) return "ring";
  return "ring(order=(" + join(order) + "))";
}

Ring chain_from(const Ring& ring, int root) {
  Ring chain = ring;
  std::rotate(chain.order.begin(), std::find(chain.order.begin(), chain.order.end(), root),
              chain.order.end());
  return chain;
}

}  // namespace

Schedule build_ring(Arguments& arguments, const Request& request) {
  const int n = request.world_size;
  const Ring ring{read_order(arguments.text("order", ""), n)};
  Schedule schedule = empty_schedule(ring_name(ring.order), request, n);
  Channel channel;
  switch (request.collective) {
    case Collective::all_reduce:
      rotate(ring, channel, 1, Combine::reduce);
      rotate(ring, channel, 0, Combine::replace);
      break;
    case Collective::reduce_scatter:
      rotate(ring, channel, 1, Combine::reduce);
      break;
    case Collective::all_gather:
      rotate(ring, channel, 0, Combine::replace);
      break;
    case Collective::reduce:
    case Collective::broadcast:
      channel = pipelined_chain(chain_from(ring, request.root), request.collective);
      break;
    case Collective::gather:
    case Collective::scatter:
      channel = owned_chain(chain_from(ring, request.root), request.collective);
      break;
    case Collective::barrier:
      channel = barrier_rounds(ring);
      schedule.chunk_count = 1;
      break;
    case Collective::all_to_all:
      break;  // not offered: every block would cross n/2 links
  }
  schedule.channels.push_back(std::move(channel));
  return schedule;
}

}  // namespace kf
