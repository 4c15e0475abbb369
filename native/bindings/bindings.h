// What the files of this folder offer to module.cc: one register call per public header.
#pragma once

#include <nanobind/nanobind.h>

namespace kf::bindings {

void bind_errors(nanobind::module_& m);
void bind_schedule(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_caller(nanobind::module_& m);
void bind_session(nanobind::module_& m);
void bind_calls(nanobind::module_& m);
void bind_adapt(nanobind::module_& m);
void bind_simd(nanobind::module_& m);
void bind_membership(nanobind::module_& m);

}  // namespace kf::bindings
