#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <limits>
#include <memory>

#include "bindings.h"
#include "kf/control.h"
#include "kf/engine.h"
#include "kf/noise_scale.h"
#include "kf/norm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {
namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FieldRows =
    nb::ndarray<const double, nb::shape<-1, kLocalFields>, nb::c_contig, nb::device::cpu>;

void encode_rows(const FieldRows& fields, const std::array<double, 2>& digest_words,
                 const Rows<double>& sums, const Rows<double>& maxes) {
  if (sums.shape(0) != fields.shape(0) || maxes.shape(0) != fields.shape(0)) {
    throw Error(ErrorCode::usage, "fields, sums and maxes must have one row a rank each");
  }
  for (std::size_t row = 0; row < fields.shape(0); ++row) {
    const double* at = fields.data() + row * kLocalFields;
    encode_local({at[0], at[1], at[2], at[3], at[4], at[5], at[6]}, digest_words,
                 {sums.data() + row * sums.shape(1), sums.shape(1)},
                 {maxes.data() + row * maxes.shape(1), maxes.shape(1)});
  }
}

void bind_engine(nb::module_& m) {
  nb::enum_<SettingKind>(m, "SettingKind")
      .value("hyper", SettingKind::hyper)
      .value("schedule", SettingKind::schedule)
      .value("world_size", SettingKind::world_size)
      .value("stop", SettingKind::stop)
      .value("sync_mode", SettingKind::sync_mode)
      .value("bucket_bytes", SettingKind::bucket_bytes)
      .value("compression", SettingKind::compression)
      .value("checkpoint", SettingKind::checkpoint)
      .value("member", SettingKind::member);
  nb::enum_<Verdict>(m, "Verdict")
      .value("unchanged", Verdict::unchanged)
      .value("installed", Verdict::installed)
      .value("conflict", Verdict::conflict);
  nb::class_<Setting>(m, "Setting")
      .def(nb::init<std::string, SettingKind, Value, double, double, bool>(), "name"_a,
           "kind"_a, "value"_a, "minimum"_a = 0.0, "maximum"_a = 0.0, "integral"_a = false)
      .def_ro("name", &Setting::name)
      .def_ro("kind", &Setting::kind)
      .def_ro("value", &Setting::value)
      .def_ro("minimum", &Setting::minimum)
      .def_ro("maximum", &Setting::maximum)
      .def_ro("integral", &Setting::integral);
  nb::class_<Change>(m, "Change")
      .def(nb::init<std::string, Value, std::string, std::string>(), "name"_a, "value"_a,
           "reason"_a = "", "policy"_a = "")
      .def_ro("name", &Change::name)
      .def_ro("value", &Change::value)
      .def_ro("reason", &Change::reason)
      .def_ro("policy", &Change::policy);
  nb::class_<Installed>(m, "Installed")
      .def_ro("step", &Installed::step)
      .def_ro("view_version", &Installed::view_version)
      .def_ro("config_version", &Installed::config_version)
      .def_ro("kind", &Installed::kind)
      .def_ro("name", &Installed::name)
      .def_ro("old_value", &Installed::old_value)
      .def_ro("new_value", &Installed::new_value)
      .def_ro("reason", &Installed::reason)
      .def_ro("policy", &Installed::policy);
  nb::class_<Decision>(m, "Decision")
      .def_ro("verdict", &Decision::verdict)
      .def_ro("installed", &Decision::installed);
  nb::class_<Engine>(m, "Engine")
      .def(nb::init<const std::vector<Setting>&, std::int64_t>(), "settings"_a,
           "view_version"_a)
      .def("propose", &Engine::propose, "changes"_a)
      .def("withdraw", &Engine::withdraw)
      .def("digest_words", &Engine::digest_words)
      .def(
          "decide",
          [](Engine& self, double max_digest, double max_negated) {
            const std::array<double, 2> words{max_digest, max_negated};
            return self.decide(words);
          },
          "max_digest"_a, "max_negated"_a)
      .def("proposal_text", &Engine::proposal_text)
      .def("raise_conflict", &Engine::raise_conflict, "text_by_rank"_a)
      .def("enter_view", &Engine::enter_view, "view_version"_a, "world_size"_a, "step"_a,
           "config_version"_a)
      .def("proposal", &Engine::proposal)
      .def("value", &Engine::value, "name"_a)
      .def("settings", &Engine::settings)
      .def_prop_ro("has_proposal", &Engine::has_proposal)
      .def_prop_ro("step", &Engine::step)
      .def_prop_ro("view_version", &Engine::view_version)
      .def_prop_ro("config_version", &Engine::config_version)
      .def_ro_static("TEXT_BYTES", &Engine::kTextBytes);
}

void bind_control(nb::module_& m) {
  m.attr("LOCAL_FIELDS") = kLocalFields;
  m.attr("CONTROL_SUMS") = kControlSums;
  m.attr("CONTROL_MAXES") = kControlMaxes;
  nb::class_<ClusterStep>(m, "ClusterStep")
      .def_ro("step_s", &ClusterStep::step_s)
      .def_ro("compute_s", &ClusterStep::compute_s)
      .def_ro("mean_step_s", &ClusterStep::mean_step_s)
      .def_ro("mean_compute_s", &ClusterStep::mean_compute_s)
      .def_ro("mean_comm_s", &ClusterStep::mean_comm_s)
      .def_ro("mean_comm_bytes", &ClusterStep::mean_comm_bytes)
      .def_ro("loss", &ClusterStep::loss)
      .def_ro("mean_grad_sq_norm", &ClusterStep::mean_grad_sq_norm)
      .def_ro("samples", &ClusterStep::samples)
      .def_ro("nonfinite_ranks", &ClusterStep::nonfinite_ranks);
  m.def("encode_rows", &encode_rows, "fields"_a.noconvert(), "digest_words"_a,
        "sums"_a.noconvert(), "maxes"_a.noconvert());
  m.def(
      "decode_cluster",
      [](const Vector<const double>& sums, const Vector<const double>& maxes, int world_size) {
        return decode_cluster({sums.data(), sums.size()}, {maxes.data(), maxes.size()},
                              world_size);
      },
      "sums"_a.noconvert(), "maxes"_a.noconvert(), "world_size"_a);
}

template <class T>
double norm_of(const nb::ndarray<const T, nb::c_contig, nb::device::cpu>& values) {
  return squared_norm(std::span<const T>(values.data(), values.size()));
}

// Writes |g|^2, times `factor`, into the control vector that travels with the gradient, which
// the caller keeps alive.
std::shared_ptr<NormSums> norm_sums(const Vector<double>& sums, double factor) {
  double* words = sums.data();
  const std::size_t count = sums.size();
  return std::make_shared<NormSums>(words, [=](double local) {
    const double norm = local * factor;
    encode_norm(std::isfinite(norm) ? norm : std::numeric_limits<double>::infinity(),
                {words, count});
  });
}

void bind_monitors(nb::module_& m) {
  nb::enum_<Undefined>(m, "Undefined")
      .value("no", Undefined::no)
      .value("no_data", Undefined::no_data)
      .value("single_gradient", Undefined::single_gradient)
      .value("non_positive", Undefined::non_positive);
  nb::class_<NoiseScale>(m, "NoiseScale")
      .def(nb::init<double>(), "decay"_a)
      .def("update", &NoiseScale::update, "mean_local_sq"_a, "global_sq"_a, "samples"_a,
           "world_size"_a)
      .def("reset", &NoiseScale::reset)
      .def("why_undefined", &NoiseScale::why_undefined)
      .def("value", &NoiseScale::value)
      .def("sqr", &NoiseScale::sqr)
      .def("var", &NoiseScale::var);
  nb::class_<NormSums>(m, "NormSums", "Both squared norms of a gradient that is averaged.")
      .def(nb::new_([] { return std::make_shared<NormSums>(); }))
      .def(nb::new_(&norm_sums), "sums"_a.noconvert(), "factor"_a)
      .def("result", &NormSums::result);
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def("squared_norm", &norm_of<float>, "values"_a.noconvert(), released);
  m.def("squared_norm", &norm_of<double>, "values"_a.noconvert(), released);
}

}  // namespace

void bind_adapt(nb::module_& m) {
  bind_engine(m);
  bind_control(m);
  bind_monitors(m);
}

}  // namespace kf::bindings
