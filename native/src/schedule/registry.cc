#include <algorithm>
#include <utility>

#include "kf/generators.h"
#include "schedule/generator.h"

namespace kf {

namespace {

using enum Collective;

const std::vector<Collective> kTreeLike = {all_reduce, reduce,  broadcast,
                                           gather,     scatter, barrier};

std::string list(const std::vector<Collective>& collectives) {
  std::string text;
  for (const Collective collective : collectives) {
    append(text, to_string(collective));
  }
  return text;
}

std::string generators_offering(Collective collective) {
  std::string text;
  for (const Generator& generator : generators()) {
    if (offers(generator, collective)) append(text, generator.name);
  }
  return text;
}

void check(const Generator& generator, const Request& request) {
  if (request.world_size < 1 || request.world_size > kMaxWorldSize) {
    throw_usage("world_size must be in [1, " + std::to_string(kMaxWorldSize) + "], got " +
                std::to_string(request.world_size));
  }
  if (request.root < 0 || request.root >= request.world_size) {
    throw_usage("root must be in [0, " + std::to_string(request.world_size) + "), got " +
                std::to_string(request.root));
  }
  if (!offers(generator, request.collective)) {
    throw_usage(std::string("schedule ") + generator.name + " does not offer " +
                to_string(request.collective) + "; it offers " + list(generator.collectives) +
                ". " + to_string(request.collective) + " is offered by " +
                generators_offering(request.collective));
  }
}

// Rounds and channels without transfers say nothing; executors need not meet them.
void drop_empty(Schedule& schedule) {
  for (Channel& channel : schedule.channels) {
    std::erase_if(channel.rounds, [](const Round& round) { return round.empty(); });
  }
  std::erase_if(schedule.channels,
                [](const Channel& channel) { return channel.rounds.empty(); });
  if (schedule.world_size == 1) schedule.chunk_count = 1;
}

}  // namespace

const std::vector<Generator>& generators() {
  static const std::vector<Generator> all = {
      {"auto",
       {all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter, all_to_all,
        barrier},
       build_auto},
      {"binary_tree", kTreeLike, build_binary_tree},
      {"binary_tree_star", kTreeLike, build_binary_tree_star},
      {"binomial_tree", kTreeLike, build_binomial_tree},
      {"clique",
       {all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter, all_to_all,
        barrier},
       build_clique},
      {"custom",
       {all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter, all_to_all,
        barrier},
       build_custom},
      {"dissemination", {barrier}, build_dissemination},
      {"double_binary_tree", kTreeLike, build_double_binary_tree},
      {"forest", kTreeLike, build_forest},
      {"from_parents", kTreeLike, build_from_parents},
      {"halving_doubling",
       {all_reduce, reduce, broadcast, reduce_scatter, all_gather},
       build_halving_doubling},
      {"hierarchical", {all_reduce}, build_hierarchical},
      {"multi_binary_tree_star", kTreeLike, build_multi_binary_tree_star},
      {"pairwise",
       {all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter, all_to_all},
       build_pairwise},
      {"recursive_doubling", {all_reduce, all_gather, barrier}, build_recursive_doubling},
      {"ring",
       {all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter, barrier},
       build_ring},
      {"star", kTreeLike, build_star},
      {"tree", kTreeLike, build_tree},
  };
  return all;
}

const Generator& find_generator(std::string_view name) {
  std::string known;
  for (const Generator& generator : generators()) {
    if (name == generator.name) return generator;
    append(known, generator.name);
  }
  throw_usage("no schedule is called \"" + std::string(name) + "\"; there are " + known);
}

bool uses_root(Collective collective) noexcept {
  return collective == reduce || collective == broadcast || collective == gather ||
         collective == scatter;
}

bool offers(const Generator& generator, Collective collective) noexcept {
  return std::find(generator.collectives.begin(), generator.collectives.end(), collective) !=
         generator.collectives.end();
}

Schedule empty_schedule(std::string name, const Request& request, int chunk_count) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.collective = request.collective;
  schedule.world_size = request.world_size;
  schedule.root = request.root;
  schedule.chunk_count = chunk_count;
  return schedule;
}

void add(Channel& channel, std::size_t index, const Transfer& transfer) {
  if (channel.rounds.size() <= index) channel.rounds.resize(index + 1);
  channel.rounds[index].push_back(transfer);
}

Schedule build_schedule(std::string_view text, Collective collective, int world_size,
                        int root) {
  Arguments arguments(parse_spec(text));
  const Generator& generator = find_generator(arguments.generator());
  const Request request{collective, world_size, root};
  check(generator, request);
  Schedule schedule = generator.build(arguments, request);
  arguments.finish();
  if (!uses_root(collective)) schedule.root = 0;
  drop_empty(schedule);
  return schedule;
}

std::vector<std::string> generator_names() {
  std::vector<std::string> names;
  for (const Generator& generator : generators()) names.emplace_back(generator.name);
  return names;
}

std::vector<Collective> collectives_of(std::string_view text) {
  Arguments arguments(parse_spec(text));
  const Generator& generator = find_generator(arguments.generator());
  if (generator.build == build_custom && arguments.has("collective")) {
    return {collective_of_custom(arguments, all_reduce)};
  }
  return generator.collectives;
}

void check_spec(std::string_view text, int world_size) {
  Arguments arguments(parse_spec(text));
  const bool written_out = find_generator(arguments.generator()).build == build_custom;
  const int root = written_out ? arguments.integer("root", 0, 0, world_size - 1) : 0;
  build_schedule(text, collectives_of(text).front(), world_size, root);
}

}  // namespace kf
