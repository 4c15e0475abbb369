// kf/replay.h and kf/fluid.h for Python. Private: kfsim.network is the public face.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kf/fluid.h"
#include "kf/replay.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {
namespace {

using Times = nb::ndarray<const double, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<double, nb::numpy, nb::ndim<1>>;

Result run(const Replay& replay, const Times& ready_s) {
  auto finish = std::make_unique<std::vector<double>>();
  {
    nb::gil_scoped_release release;
    *finish = replay.run(std::span(ready_s.data(), ready_s.size()));
  }
  const std::size_t count = finish->size();
  double* data = finish->data();
  nb::capsule owner(finish.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
  return Result(data, {count}, owner);
}

Fabric make_fabric(std::vector<int> host_of_rank, std::vector<double> egress_bytes_per_s,
                   std::vector<double> ingress_bytes_per_s, double latency_s, double message_s,
                   double reduce_bytes_per_s, double local_bytes_per_s, double local_latency_s,
                   std::vector<int> rack_of_host, double rack_bytes_per_s,
                   std::vector<BackgroundFlows> background, double connection_bytes_per_s,
                   double incast_loss) {
  return {std::move(host_of_rank),
          std::move(egress_bytes_per_s),
          std::move(ingress_bytes_per_s),
          latency_s,
          message_s,
          reduce_bytes_per_s,
          local_bytes_per_s,
          local_latency_s,
          std::move(rack_of_host),
          rack_bytes_per_s,
          std::move(background),
          connection_bytes_per_s,
          incast_loss};
}

}  // namespace

void bind_replay(nb::module_& m) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  nb::class_<BackgroundFlows>(m, "BackgroundFlows", "Greedy connections outside the job.")
      .def(nb::init<int, int, int>(), "src_host"_a, "dst_host"_a, "count"_a)
      .def_ro("src_host", &BackgroundFlows::src_host)
      .def_ro("dst_host", &BackgroundFlows::dst_host)
      .def_ro("count", &BackgroundFlows::count);
  nb::class_<Fabric>(m, "Fabric", "Hosts, ports and links (kf/replay.h).")
      .def_ro("host_of_rank", &Fabric::host_of_rank)
      .def_ro("egress_bytes_per_s", &Fabric::egress_bytes_per_s)
      .def_ro("ingress_bytes_per_s", &Fabric::ingress_bytes_per_s)
      .def_ro("latency_s", &Fabric::latency_s)
      .def_ro("message_s", &Fabric::message_s)
      .def_ro("reduce_bytes_per_s", &Fabric::reduce_bytes_per_s);
  m.def("make_fabric", &make_fabric, nb::kw_only(), "host_of_rank"_a, "egress_bytes_per_s"_a,
        "ingress_bytes_per_s"_a, "latency_s"_a, "message_s"_a = 0.0,
        "reduce_bytes_per_s"_a = kInfinity, "local_bytes_per_s"_a = kInfinity,
        "local_latency_s"_a = 0.0, "rack_of_host"_a = std::vector<int>{},
        "rack_bytes_per_s"_a = kInfinity, "background"_a = std::vector<BackgroundFlows>{},
        "connection_bytes_per_s"_a = kInfinity, "incast_loss"_a = 0.0);
  nb::class_<Replay>(m, "Replay", "One collective prepared for simulated time (kf/replay.h).")
      .def(
          "__init__",
          [](Replay* self, const Schedule& schedule, const Fabric& fabric,
             std::int64_t buffer_bytes, std::int64_t segment_bytes, std::int64_t unit_bytes,
             const std::string& tier, double batch_fraction) {
            new (self)
                Replay(schedule, fabric, buffer_bytes,
                       {segment_bytes, unit_bytes, tier_from_string(tier), batch_fraction});
          },
          "schedule"_a, "fabric"_a, "buffer_bytes"_a, nb::kw_only(), "segment_bytes"_a = 0,
          "unit_bytes"_a = 1, "tier"_a = "auto", "batch_fraction"_a = -1.0)
      .def("run", &run, "ready_s"_a.noconvert())
      .def_prop_ro("tier", [](const Replay& r) { return std::string(to_string(r.tier())); })
      .def_prop_ro("tier_reason", &Replay::tier_reason)
      .def_prop_ro("tier_error", &Replay::tier_error)
      .def_prop_ro("closed_form_s", &Replay::closed_form_s)
      .def_prop_ro("runs",
                   [](const Replay& r) {
                     const Runs runs = r.runs();
                     return std::tuple(runs.closed_form, runs.replayed, runs.recalled);
                   })
      .def_prop_ro("bytes_sent", &Replay::bytes_sent)
      .def_prop_ro("bytes_received", &Replay::bytes_received)
      .def_prop_ro("messages", &Replay::messages)
      .def_prop_ro("memory_bytes", &Replay::memory_bytes)
      .def_prop_ro("lower_bound_s", &Replay::lower_bound_s);
}

}  // namespace kf::bindings
