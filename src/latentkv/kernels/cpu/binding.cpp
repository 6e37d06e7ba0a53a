// The forward operators: tensors to rows, on torch's stable ABI. One build serves later torch and
// Python versions. _library.py declares what this file implements for the CPU.
#include <optional>
#include <tuple>

#include "ieee_mode.h"
#include "row_walk.h"
#include "tensors.h"

namespace latentkv {
namespace {

struct Job {
  NormKernel kernel;
  NormRows call;  // strides, gain, width, eps; pointers to row 0
  RowWalk<2> walk;
  int64_t in_bytes;
  int64_t out_bytes;

  void rows(int64_t begin, int64_t end) const {
    const IeeeMode mode;
    NormRows part = call;
    for (int64_t row = begin; row < end; row += part.rows) {
      const auto run = walk.run(row, end);
      part.rows = run.rows;
      part.x = at(call.x, run.offsets[0], in_bytes);
      part.y = at(call.y, row * call.y_stride, out_bytes);
      if (call.residual) {
        part.residual = at(call.residual, run.offsets[1], in_bytes);
        part.sum = at(call.sum, row * call.sum_stride, in_bytes);
      }
      if (call.rstd) part.rstd = call.rstd + row;
      kernel(part);
    }
  }
};

struct Outputs {
  Tensor y;
  std::optional<Tensor> sum;   // with a residual
  std::optional<Tensor> rstd;  // where asked for
};

Outputs normalise(const Tensor& x, const Tensor* residual, const Tensor& gain, double eps,
                  const std::string& order_name, bool with_rstd) {
  const Dtype in = dtype_of(x, "x"), gain_dtype = dtype_of(gain, "gain");
  const Order order = order_of(order_name);
  const Shape shape(x, gain);
  if (residual) shape.check_like(*residual, x.scalar_type(), "residual");

  const Dtype out = output_dtype(in, gain_dtype, order);
  NormRows call{};
  call.width = shape.width;
  call.eps = checked_eps(eps);
  Outputs outputs{empty(shape.sizes, shape.leading + 1, out), {}, {}};
  if (residual) outputs.sum = empty(shape.sizes, shape.leading + 1, in);
  if (with_rstd) outputs.rstd = empty(shape.sizes, shape.leading, Dtype::fp32);
  if (shape.rows == 0) return outputs;

  const int64_t* x_strides = x.strides().data();
  Job job{norm_kernel(in, gain_dtype, order, residual != nullptr), call,
          RowWalk<2>(shape.sizes, {x_strides, residual ? residual->strides().data() : x_strides},
                     shape.leading),
          bytes_of(in), bytes_of(out)};
  job.call.x = x.const_data_ptr();
  job.call.x_stride = job.walk.strides()[0];
  job.call.gain = gain.const_data_ptr();
  job.call.y = outputs.y.mutable_data_ptr();
  job.call.y_stride = shape.width;
  job.call.stream = streams(job.call.y, shape.rows, shape.width * job.out_bytes);
  if (with_rstd) job.call.rstd = static_cast<float*>(outputs.rstd->mutable_data_ptr());
  if (residual) {
    job.call.residual = residual->const_data_ptr();
    job.call.residual_stride = job.walk.strides()[1];
    job.call.sum = outputs.sum->mutable_data_ptr();
    job.call.sum_stride = shape.width;
    job.call.stream &= streams(job.call.sum, shape.rows, shape.width * job.in_bytes);
  }

  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / shape.width);
  if (shape.rows <= grain) {
    job.rows(0, shape.rows);
  } else {
    STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(
        0, shape.rows, grain,
        [](int64_t begin, int64_t end, void* job) {
          static_cast<const Job*>(job)->rows(begin, end);
        },
        &job));
  }
  return outputs;
}

Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps, StringHandle order) {
  return normalise(x, nullptr, gain, eps, take(order), false).y;
}

std::tuple<Tensor, Tensor> rms_norm_fwd(const Tensor& x, const Tensor& gain, double eps,
                                        StringHandle order) {
  Outputs outputs = normalise(x, nullptr, gain, eps, take(order), true);
  return {outputs.y, *outputs.rstd};
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const Tensor& gain, double eps, StringHandle order) {
  Outputs outputs = normalise(x, &residual, gain, eps, take(order), false);
  return {outputs.y, *outputs.sum};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_fwd(const Tensor& x, const Tensor& residual,
                                                    const Tensor& gain, double eps,
                                                    StringHandle order) {
  Outputs outputs = normalise(x, &residual, gain, eps, take(order), true);
  return {outputs.y, *outputs.sum, *outputs.rstd};
}

}  // namespace
}  // namespace latentkv

STABLE_TORCH_LIBRARY_IMPL(latentkv, CPU, library) {
  library.impl("rms_norm", TORCH_BOX(&latentkv::rms_norm));
  library.impl("rms_norm_fwd", TORCH_BOX(&latentkv::rms_norm_fwd));
  library.impl("add_rms_norm", TORCH_BOX(&latentkv::add_rms_norm));
  library.impl("add_rms_norm_fwd", TORCH_BOX(&latentkv::add_rms_norm_fwd));
}
