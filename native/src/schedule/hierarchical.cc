// Hierarchical all-reduce: one schedule inside hosts, another between them.
//
// Where all hosts have k ranks and the inner schedule offers reduce_scatter and all_gather:
//   1. reduce_scatter inside each host: local rank j has the host's sum of part j;
//   2. all_reduce of part j between the ranks j of all hosts, k of them side by side;
//   3. all_gather inside each host.
// So each port between hosts carries 1/k of the buffer. Otherwise (unequal hosts, or a tree
// inside): reduce to each host's first rank, all_reduce between these, broadcast inside.
// Source: Horovod's hierarchical all-reduce (first form); KungFu's *_TREE_STAR (second form).
#include <algorithm>
#include <numeric>

#include "kf/generators.h"
#include "schedule/generator.h"

namespace kf {

namespace {

using std::size_t;

constexpr int kMaxChunks = 1 << 20;

// How the ranks and chunks of a part of the schedule are called in the whole.
struct Embedding {
  std::vector<int> rank;  // of each rank of the part
  int first_chunk;        // where the part's chunk 0 begins
  int chunk_scale;        // chunks of the whole in each chunk of the part
};

// Several parts that run side by side, one phase of one channel. Channels of a part touch
// different chunks, so their rounds can be laid over each other.
void lay(Channel& channel, size_t start, const Schedule& part, const Embedding& as) {
  for (const Channel& inner : part.channels) {
    for (size_t r = 0; r < inner.rounds.size(); ++r) {
      for (const Transfer& t : inner.rounds[r]) {
        add(channel, start + r,
            {as.rank[static_cast<size_t>(t.src)], as.rank[static_cast<size_t>(t.dst)],
             as.first_chunk + t.chunk_begin * as.chunk_scale, t.chunk_count * as.chunk_scale,
             t.combine});
      }
    }
  }
}

struct Layout {
  int world_size;
  int ranks_per_host;
  std::string intra;
  std::string inter;

  int hosts() const { return (world_size + ranks_per_host - 1) / ranks_per_host; }
  int size_of(int host) const {
    return std::min(ranks_per_host, world_size - host * ranks_per_host);
  }
  std::vector<int> ranks_of(int host) const {
    std::vector<int> ranks(static_cast<size_t>(size_of(host)));
    std::iota(ranks.begin(), ranks.end(), host * ranks_per_host);
    return ranks;
  }
  // The ranks that stand at the same place in their hosts.
  std::vector<int> across(int local_rank) const {
    std::vector<int> ranks;
    for (int host = 0; host < hosts(); ++host)
      ranks.push_back(host * ranks_per_host + local_rank);
    return ranks;
  }
};

void cut(Schedule& whole, std::int64_t chunks) {
  if (chunks > kMaxChunks) {
    throw_usage("hierarchical needs " + std::to_string(chunks) + " chunks here; at most " +
                std::to_string(kMaxChunks) + " are allowed. Choose hosts of equal size");
  }
  whole.chunk_count = static_cast<int>(chunks);
}

std::string name_of(const Layout& layout, const Schedule& intra, const Schedule& inter) {
  return "hierarchical(intra=" + intra.name + ",inter=" + inter.name +
         ",ranks_per_host=" + std::to_string(layout.ranks_per_host) + ")";
}

void scattered(Schedule& whole, const Layout& layout) {
  const int k = layout.ranks_per_host;
  const Schedule first = build_schedule(layout.intra, Collective::reduce_scatter, k);
  const Schedule last = build_schedule(layout.intra, Collective::all_gather, k);
  const Schedule between = build_schedule(layout.inter, Collective::all_reduce, layout.hosts());
  cut(whole, std::int64_t{k} * between.chunk_count);
  whole.name = name_of(layout, first, between);
  Channel& channel = whole.channels.emplace_back();
  const auto inside = [&](const Schedule& part) {
    const size_t start = channel.rounds.size();
    for (int host = 0; host < layout.hosts(); ++host) {
      lay(channel, start, part,
          {layout.ranks_of(host), 0, whole.chunk_count / part.chunk_count});
    }
  };
  inside(first);
  const size_t start = channel.rounds.size();
  for (int j = 0; j < k; ++j) {
    lay(channel, start, between, {layout.across(j), j * between.chunk_count, 1});
  }
  inside(last);
}

void through_leaders(Schedule& whole, const Layout& layout) {
  std::vector<Schedule> up;
  std::vector<Schedule> down;
  const Schedule between = build_schedule(layout.inter, Collective::all_reduce, layout.hosts());
  std::int64_t chunks = between.chunk_count;
  for (int host = 0; host < layout.hosts(); ++host) {
    up.push_back(build_schedule(layout.intra, Collective::reduce, layout.size_of(host)));
    down.push_back(build_schedule(layout.intra, Collective::broadcast, layout.size_of(host)));
    chunks = std::lcm(chunks, std::lcm(up.back().chunk_count, down.back().chunk_count));
    cut(whole, chunks);  // inside the loop, so that the product cannot overflow
  }
  whole.name = name_of(layout, up.front(), between);
  Channel& channel = whole.channels.emplace_back();
  const auto inside = [&](const std::vector<Schedule>& parts) {
    const size_t start = channel.rounds.size();
    for (int host = 0; host < layout.hosts(); ++host) {
      const Schedule& part = parts[static_cast<size_t>(host)];
      lay(channel, start, part,
          {layout.ranks_of(host), 0, whole.chunk_count / part.chunk_count});
    }
  };
  inside(up);
  lay(channel, channel.rounds.size(), between,
      {layout.across(0), 0, whole.chunk_count / between.chunk_count});
  inside(down);
}

}  // namespace

Schedule build_hierarchical(Arguments& arguments, const Request& request) {
  Layout layout{request.world_size, arguments.integer("ranks_per_host", 1, 1, kMaxWorldSize),
                arguments.text("intra", "ring"), arguments.text("inter", "ring")};
  const Generator& inner = find_generator(parse_spec(layout.intra).name);
  Schedule whole = empty_schedule("", request, 1);
  if (layout.world_size % layout.ranks_per_host == 0 &&
      offers(inner, Collective::reduce_scatter) && offers(inner, Collective::all_gather)) {
    scattered(whole, layout);
  } else {
    through_leaders(whole, layout);
  }
  return whole;
}

}  // namespace kf
