// Registered memory as NumPy arrays: the array keeps its buffer, and the buffer its pool.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "bindings.h"
#include "kf/error.h"
#include "kf/shared_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {

namespace {

struct Buffer {
  Buffer(std::shared_ptr<SharedMemory> from, std::size_t bytes)
      : pool(std::move(from)), data(pool->allocate(bytes)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    try {
      pool->free(data);
    } catch (const Error&) {  // the pool of a forked child does not know it; nothing to free
    }
  }
  std::shared_ptr<SharedMemory> pool;
  std::byte* data;
};

nb::object allocate(const std::shared_ptr<SharedMemory>& pool, std::size_t bytes) {
  auto buffer = std::make_unique<Buffer>(pool, bytes);
  std::byte* data = buffer->data;
  const nb::capsule owner(buffer.release(),
                          [](void* self) noexcept { delete static_cast<Buffer*>(self); });
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {bytes}, owner));
}

}  // namespace

void bind_memory(nb::module_& m) {
  nb::class_<SharedMemory>(m, "SharedMemory", "Buffers that peers of this host read in place.")
      .def(nb::init<>())
      .def(
          "contains",
          [](const SharedMemory& self, std::uintptr_t address, std::size_t bytes) {
            return self.find(reinterpret_cast<const void*>(address), bytes).has_value();
          },
          "address"_a, "bytes"_a)
      .def_prop_ro("bytes_in_use", &SharedMemory::bytes_in_use);
  m.def("allocate_shared", &allocate, "pool"_a, "bytes"_a);
}

}  // namespace kf::bindings
