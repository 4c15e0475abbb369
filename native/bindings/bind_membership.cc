#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kf/membership.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {
namespace {

void bind_values(nb::module_& m) {
  nb::class_<Member>(m, "Member")
      .def(
          "__init__",
          [](Member* self, std::string id, std::string address, std::string door,
             std::string host, std::int64_t pid, bool settled) {
            new (self)
                Member{std::move(id), std::move(address), std::move(door), std::move(host), pid,
                       settled};
          },
          "id"_a, "address"_a = "", "door"_a = "", "host"_a = "", "pid"_a = 0,
          "settled"_a = false)
      .def_ro("id", &Member::id)
      .def_ro("address", &Member::address)
      .def_ro("door", &Member::door)
      .def_ro("host", &Member::host)
      .def_ro("pid", &Member::pid)
      .def_ro("settled", &Member::settled);
  nb::enum_<Departure>(m, "Departure")
      .value("left", Departure::left)
      .value("excluded", Departure::excluded)
      .value("resized", Departure::resized)
      .value("lost", Departure::lost);
  nb::class_<Gone>(m, "Gone")
      .def(
          "__init__",
          [](Gone* self, std::string id, std::string host, Departure how, std::string reason,
             std::int64_t version) {
            new (self) Gone{std::move(id), std::move(host), how, std::move(reason), version};
          },
          "id"_a, "host"_a, "how"_a, "reason"_a, "version"_a)
      .def_ro("id", &Gone::id)
      .def_ro("host", &Gone::host)
      .def_ro("how", &Gone::how)
      .def_ro("reason", &Gone::reason)
      .def_ro("version", &Gone::version);
}

void bind_roster(nb::module_& m) {
  const auto by_reference = nb::rv_policy::reference_internal;
  nb::class_<Roster>(m, "Roster")
      .def(nb::init<>())
      .def(nb::init<const Roster&>(), "other"_a)
      .def_rw("version", &Roster::version)
      .def_rw("reason", &Roster::reason)
      .def_rw("members", &Roster::members)
      .def_rw("founders", &Roster::founders)
      .def_rw("min_size", &Roster::min_size)
      .def_rw("max_size", &Roster::max_size)
      .def_rw("arrived", &Roster::arrived)
      .def_rw("target", &Roster::target)
      .def_rw("joiners", &Roster::joiners)
      .def_rw("leaving", &Roster::leaving)
      .def_rw("excluded", &Roster::excluded)
      .def_rw("call_reason", &Roster::call_reason)
      .def_rw("present", &Roster::present)
      .def_rw("gone", &Roster::gone)
      .def_rw("ended", &Roster::ended)
      .def_prop_ro("calling", &Roster::calling)
      .def("find", &Roster::find, "id"_a, by_reference)
      .def("rank_of", &Roster::rank_of, "id"_a)
      .def("departed", &Roster::departed, "id"_a, by_reference)
      .def("wanted", [](const Roster& self) { return wanted(self); })
      .def_prop_ro("change_wanted", [](const Roster& self) { return change_wanted(self); })
      .def("arrive", &arrive, "rank"_a, "member"_a)
      .def("join", &join, "member"_a)
      .def("forget", &forget, "id"_a)
      .def("leave", &leave, "id"_a)
      .def("exclude", &exclude, "id"_a, "reason"_a)
      .def("resize", &resize, "world_size"_a, "reason"_a)
      .def("install", &install, "version"_a)
      .def("settle", &settle, "id"_a)
      .def("call_roll", &call_roll, "version"_a, "id"_a, "reason"_a)
      .def("conclude", &conclude, "version"_a, "dead"_a, "reason"_a)
      .def("end", &end, "reason"_a);
  m.def("make_roster", &make_roster, "founders"_a, "min_size"_a, "max_size"_a);
  nb::class_<Reconciled>(m, "Reconciled")
      .def_ro("committed", &Reconciled::committed)
      .def_ro("sources", &Reconciled::sources)
      .def_ro("laggards", &Reconciled::laggards)
      .def_ro("newcomers", &Reconciled::newcomers);
  m.def("reconcile", &reconcile, "counts"_a);
}

}  // namespace

void bind_membership(nb::module_& m) {
  bind_values(m);
  bind_roster(m);
}

}  // namespace kf::bindings
