// The short way from an array to an operation: no Python objects are made between them.
//
// NumPy arrays are read through the buffer protocol, tensors of torch and others through
// DLPack's C exchange interface (dlpack.h 1.2, DLPackExchangeAPI), which their type offers as
// `__dlpack_c_exchange_api__`. Whatever is unusual, wrong or refused is left to the long way
// (kfcore/buffers.py), which finds the words for it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "bindings.h"
#include "blocking.h"
#include "kf/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kf::bindings {

namespace {

// The parts of dlpack.h that are used here; the layout is fixed by its ABI.
struct DLTensor {
  void* data;
  struct {
    std::int32_t type;
    std::int32_t id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous
  std::uint64_t byte_offset;
};
struct ExchangeApi {
  struct {
    std::uint32_t major;
    std::uint32_t minor;
  } version;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, DLTensor* out);
  void* current_stream;
};
constexpr std::uint32_t kExchangeMajor = 1;
constexpr std::int32_t kCpu = 1;
enum DLCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

std::optional<DType> dtype_of(std::uint8_t code, std::uint8_t bits) {
  switch (code * 256 + bits) {
    case kFloat * 256 + 32:
      return DType::f32;
    case kFloat * 256 + 64:
      return DType::f64;
    case kFloat * 256 + 16:
      return DType::f16;
    case kBfloat * 256 + 16:
      return DType::bf16;
    case kInt * 256 + 8:
      return DType::i8;
    case kUInt * 256 + 8:
      return DType::u8;
    case kInt * 256 + 16:
      return DType::i16;
    case kInt * 256 + 32:
      return DType::i32;
    case kInt * 256 + 64:
      return DType::i64;
    case kBool * 256 + 8:
      return DType::boolean;
    default:
      return std::nullopt;
  }
}

// A native struct code of one character; anything else goes the long way.
std::optional<DType> dtype_of(const char* format) {
  if (format == nullptr || format[0] == '\0' || format[1] != '\0') return std::nullopt;
  switch (format[0]) {
    case 'f':
      return DType::f32;
    case 'd':
      return DType::f64;
    case 'e':
      return DType::f16;
    case 'b':
      return DType::i8;
    case 'B':
      return DType::u8;
    case 'h':
      return DType::i16;
    case 'i':
      return DType::i32;
    case 'l':
    case 'q':
      return DType::i64;
    case '?':
      return DType::boolean;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> op_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, ReduceOp>, 5> kOps = {
      {{"sum", ReduceOp::sum},
       {"prod", ReduceOp::prod},
       {"min", ReduceOp::min},
       {"max", ReduceOp::max},
       {"avg", ReduceOp::avg}}};
  for (const auto& [text, op] : kOps) {
    if (text == name) return op;
  }
  return std::nullopt;
}

// Keeps a buffer exported while an operation works on it, so that nobody resizes the array.
class Exported {
 public:
  Exported() = default;
  ~Exported() {
    if (held_) PyBuffer_Release(&buffer_);
  }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;

  bool take(PyObject* object) {
    constexpr int kFlags = PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS;
    held_ = PyObject_GetBuffer(object, &buffer_, kFlags) == 0;
    if (!held_) PyErr_Clear();
    return held_;
  }
  const Py_buffer& get() const { return buffer_; }

 private:
  Py_buffer buffer_{};
  bool held_ = false;
};

// Runs collectives of one session on arrays of the types it has seen.
class Caller {
 public:
  Caller(Session& session, nb::object ndarray)
      : session_(session), ndarray_(std::move(ndarray)), pieces_(1) {}

  // False: not done, take the long way.
  bool all_reduce(nb::handle array, const char* op_name, double timeout_s) {
    const std::optional<ReduceOp> op = op_of(op_name);
    if (!op || busy_) return false;
    Exported exported;
    std::optional<Piece> piece = piece_of(array, exported);
    if (!piece) return false;
    piece->op = *op;
    pieces_[0] = *piece;
    busy_ = true;  // another thread that comes meanwhile takes the long way
    const Busy reset{busy_};
    const nb::gil_scoped_release unlocked;
    run_blocking(session_, Collective::all_reduce, pieces_, 0, no_name_, timeout_s);
    return true;
  }

  // All arrays of the list as one operation, when they have at most `most_bytes` together.
  bool all_reduce_list(const nb::typed<nb::list, nb::any>& arrays, const char* op_name,
                       std::int64_t most_bytes, double timeout_s) {
    const std::optional<ReduceOp> op = op_of(op_name);
    if (!op) return false;
    std::deque<Exported> exported;
    std::vector<Piece> pieces;
    pieces.reserve(arrays.size());
    std::int64_t bytes = 0;
    for (const nb::handle array : arrays) {
      const std::optional<Piece> piece = piece_of(array, exported.emplace_back());
      if (!piece) return false;
      pieces.push_back({piece->data, piece->count, piece->dtype, *op});
      bytes += piece->count * element_bytes(piece->dtype);
    }
    if (bytes > most_bytes) return false;
    const auto kept = nb::steal(PySequence_List(arrays.ptr()));  // it may change meanwhile
    const nb::gil_scoped_release unlocked;
    run_blocking(session_, Collective::all_reduce, pieces, 0, {}, timeout_s);
    return true;
  }

 private:
  struct Busy {
    bool& flag;
    ~Busy() { flag = false; }
  };

  std::optional<Piece> piece_of(nb::handle array, Exported& exported) {
    const nb::handle type = array.type();
    if (type.is(ndarray_)) return from_buffer(array, exported);
    if (type.is(tensor_type_) || learn(type)) return from_tensor(array);
    return std::nullopt;
  }

  static std::optional<Piece> from_buffer(nb::handle array, Exported& exported) {
    if (!exported.take(array.ptr())) return std::nullopt;
    const Py_buffer& buffer = exported.get();
    const std::optional<DType> dtype = dtype_of(buffer.format);
    if (!dtype || element_bytes(*dtype) != buffer.itemsize) return std::nullopt;
    return Piece{buffer.buf, buffer.len / buffer.itemsize, *dtype, ReduceOp::sum};
  }

  bool learn(nb::handle type) {
    constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
    if (!nb::hasattr(type, kAttribute)) return false;
    const nb::object capsule = type.attr(kAttribute);
    auto* api =
        static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) PyErr_Clear();
    while (api != nullptr && api->version.major > kExchangeMajor) api = api->previous;
    if (api == nullptr || api->version.major != kExchangeMajor ||
        api->tensor_from_object == nullptr) {
      return false;
    }
    tensor_type_ = nb::borrow(type);
    api_ = api;
    return true;
  }

  std::optional<Piece> from_tensor(nb::handle tensor) const {
    DLTensor view{};
    if (api_->tensor_from_object(tensor.ptr(), &view) != 0) {
      PyErr_Clear();
      return std::nullopt;
    }
    std::int64_t count = 1;
    for (std::int32_t axis = view.ndim - 1; axis >= 0; --axis) {
      const std::int64_t length = view.shape[axis];
      if (view.strides != nullptr && length != 1 && view.strides[axis] != count) {
        return std::nullopt;
      }
      count *= length;
    }
    const std::optional<DType> dtype = dtype_of(view.dtype.code, view.dtype.bits);
    // a single element may be a lazily negated view of a complex number: the long way knows
    if (!dtype || view.dtype.lanes != 1 || view.device.type != kCpu || count < 2) {
      return std::nullopt;
    }
    return Piece{static_cast<std::byte*>(view.data) + view.byte_offset, count, *dtype,
                 ReduceOp::sum};
  }

  Session& session_;
  nb::object ndarray_;
  nb::object tensor_type_;
  const ExchangeApi* api_ = nullptr;
  std::vector<Piece> pieces_;
  std::string no_name_;
  bool busy_ = false;
};

}  // namespace

void bind_caller(nb::module_& m) {
  nb::class_<Caller>(m, "Caller")
      .def(nb::init<Session&, nb::object>(), "session"_a, "ndarray"_a, nb::keep_alive<1, 2>())
      .def("all_reduce", &Caller::all_reduce, "array"_a, "op"_a, "timeout_s"_a)
      .def("all_reduce_list", &Caller::all_reduce_list, "arrays"_a, "op"_a, "most_bytes"_a,
           "timeout_s"_a);
}

}  // namespace kf::bindings
