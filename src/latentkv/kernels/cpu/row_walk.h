// Leading dimensions with any strides, walked as runs of rows at a constant stride.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace latentkv {

// Offsets are in elements and 64-bit: a view with a row stride of 2112 passes 2^31 at row 1,016,801.
class RowWalk {
 public:
  // The leading sizes, and for both tensors their strides over them (equal ones for one tensor).
  RowWalk(const int64_t* sizes, const int64_t* x_strides, const int64_t* residual_strides,
          int64_t leading) {
    for (int64_t d = leading - 1; d >= 0; --d) {
      if (sizes[d] == 1) continue;
      const Dim dim{sizes[d], x_strides[d], residual_strides[d]};
      if (!dims_.empty() && continues(dims_.back(), dim)) {
        dims_.back().size *= dim.size;
      } else {
        dims_.push_back(dim);
      }
    }
    if (dims_.empty()) dims_.push_back(Dim{1, 0, 0});
  }

  struct Run {
    int64_t x_offset;
    int64_t residual_offset;
    int64_t rows;
  };

  int64_t x_stride() const { return dims_[0].x_stride; }
  int64_t residual_stride() const { return dims_[0].residual_stride; }

  // The run that starts at `row` and ends before `end`, or where the stride changes.
  Run run(int64_t row, int64_t end) const {
    Run run{0, 0, std::min(end - row, dims_[0].size - row % dims_[0].size)};
    for (const Dim& dim : dims_) {
      const int64_t i = row % dim.size;
      row /= dim.size;
      run.x_offset += i * dim.x_stride;
      run.residual_offset += i * dim.residual_stride;
    }
    return run;
  }

 private:
  struct Dim {
    int64_t size;
    int64_t x_stride;
    int64_t residual_stride;
  };

  // Whether one step of `outer` is `inner.size` steps of `inner`, in both tensors.
  static bool continues(const Dim& inner, const Dim& outer) {
    return outer.x_stride == inner.size * inner.x_stride &&
           outer.residual_stride == inner.size * inner.residual_stride;
  }

  std::vector<Dim> dims_;  // innermost first
};

}  // namespace latentkv
