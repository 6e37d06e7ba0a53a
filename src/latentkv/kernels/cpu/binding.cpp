// Tensors to rows, on torch's stable ABI: one build serves later torch and Python versions.
//
// _library.py declares the operators; this file implements them for the CPU. Its checks keep memory
// safe; what an error should say stands in definition/arguments.py, once for every backend.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "core.h"
#include "ieee_mode.h"
#include "row_walk.h"

namespace latentkv {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Below this many elements, waking another thread costs more than it saves (about 5 us).
constexpr int64_t kElementsPerThread = 32768;

Dtype dtype_of(const Tensor& tensor, const char* name) {
  const ScalarType type = tensor.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::BFloat16 || type == ScalarType::Half ||
                      type == ScalarType::Float,
                  "latentkv: ", name, " must be bfloat16, float16 or float32");
  if (type == ScalarType::BFloat16) return Dtype::bf16;
  return type == ScalarType::Half ? Dtype::fp16 : Dtype::fp32;
}

int32_t aten_dtype(Dtype dtype) {
  if (dtype == Dtype::bf16) return aoti_torch_dtype_bfloat16();
  return dtype == Dtype::fp16 ? aoti_torch_dtype_float16() : aoti_torch_dtype_float32();
}

Order order_of(const std::string& order) {
  if (order == "cast_then_gain") return Order::cast_then_gain;
  STD_TORCH_CHECK(order == "gain_then_cast",
                  "latentkv: order must be 'cast_then_gain' or 'gain_then_cast'");
  return Order::gain_then_cast;
}

// The bounds are the ties that still round into the range: no rounding happens here, in a mode that
// the caller may have changed.
double checked_eps(double eps) {
  STD_TORCH_CHECK(eps >= 0x1p-126 - 0x1p-150 && eps < 0x1.ffffffp127,
                  "latentkv: fp32(eps) must be finite and at least 2^-126");
  return eps;
}

Tensor empty_like_rows(const Tensor& x, Dtype dtype) {
  const auto sizes = x.sizes();
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), aten_dtype(dtype),
      aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

void check_unit_stride(const Tensor& tensor, const char* name) {
  const int64_t last = tensor.dim() - 1;
  STD_TORCH_CHECK(tensor.stride(last) == 1 || tensor.size(last) == 1 || tensor.numel() == 0,
                  "latentkv: the last stride of ", name, " must be 1");
}

size_t bytes_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

const char* at(const void* base, int64_t elements, size_t bytes) {
  return static_cast<const char*>(base) + elements * static_cast<int64_t>(bytes);
}

char* at(void* base, int64_t elements, size_t bytes) {
  return static_cast<char*>(base) + elements * static_cast<int64_t>(bytes);
}

struct Job {
  NormKernel kernel;
  NormRows call;  // strides, gain, width, eps; pointers to row 0
  RowWalk walk;
  size_t in_bytes;
  size_t out_bytes;

  void rows(int64_t begin, int64_t end) const {
    const IeeeMode mode;
    NormRows part = call;
    for (int64_t row = begin; row < end; row += part.rows) {
      const RowWalk::Run run = walk.run(row, end);
      part.rows = run.rows;
      part.x = at(call.x, run.x_offset, in_bytes);
      part.y = at(call.y, row * call.y_stride, out_bytes);
      if (call.residual) {
        part.residual = at(call.residual, run.residual_offset, in_bytes);
        part.sum = at(call.sum, row * call.sum_stride, in_bytes);
      }
      kernel(part);
    }
  }
};

// y, and into `sum` the rounded sum where there is a residual.
Tensor normalise(const Tensor& x, const Tensor* residual, const Tensor& gain, double eps,
                 const std::string& order_name, Tensor* sum) {
  const Dtype in = dtype_of(x, "x");
  const Dtype gain_dtype = dtype_of(gain, "gain");
  const Order order = order_of(order_name);
  const auto sizes = x.sizes();
  STD_TORCH_CHECK(!sizes.empty(), "latentkv: x must have at least one dimension");
  const int64_t leading = static_cast<int64_t>(sizes.size()) - 1;
  const int64_t width = sizes[leading];
  STD_TORCH_CHECK(width >= 1 && width <= (int64_t{1} << 24),
                  "latentkv: the width of x must be between 1 and 2^24");
  STD_TORCH_CHECK(gain.dim() == 1 && gain.size(0) == width,
                  "latentkv: gain must be 1-D and as long as the last dimension of x");
  STD_TORCH_CHECK(x.is_cpu() && gain.is_cpu(), "latentkv: x and gain must be on the same device");
  check_unit_stride(x, "x");
  check_unit_stride(gain, "gain");
  if (residual) {
    const auto other = residual->sizes();
    STD_TORCH_CHECK(residual->scalar_type() == x.scalar_type() && residual->is_cpu() &&
                        other.size() == sizes.size() &&
                        std::equal(sizes.begin(), sizes.end(), other.begin()),
                    "latentkv: residual must have the dtype, shape and device of x");
    check_unit_stride(*residual, "residual");
  }

  const Dtype out = output_dtype(in, gain_dtype, order);
  NormRows call{};
  call.width = width;
  call.eps = checked_eps(eps);
  Tensor y = empty_like_rows(x, out);
  if (residual) *sum = empty_like_rows(x, in);
  int64_t rows = 1;
  for (int64_t d = 0; d < leading; ++d) rows *= sizes[d];
  if (rows == 0) return y;

  const int64_t* x_strides = x.strides().data();
  Job job{norm_kernel(in, gain_dtype, order, residual != nullptr), call,
          RowWalk(sizes.data(), x_strides, residual ? residual->strides().data() : x_strides,
                  leading),
          bytes_of(in), bytes_of(out)};
  job.call.x = x.const_data_ptr();
  job.call.x_stride = job.walk.x_stride();
  job.call.gain = gain.const_data_ptr();
  job.call.y = y.mutable_data_ptr();
  job.call.y_stride = width;
  if (residual) {
    job.call.residual = residual->const_data_ptr();
    job.call.residual_stride = job.walk.residual_stride();
    job.call.sum = sum->mutable_data_ptr();
    job.call.sum_stride = width;
  }

  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / width);
  if (rows <= grain) {
    job.rows(0, rows);
  } else {
    STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(
        0, rows, grain,
        [](int64_t begin, int64_t end, void* job) {
          static_cast<const Job*>(job)->rows(begin, end);
        },
        &job));
  }
  return y;
}

// A string argument, freed: torch 2.13's own conversion to std::string leaks 64 bytes a call.
std::string take(StringHandle handle) {
  const char* text = nullptr;
  size_t length = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &text));
  std::string copy(text, length);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return copy;
}

Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps, StringHandle order) {
  return normalise(x, nullptr, gain, eps, take(order), nullptr);
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const Tensor& gain, double eps, StringHandle order) {
  Tensor sum;
  Tensor y = normalise(x, &residual, gain, eps, take(order), &sum);
  return {y, sum};
}

}  // namespace
}  // namespace latentkv

STABLE_TORCH_LIBRARY_IMPL(latentkv, CPU, library) {
  library.impl("rms_norm", TORCH_BOX(&latentkv::rms_norm));
  library.impl("add_rms_norm", TORCH_BOX(&latentkv::add_rms_norm));
}
