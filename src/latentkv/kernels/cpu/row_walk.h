// Leading dimensions with any strides, walked as runs of rows at a constant stride.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace latentkv {

// N tensors of one leading shape, each with strides of its own. Offsets are in elements and 64-bit:
// a view with a row stride of 2112 passes 2^31 at row 1,016,801.
template <int N>
class RowWalk {
 public:
  using Offsets = std::array<int64_t, N>;

  RowWalk(const int64_t* sizes, const std::array<const int64_t*, N>& strides, int64_t leading) {
    for (int64_t d = leading - 1; d >= 0; --d) {
      if (sizes[d] == 1) continue;
      Dim dim{sizes[d], {}};
      for (int t = 0; t < N; ++t) dim.strides[t] = strides[t][d];
      if (!dims_.empty() && continues(dims_.back(), dim)) {
        dims_.back().size *= dim.size;
      } else {
        dims_.push_back(dim);
      }
    }
    if (dims_.empty()) dims_.push_back(Dim{1, {}});
  }

  struct Run {
    Offsets offsets;  // of its first row
    int64_t rows;
  };

  const Offsets& strides() const { return dims_[0].strides; }

  // The run that starts at `row` and ends before `end`, or where the stride changes.
  Run run(int64_t row, int64_t end) const {
    Run run{{}, std::min(end - row, dims_[0].size - row % dims_[0].size)};
    for (const Dim& dim : dims_) {
      const int64_t i = row % dim.size;
      row /= dim.size;
      for (int t = 0; t < N; ++t) run.offsets[t] += i * dim.strides[t];
    }
    return run;
  }

 private:
  struct Dim {
    int64_t size;
    Offsets strides;
  };

  // Whether one step of `outer` is `inner.size` steps of `inner`, in every tensor.
  static bool continues(const Dim& inner, const Dim& outer) {
    for (int t = 0; t < N; ++t) {
      if (outer.strides[t] != inner.size * inner.strides[t]) return false;
    }
    return true;
  }

  std::vector<Dim> dims_;  // innermost first
};

}  // namespace latentkv
