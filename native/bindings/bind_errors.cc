// kf::Error becomes the class of the same name in kfcore.errors, so it can also be a
// ValueError, TimeoutError or ConnectionError there.
#include "bindings.h"
#include "kf/error.h"

namespace nb = nanobind;

namespace kf::bindings {

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const nb::object type =
          nb::module_::import_("kfcore.errors").attr(error_class_name(error.code()));
      PyErr_SetString(type.ptr(), error.what());
    }
  });
}

}  // namespace kf::bindings
