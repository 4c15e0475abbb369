// Schedules as read-only Python values; kfcore/schedule.py is the public face.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "bindings.h"
#include "kf/choose.h"
#include "kf/cost.h"
#include "kf/generators.h"
#include "kf/schedule.h"
#include "kf/validate.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {

namespace {

using Rounds = std::vector<std::vector<Transfer>>;

std::vector<Rounds> rounds_of(const Schedule& schedule) {
  std::vector<Rounds> channels;
  for (const Channel& channel : schedule.channels) channels.push_back(channel.rounds);
  return channels;
}

Schedule make_schedule(const std::string& name, const std::string& collective, int world_size,
                       int root, int chunk_count, const std::vector<Rounds>& channels) {
  Schedule schedule{name, collective_from_string(collective), world_size, root, chunk_count,
                    {}};
  for (const Rounds& rounds : channels) schedule.channels.push_back(Channel{rounds});
  return schedule;
}

}  // namespace

void bind_schedule(nb::module_& m) {
  nb::class_<Transfer>(m, "Transfer", "One message: src sends dst a run of chunks in a round.")
      .def(
          "__init__",
          [](Transfer* self, int src, int dst, int chunk_begin, int chunk_count,
             const std::string& combine) {
            new (self)
                Transfer{src, dst, chunk_begin, chunk_count, combine_from_string(combine)};
          },
          "src"_a, "dst"_a, "chunk_begin"_a, "chunk_count"_a, "combine"_a)
      .def_ro("src", &Transfer::src)
      .def_ro("dst", &Transfer::dst)
      .def_ro("chunk_begin", &Transfer::chunk_begin)
      .def_ro("chunk_count", &Transfer::chunk_count)
      .def_prop_ro("combine", [](const Transfer& t) { return to_string(t.combine); })
      .def(
          "__eq__", [](const Transfer& a, const Transfer& b) { return a == b; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const Transfer& t) {
             return nb::hash(nb::make_tuple(t.src, t.dst, t.chunk_begin, t.chunk_count,
                                            static_cast<int>(t.combine)));
           })
      .def("__repr__", [](const Transfer& t) {
        return nb::str("Transfer(src={}, dst={}, chunk_begin={}, chunk_count={}, combine={!r})")
            .format(t.src, t.dst, t.chunk_begin, t.chunk_count, to_string(t.combine));
      });

  nb::class_<Schedule>(m, "Schedule", "A collective as data: channels of rounds of transfers.")
      .def_ro("name", &Schedule::name)
      .def_prop_ro("collective", [](const Schedule& s) { return to_string(s.collective); })
      .def_ro("world_size", &Schedule::world_size)
      .def_ro("root", &Schedule::root)
      .def_ro("chunk_count", &Schedule::chunk_count)
      .def_prop_ro("channels", &rounds_of)
      .def(
          "__eq__", [](const Schedule& a, const Schedule& b) { return a == b; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const Schedule& s) {
             return nb::hash(nb::make_tuple(s.name, s.world_size, s.root));
           })
      .def("__repr__", [](const Schedule& s) {
        return nb::str("<Schedule {} {} world_size={}>")
            .format(s.name, to_string(s.collective), s.world_size);
      });

  m.def("make_schedule", &make_schedule, "name"_a, "collective"_a, "world_size"_a, "root"_a,
        "chunk_count"_a, "channels"_a);
  m.def(
      "build_schedule",
      [](std::string_view spec, const std::string& collective, int world_size, int root) {
        return build_schedule(spec, collective_from_string(collective), world_size, root);
      },
      "spec"_a, "collective"_a, "world_size"_a, "root"_a);
  nb::class_<Cost>(m, "Cost", "Rounds, bytes sent by each rank, time.")
      .def_ro("rounds", &Cost::rounds)
      .def_ro("bytes_sent", &Cost::bytes_sent)
      .def_ro("time_s", &Cost::time_s);
  const auto without_gil = nb::call_guard<nb::gil_scoped_release>();
  m.def("validate", &validate, "schedule"_a, without_gil);
  m.def(
      "cost",
      [](const Schedule& schedule, std::int64_t buffer_bytes, double latency_s,
         double bytes_per_s, double reduce_bytes_per_s, std::int64_t unit_bytes) {
        return cost(schedule, buffer_bytes, {latency_s, bytes_per_s, reduce_bytes_per_s},
                    unit_bytes);
      },
      "schedule"_a, "buffer_bytes"_a, "latency_s"_a, "bytes_per_s"_a, "reduce_bytes_per_s"_a,
      "unit_bytes"_a, without_gil);
  m.def(
      "choices",
      [](const std::string& collective, std::int64_t buffer_bytes, int world_size,
         double latency_s, double bytes_per_s, double reduce_bytes_per_s, int ranks_per_host,
         double host_latency_s, double host_bytes_per_s) {
        const Hosts hosts{{latency_s, bytes_per_s, reduce_bytes_per_s},
                          {host_latency_s, host_bytes_per_s, reduce_bytes_per_s},
                          ranks_per_host};
        std::vector<std::pair<std::string, double>> pairs;
        for (const Choice& choice :
             choices(collective_from_string(collective), buffer_bytes, world_size, hosts)) {
          pairs.emplace_back(choice.spec, choice.time_s);
        }
        return pairs;
      },
      "collective"_a, "buffer_bytes"_a, "world_size"_a, "latency_s"_a, "bytes_per_s"_a,
      "reduce_bytes_per_s"_a, "ranks_per_host"_a, "host_latency_s"_a, "host_bytes_per_s"_a,
      without_gil);
  m.def(
      "minimum_spanning_tree",
      [](const std::vector<double>& latency_s, int world_size) {
        return minimum_spanning_tree(latency_s, world_size);
      },
      "latency_s"_a, "world_size"_a, without_gil);
  m.def(
      "from_bandwidth",
      [](const std::vector<double>& bytes_per_s, int world_size) {
        return from_bandwidth(bytes_per_s, world_size);
      },
      "bytes_per_s"_a, "world_size"_a, without_gil);
  m.def("custom_spec", &custom_spec, "schedule"_a);
  m.def("generator_names", &generator_names);
  m.def(
      "collectives_of",
      [](std::string_view name) {
        std::vector<std::string> names;
        for (const Collective collective : collectives_of(name))
          names.emplace_back(to_string(collective));
        return names;
      },
      "name"_a);
}

}  // namespace kf::bindings
