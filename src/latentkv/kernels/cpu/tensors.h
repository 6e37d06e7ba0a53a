// What both bindings ask of torch's tensors. The checks keep memory safe; what an error should say
// stands in definition/arguments.py, once for every backend.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core.h"

namespace latentkv {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Below this many elements, waking another thread costs more than it saves (about 5 us).
constexpr int64_t kElementsPerThread = 32768;

inline Dtype dtype_of(const Tensor& tensor, const char* name) {
  const ScalarType type = tensor.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::BFloat16 || type == ScalarType::Half ||
                      type == ScalarType::Float,
                  "latentkv: ", name, " must be bfloat16, float16 or float32");
  if (type == ScalarType::BFloat16) return Dtype::bf16;
  return type == ScalarType::Half ? Dtype::fp16 : Dtype::fp32;
}

inline int32_t aten_dtype(Dtype dtype) {
  if (dtype == Dtype::bf16) return aoti_torch_dtype_bfloat16();
  return dtype == Dtype::fp16 ? aoti_torch_dtype_float16() : aoti_torch_dtype_float32();
}

inline Order order_of(const std::string& order) {
  if (order == "cast_then_gain") return Order::cast_then_gain;
  STD_TORCH_CHECK(order == "gain_then_cast",
                  "latentkv: order must be 'cast_then_gain' or 'gain_then_cast'");
  return Order::gain_then_cast;
}

// The bounds are the ties that still round into the range: no rounding happens here, in a mode that
// the caller may have changed.
inline double checked_eps(double eps) {
  STD_TORCH_CHECK(eps >= 0x1p-126 - 0x1p-150 && eps < 0x1.ffffffp127,
                  "latentkv: fp32(eps) must be finite and at least 2^-126");
  return eps;
}

// A new contiguous tensor with the first `dims` sizes of a shape.
inline Tensor empty(const int64_t* sizes, int64_t dims, Dtype dtype) {
  std::vector<int64_t> strides(static_cast<size_t>(dims));
  int64_t stride = 1;
  for (int64_t d = dims; d-- > 0;) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dims, sizes, strides.data(),
                                                         aten_dtype(dtype),
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

inline void check_unit_stride(const Tensor& tensor, const char* name) {
  const int64_t last = tensor.dim() - 1;
  STD_TORCH_CHECK(tensor.stride(last) == 1 || tensor.size(last) == 1 || tensor.numel() == 0,
                  "latentkv: the last stride of ", name, " must be 1");
}

inline int64_t bytes_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

inline const char* at(const void* base, int64_t elements, int64_t bytes) {
  return static_cast<const char*>(base) + elements * bytes;
}

inline char* at(void* base, int64_t elements, int64_t bytes) {
  return static_cast<char*>(base) + elements * bytes;
}

// Outputs above this are written past the caches: what pushes itself out again need not be read in
// first. At 32,768 rows of 512 that halves the time (207 to 98 ns a row and thread); below, the reader
// would miss. A constant, since a virtual machine's report of its caches may be ten times too large.
constexpr int64_t kStreamBytes = int64_t{16} << 20;

inline bool streams(const void* output, int64_t rows, int64_t row_bytes) {
  return rows * row_bytes > kStreamBytes && row_bytes % kStreamAlign == 0 &&
         reinterpret_cast<uintptr_t>(output) % kStreamAlign == 0;
}

// A string argument, freed: torch 2.13's own conversion to std::string leaks 64 bytes a call.
inline std::string take(StringHandle handle) {
  const char* text = nullptr;
  size_t length = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &text));
  std::string copy(text, length);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return copy;
}

// Rows of x [..., width] with a gain [width], checked.
struct Shape {
  const int64_t* sizes;
  int64_t leading;  // dimensions before the last
  int64_t width;
  int64_t rows;

  Shape(const Tensor& x, const Tensor& gain) {
    const auto all = x.sizes();
    STD_TORCH_CHECK(!all.empty(), "latentkv: x must have at least one dimension");
    sizes = all.data();
    leading = static_cast<int64_t>(all.size()) - 1;
    width = sizes[leading];
    STD_TORCH_CHECK(width >= 1 && width <= (int64_t{1} << 24),
                    "latentkv: the width of x must be between 1 and 2^24");
    STD_TORCH_CHECK(gain.dim() == 1 && gain.size(0) == width,
                    "latentkv: gain must be 1-D and as long as the last dimension of x");
    STD_TORCH_CHECK(x.is_cpu() && gain.is_cpu(), "latentkv: x and gain must be on the same device");
    check_unit_stride(x, "x");
    check_unit_stride(gain, "gain");
    rows = 1;
    for (int64_t d = 0; d < leading; ++d) rows *= sizes[d];
  }

  // Another tensor that must look like x, but for its strides.
  void check_like(const Tensor& other, ScalarType type, const char* name) const {
    const auto its = other.sizes();
    STD_TORCH_CHECK(other.scalar_type() == type && other.is_cpu() &&
                        static_cast<int64_t>(its.size()) == leading + 1 &&
                        std::equal(its.begin(), its.end(), sizes),
                    "latentkv: ", name, " must have the dtype, shape and device that go with x");
    check_unit_stride(other, name);
  }
};

}  // namespace latentkv
