// Sessions, views and typed pieces. Every call that can block releases the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "bindings.h"
#include "blocking.h"
#include "kf/error.h"
#include "kf/host.h"
#include "kf/inproc.h"
#include "kf/session.h"
#include "kf/shared_memory.h"
#include "kf/tcp.h"
#include "kf/transport.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {

namespace {

// Hidden from other threads' view of it: a hub is only ever handed back to open_inproc_session.
struct Hub {
  std::shared_ptr<InprocHub> value;
};

struct Cancel {
  std::atomic<bool> asked{false};
};

void run_named(Session& session, const std::string& collective,
               const std::vector<Piece>& pieces, int root, const std::string& name,
               double timeout_s, std::shared_ptr<NormSums> norms) {
  run_blocking(session, collective_from_string(collective), pieces, root, name, timeout_s,
               std::move(norms));
}

// The session, and a warning when memory could not be shared with a rank of this host.
std::pair<std::unique_ptr<Session>, std::string> open_host_session(
    TcpListener& listener, const View& view, int rank, const std::string& job_id,
    const std::string& job_secret, const std::vector<std::string>& addresses,
    const std::string& schedule, std::int64_t segment_bytes, double timeout_s,
    bool share_memory, std::shared_ptr<SharedMemory> registered, const Cancel* cancel,
    bool keep_listener) {
  SignalCheck signals;
  TcpOptions options{view, rank, job_id, job_secret, addresses, deadline_after(timeout_s), [&] {
                       return (cancel != nullptr && cancel->asked) || signals();
                     }};
  options.keep_listener = keep_listener;
  HostOptions host;
  host.share_memory = share_memory;
  host.registered = std::move(registered);
  SessionOptions session_options;
  session_options.schedule = schedule;
  session_options.segment_bytes = segment_bytes;
  try {
    HostConnection connection = connect_host(listener, options, host);
    return {
        std::make_unique<Session>(view, rank, std::move(connection.transport), session_options),
        connection.warning};
  } catch (const Error&) {
    signals.rethrow();
    throw;
  }
}

void bind_values(nb::module_& m) {
  nb::enum_<DType>(m, "DType")
      .value("float32", DType::f32)
      .value("float64", DType::f64)
      .value("float16", DType::f16)
      .value("bfloat16", DType::bf16)
      .value("int8", DType::i8)
      .value("uint8", DType::u8)
      .value("int16", DType::i16)
      .value("int32", DType::i32)
      .value("int64", DType::i64)
      .value("bool", DType::boolean)
      .value("complex64", DType::c64)
      .value("complex128", DType::c128);
  nb::enum_<ReduceOp>(m, "ReduceOp")
      .value("sum", ReduceOp::sum)
      .value("prod", ReduceOp::prod)
      .value("min", ReduceOp::min)
      .value("max", ReduceOp::max)
      .value("avg", ReduceOp::avg);
  nb::class_<Piece>(m, "Piece", "Elements at an address; the caller keeps the memory alive.")
      .def(
          "__init__",
          [](Piece* self, std::uintptr_t address, std::int64_t count, DType dtype,
             ReduceOp op) {
            new (self) Piece{reinterpret_cast<void*>(address), count, dtype, op};
          },
          "address"_a, "count"_a, "dtype"_a, "op"_a)
      .def_prop_ro(
          "address",
          [](const Piece& piece) { return reinterpret_cast<std::uintptr_t>(piece.data); })
      .def_ro("count", &Piece::count)
      .def_ro("dtype", &Piece::dtype)
      .def_ro("op", &Piece::op);
  nb::class_<View>(m, "View")
      .def(
          "__init__",
          [](View* self, std::int64_t version, std::vector<std::string> members) {
            new (self) View{version, std::move(members)};
          },
          "version"_a, "members"_a)
      .def_ro("version", &View::version)
      .def_ro("members", &View::members);
  nb::class_<PeerStats>(m, "PeerStats")
      .def_ro("messages_sent", &PeerStats::messages_sent)
      .def_ro("bytes_sent", &PeerStats::bytes_sent)
      .def_ro("messages_received", &PeerStats::messages_received)
      .def_ro("bytes_received", &PeerStats::bytes_received);
  nb::class_<SessionStats>(m, "SessionStats")
      .def_ro("operations", &SessionStats::operations)
      .def_ro("control_messages", &SessionStats::control_messages)
      .def_ro("peers", &SessionStats::peers);
}

}  // namespace

void bind_session(nb::module_& m) {
  bind_values(m);
  nb::class_<Hub>(m, "InprocHub")
      .def(
          "__init__",
          [](Hub* self, int world_size) { new (self) Hub{make_inproc_hub(world_size)}; },
          "world_size"_a);
  nb::class_<Session>(m, "Session")
      .def("run", &run_named, "collective"_a, "pieces"_a, "root"_a, "name"_a, "timeout_s"_a,
           "norms"_a.none() = nb::none(), nb::call_guard<nb::gil_scoped_release>())
      .def("set_schedule", &Session::set_schedule, "spec"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Session::close, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &Session::stats, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("rank", &Session::rank)
      .def_prop_ro("transport", &Session::transport)
      .def_prop_ro("schedule", &Session::schedule);
  m.def(
      "open_inproc_session",
      [](const Hub& hub, const View& view, int rank, const std::string& schedule,
         std::int64_t segment_bytes) {
        SessionOptions options;
        options.schedule = schedule;
        options.segment_bytes = segment_bytes;
        return std::make_unique<Session>(view, rank, make_inproc_transport(hub.value, rank),
                                         options);
      },
      "hub"_a, "view"_a, "rank"_a, "schedule"_a, "segment_bytes"_a);
  nb::class_<TcpListener>(m, "TcpListener")
      .def(nb::init<const std::string&, int>(), "host"_a, "port"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("address", &TcpListener::address)
      .def_prop_ro("port", &TcpListener::port)
      .def("close", &TcpListener::close);
  nb::class_<Cancel>(m, "Cancel", "Lets another thread end the opening of a session.")
      .def(nb::init<>())
      .def("set", [](Cancel& self) { self.asked = true; });
  m.def("open_host_session", &open_host_session, "listener"_a, "view"_a, "rank"_a, "job_id"_a,
        "job_secret"_a, "addresses"_a, "schedule"_a, "segment_bytes"_a, "timeout_s"_a,
        "share_memory"_a, "registered"_a, "cancel"_a = nullptr, "keep_listener"_a = false,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace kf::bindings
