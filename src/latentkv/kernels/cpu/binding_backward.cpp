// The backward operators: tensors to blocks of rows, and the gain's gradient over all of them.
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <tuple>

#include "ieee_mode.h"
#include "row_walk.h"
#include "tensors.h"

namespace latentkv {
namespace {

enum Operand { kDy, kX, kResidual, kDsum, kOperands };

struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float, FreeFloats>;

Floats aligned_floats(int64_t n) {
  void* p = std::aligned_alloc(64, static_cast<size_t>(n) * sizeof(float));  // n: a multiple of 32
  STD_TORCH_CHECK(p, "latentkv: out of memory");
  return Floats(static_cast<float*>(p));
}

// The rows are cut into chunks of one power of two (the last may be shorter): the fold over all rows
// is then the fold of the chunks' folds, whatever the length and whoever computes them.
int64_t chunk_rows(int64_t rows) {
  uint32_t threads = 1;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  int64_t chunk = 64;
  while (chunk * 4 * threads < rows) chunk *= 2;  // 4 to 8 chunks a thread
  return chunk;
}

struct GradJob {
  NormGradKernels kernels;
  NormGradCall call;
  RowWalk<kOperands> walk;
  std::array<const void*, kOperands> operands;  // null where absent
  std::array<int64_t, kOperands> bytes;
  const float* rstd;
  void* dx;
  int64_t rows;
  int64_t chunk;
  int64_t level_size;
  float* totals;  // a row of width for each chunk

  void chunks(int64_t begin, int64_t end) const {
    const IeeeMode mode;
    int levels = 1;
    while (int64_t{1} << (levels - 1) < std::min(chunk, rows)) ++levels;
    const Floats scratch = aligned_floats(levels * level_size);
    for (int64_t c = begin; c < end; ++c) {
      GradSums sums{scratch.get(), level_size, 0};
      NormGradBlock block{};
      const int64_t last = std::min(rows, (c + 1) * chunk);
      for (int64_t row = c * chunk; row < last;) {
        const auto run = walk.run(row, last);
        for (int64_t i = 0; i < run.rows; ++i, ++row) {
          if (block.rows == 0) {
            const bool ahead = i + 2 * kGradRows <= run.rows;
            block.dy_ahead = ahead ? kGradRows * walk.strides()[kDy] : 0;
            block.x_ahead = ahead ? kGradRows * walk.strides()[kX] : 0;
            block.dx_ahead = ahead ? kGradRows * call.width : 0;
          }
          add(block, row, run.offsets, i);
          if (block.rows == kGradRows || row + 1 == last) {
            kernels.rows(block, call, sums);
            block.rows = 0;
          }
        }
      }
      kernels.total(sums, totals + c * call.width, call.width);
    }
    if (call.stream) std::atomic_thread_fence(std::memory_order_seq_cst);  // see core.h
  }

  void add(NormGradBlock& block, int64_t row, const std::array<int64_t, kOperands>& first,
           int64_t i) const {
    const int k = block.rows++;
    const auto where = [&](Operand t) -> const void* {
      if (!operands[t]) return nullptr;
      return at(operands[t], first[t] + i * walk.strides()[t], bytes[t]);
    };
    block.dy[k] = where(kDy);
    block.x[k] = where(kX);
    block.residual[k] = where(kResidual);
    block.dsum[k] = where(kDsum);
    block.dx[k] = at(dx, row * call.width, bytes[kX]);
    block.rstd[k] = rstd[row];
  }
};

// Folds the chunks' totals into the first.
void fold_totals(float* totals, int64_t chunks, int64_t width) {
  const IeeeMode mode;
  for (; chunks > 1; chunks = (chunks + 1) / 2) {
    for (int64_t c = 0; c < chunks; c += 2) {
      const float* left = totals + c * width;
      float* out = totals + c / 2 * width;
      if (c + 1 < chunks) {
        for (int64_t i = 0; i < width; ++i) out[i] = left[i] + left[width + i];
      } else if (c) {
        std::copy(left, left + width, out);
      }
    }
  }
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor* dsum, const Tensor& x,
                                    const Tensor* residual, const Tensor& gain,
                                    const Tensor& rstd, const std::string& order_name) {
  const Dtype in = dtype_of(x, "x"), gain_dtype = dtype_of(gain, "gain");
  const Order order = order_of(order_name);
  const Shape shape(x, gain);
  const Dtype out = output_dtype(in, gain_dtype, order);
  const ScalarType out_type = out == in           ? x.scalar_type()
                              : out == gain_dtype ? gain.scalar_type()
                                                  : ScalarType::Float;
  shape.check_like(dy, out_type, "dy");
  if (residual) shape.check_like(*residual, x.scalar_type(), "residual");
  if (dsum) shape.check_like(*dsum, x.scalar_type(), "dsum");
  STD_TORCH_CHECK(rstd.scalar_type() == ScalarType::Float && rstd.numel() == shape.rows &&
                      rstd.is_contiguous() && rstd.is_cpu(),
                  "latentkv: rstd must be contiguous float32 with one value a row");

  Tensor dx = empty(shape.sizes, shape.leading + 1, in);
  Tensor dgain = empty(&shape.width, 1, gain_dtype);
  if (shape.rows == 0) {
    std::memset(dgain.mutable_data_ptr(), 0, static_cast<size_t>(shape.width * bytes_of(gain_dtype)));
    return {dx, dgain};
  }
  const int64_t* strides = x.strides().data();
  const auto strides_of = [&](const Tensor* t) { return t ? t->strides().data() : strides; };
  const int64_t chunk = chunk_rows(shape.rows);
  const int64_t chunks = (shape.rows + chunk - 1) / chunk;
  std::vector<float> totals(static_cast<size_t>(chunks * shape.width));
  GradJob job{
      norm_grad_kernels(in, gain_dtype, order),
      NormGradCall{gain.const_data_ptr(), shape.width, dsum != nullptr,
                   streams(dx.const_data_ptr(), shape.rows, shape.width * bytes_of(in))},
      RowWalk<kOperands>(shape.sizes,
                         {dy.strides().data(), strides, strides_of(residual), strides_of(dsum)},
                         shape.leading),
      {dy.const_data_ptr(), x.const_data_ptr(), residual ? residual->const_data_ptr() : nullptr,
       dsum ? dsum->const_data_ptr() : nullptr},
      {bytes_of(out), bytes_of(in), bytes_of(in), bytes_of(in)},
      static_cast<const float*>(rstd.const_data_ptr()),
      dx.mutable_data_ptr(),
      shape.rows,
      chunk,
      (shape.width + kGradAlign - 1) / kGradAlign * kGradAlign,
      totals.data()};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(
      0, chunks, 1,
      [](int64_t begin, int64_t end, void* job) {
        static_cast<const GradJob*>(job)->chunks(begin, end);
      },
      &job));
  fold_totals(totals.data(), chunks, shape.width);
  const IeeeMode mode;
  round_values(totals.data(), dgain.mutable_data_ptr(), shape.width, gain_dtype);
  return {dx, dgain};
}

std::tuple<Tensor, Tensor> rms_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& gain,
                                        const Tensor& rstd, StringHandle order) {
  return backward(dy, nullptr, x, nullptr, gain, rstd, take(order));
}

std::tuple<Tensor, Tensor> add_rms_norm_bwd(const Tensor& dy, std::optional<Tensor> dsum,
                                            const Tensor& x, const Tensor& residual,
                                            const Tensor& gain, const Tensor& rstd,
                                            StringHandle order) {
  return backward(dy, dsum ? &*dsum : nullptr, x, &residual, gain, rstd, take(order));
}

}  // namespace
}  // namespace latentkv

STABLE_TORCH_LIBRARY_IMPL(latentkv, CPU, library) {
  library.impl("rms_norm_bwd", TORCH_BOX(&latentkv::rms_norm_bwd));
  library.impl("add_rms_norm_bwd", TORCH_BOX(&latentkv::add_rms_norm_bwd));
}
