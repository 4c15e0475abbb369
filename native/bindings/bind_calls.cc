// Calls with every option: groups, uneven blocks, messages, operations that go on in the
// background. Every call that can block releases the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "blocking.h"
#include "kf/error.h"
#include "kf/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {

namespace {

// An operation under way; keeps nothing but the core's own memory alive.
struct Started {
  Session::Handle value;
};

Call make_call(const std::string& collective, std::vector<Piece> pieces, int root,
               const std::string& name, std::vector<std::int64_t> blocks,
               const std::string& site, std::shared_ptr<NormSums> norms) {
  Call call;
  call.collective = collective_from_string(collective);
  call.pieces = std::move(pieces);
  call.root = root;
  call.name = name;
  call.blocks = std::move(blocks);
  call.site = site;
  call.norms = std::move(norms);
  return call;
}

Call make_exchange(std::uintptr_t input, std::uintptr_t output, DType dtype,
                   std::vector<std::int64_t> counts, int rank, int world_size,
                   const std::string& name, const std::string& site) {
  Call call = exchange(reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output),
                       dtype, std::move(counts), rank, world_size);
  call.name = name;
  call.site = site;
  return call;
}

Call prepared(Call call, std::shared_ptr<const Group> group, bool background,
              double timeout_s) {
  call.group = std::move(group);
  call.background = background;
  call.deadline = deadline_after(timeout_s);
  return call;
}

double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

std::shared_ptr<Model> request_model(Session& session, int peer, const std::string& name,
                                     std::int64_t version, double timeout_s) {
  SignalCheck signals;
  try {
    return std::const_pointer_cast<Model>(session.request(
        peer, name, version, deadline_after(timeout_s), [&] { return signals(); }));
  } catch (const Error&) {
    signals.rethrow();
    throw;
  }
}

nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> bytes_of(std::shared_ptr<Model> model) {
  auto* bytes = model->bytes.get();
  const std::size_t count = model->byte_count;
  const nb::capsule owner(
      new std::shared_ptr<Model>(std::move(model)),
      [](void* held) noexcept { delete static_cast<std::shared_ptr<Model>*>(held); });
  return {bytes, {count}, owner};
}

void bind_models(nb::module_& m) {
  nb::class_<Model>(m, "Model", "Arrays that a rank has saved.")
      .def_ro("version", &Model::version)
      .def_prop_ro("description",
                   [](const Model& model) {
                     return nb::bytes(model.description.data(), model.description.size());
                   })
      .def_ro_static("align", &Model::kAlign);
  m.def("model_bytes", &bytes_of, "model"_a);
  m.def(
      "save_model",
      [](Session& session, const std::string& name, std::int64_t version,
         const std::string& description, const std::vector<Piece>& pieces,
         int keep) { session.save(name, copy_model(version, description, pieces), keep); },
      "session"_a, "name"_a, "version"_a, "description"_a, "pieces"_a, "keep"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def("request_model", &request_model, "session"_a, "peer"_a, "name"_a, "version"_a,
        "timeout_s"_a,
        nb::sig("def request_model(session: Session, peer: int, name: str, version: int, "
                "timeout_s: float) -> Model | None"),
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_calls(nb::module_& m) {
  bind_models(m);
  nb::class_<Group>(m, "Group", "Some ranks of a view.")
      .def_ro("members", &Group::members)
      .def_ro("rank", &Group::rank);
  nb::class_<Call>(m, "Call", "What is asked of a session.").def("__init__", [](Call* self) {
    new (self) Call();
  });
  nb::class_<Started>(m, "Started", "An operation under way.")
      .def("times", [](const Started& started) {
        const auto [begin, end] = Session::times(started.value);
        return std::pair{seconds(begin), seconds(end)};
      });
  m.def("call", &make_call, "collective"_a, "pieces"_a, "root"_a, "name"_a, "blocks"_a,
        "site"_a, "norms"_a.none() = nb::none());
  m.def("exchange_call", &make_exchange, "input"_a, "output"_a, "dtype"_a, "counts"_a, "rank"_a,
        "world_size"_a, "name"_a, "site"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "make_group",
      [](Session& session, std::vector<int> members) {
        return std::const_pointer_cast<Group>(session.group(std::move(members)));
      },
      "session"_a, "members"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "start",
      [](Session& session, Call call, std::shared_ptr<Group> group, bool background,
         double timeout_s) {
        return Started{
            session.start(prepared(std::move(call), std::move(group), background, timeout_s))};
      },
      "session"_a, "call"_a, "group"_a.none(), "background"_a, "timeout_s"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "start_send",
      [](Session& session, int peer, std::int64_t tag, Call call, std::shared_ptr<Group> group,
         bool background, double timeout_s) {
        return Started{session.send(
            peer, tag, prepared(std::move(call), std::move(group), background, timeout_s))};
      },
      "session"_a, "peer"_a, "tag"_a, "call"_a, "group"_a.none(), "background"_a, "timeout_s"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "start_receive",
      [](Session& session, int peer, std::int64_t tag, Call call, std::shared_ptr<Group> group,
         bool background, double timeout_s) {
        return Started{session.receive(
            peer, tag, prepared(std::move(call), std::move(group), background, timeout_s))};
      },
      "session"_a, "peer"_a, "tag"_a, "call"_a, "group"_a.none(), "background"_a, "timeout_s"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "wait",
      [](Session& session, const Started& started, double timeout_s) {
        wait_blocking(session, started.value, timeout_s);
      },
      "session"_a, "started"_a, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "done",
      [](Session& session, const Started& started) { return session.done(started.value); },
      "session"_a, "started"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace kf::bindings
