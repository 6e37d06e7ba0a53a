// Rows of the down-projection's output, compressed into wherever they are kept. Torch-free, as core.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core.h"

namespace latentkv {

constexpr int kChunk = 64;                         // rows worked on together, at most
constexpr int kQuantChunk = 16;                    // where latents wait in the first cache
constexpr int64_t kStagedBytes = int64_t{1} << 17;  // what a thread may hold of them
constexpr int kAhead = 2;   // rows from which a record is fetched before it is written

// One call: what is the same for every row.
struct PathCall {
  NormRows norm;  // gain, width, eps, stream; the rest is filled in a chunk at a time
  NormKernel normalise;
  Dtype in;       // of the rows
  Dtype latent;   // of the latent as it is used
  int64_t key_width;
  KeyKernel turn;

  bool stream_keys;

  bool quantised;
  QuantCall quant;
  bool as_codes;  // an fp8 record's latent: codes, then scales
  Dtype source;   // what is quantised: the latent, or what it was before it was rounded
  bool widen;     // rows are widened to fp32 first: their norm is then not rounded
  QuantCodes codes;
  QuantValues values;
};

// A row and where its parts go.
struct PathRow {
  const char* x;
  const float* cos;  // of its position; null without rotation
  char* latent;
  char* key;
  float* rstd;  // null: not wanted
};

inline int64_t size_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

// Collects rows and works on them a chunk at a time, each read from memory once.
class PathRows {
 public:
  explicit PathRows(const PathCall& call)
      : call_(call),
        most_(static_cast<int>(std::clamp<int64_t>(kStagedBytes / (call.norm.width * 4), 1,
                                                   call.quantised ? kQuantChunk : kChunk))) {}

  void add(const PathRow& row) {
    rows_[count_++] = row;
    if (count_ == most_) flush();
  }

  void flush() {
    if (count_ == 0) return;
    const int64_t key = call_.norm.width * size_of(call_.in);
    const int64_t key_bytes = call_.key_width * size_of(call_.in);
    for (int k = 0; k < count_; ++k) prefetch<false>(rows_[k].x + key, key_bytes);
    normalise();
    for (int k = 0; k < count_; ++k) {
      const PathRow& row = rows_[k];
      call_.turn(row.x + key, row.cos, row.key, call_.key_width, call_.stream_keys);
    }
    count_ = 0;
  }

 private:
  void normalise() {
    const Dtype in = call_.widen ? Dtype::fp32 : call_.in;
    const Dtype out = call_.quantised ? call_.source : call_.latent;
    const int64_t in_bytes = call_.norm.width * size_of(in), out_bytes = call_.norm.width * size_of(out);
    NormRows part = call_.norm;
    part.rows = count_;
    // Where latents are quantised, that takes most of the time: rows are fetched meanwhile.
    part.follow = count_ == most_ && !call_.quantised ? most_ : 0;
    part.rstd = rows_[0].rstd;
    if (call_.widen || !evenly(&PathRow::x, size_of(in), part.x_stride)) {
      char* staged = space(in_, in_bytes);
      for (int k = 0; k < count_; ++k) {
        widen_or_copy(rows_[k].x, staged + k * in_bytes);
      }
      part.x = staged;
      part.x_stride = call_.norm.width;
    } else {
      part.x = rows_[0].x;
    }
    if (!call_.quantised && evenly(&PathRow::latent, size_of(out), part.y_stride)) {
      part.y = rows_[0].latent;
      call_.normalise(part);
      return;
    }
    char* staged = space(out_, out_bytes);
    part.y = staged;
    part.y_stride = call_.norm.width;
    part.stream = false;
    call_.normalise(part);
    const int64_t key_bytes = call_.key_width * size_of(call_.in);
    const int64_t x_bytes = call_.norm.width * size_of(call_.in) + key_bytes;
    for (int k = 0; k < count_; ++k) {
      if (count_ == most_ && count_ > 1) {  // the next chunk's row, if it lies where one would expect it
        prefetch<false>(rows_[k].x + count_ * (rows_[1].x - rows_[0].x), x_bytes);
      }
      if (k + kAhead < count_) {
        const PathRow& ahead = rows_[k + kAhead];
        prefetch<true>(ahead.latent, call_.as_codes ? ahead.key - ahead.latent : out_bytes);
        prefetch<true>(ahead.key, key_bytes);
      }
      const char* latent = staged + k * out_bytes;
      if (!call_.quantised) {
        std::memcpy(rows_[k].latent, latent, static_cast<size_t>(out_bytes));
      } else if (call_.as_codes) {
        call_.codes(latent, call_.quant, rows_[k].latent, rows_[k].latent + call_.quant.width);
      } else {
        call_.values(latent, call_.quant, rows_[k].latent);
      }
    }
  }

  template <bool kWrite>
  static void prefetch(const char* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += kStreamAlign) __builtin_prefetch(p + i, kWrite);
  }

  // Whether the rows' pointers lie apart at one stride, in elements of this size, and which.
  template <class Pointer>
  bool evenly(Pointer PathRow::*where, int64_t size, int64_t& stride) const {
    const int64_t step = count_ > 1 ? rows_[1].*where - rows_[0].*where : 0;
    for (int k = 2; k < count_; ++k) {
      if (rows_[k].*where - rows_[k - 1].*where != step) return false;
    }
    stride = step / size;
    return step % size == 0 && (step != 0 || count_ == 1);
  }

  void widen_or_copy(const char* x, char* to) const {
    if (call_.widen) {
      widen_values(x, call_.in, reinterpret_cast<float*>(to), call_.norm.width);
    } else {
      std::memcpy(to, x, static_cast<size_t>(call_.norm.width * size_of(call_.in)));
    }
  }

  char* space(std::vector<char>& memory, int64_t row_bytes) const {
    memory.resize(static_cast<size_t>(row_bytes) * (count_ > 1 ? most_ : 1));
    return memory.data();
  }

  const PathCall& call_;
  const int most_;
  PathRow rows_[kChunk];
  int count_ = 0;
  std::vector<char> in_, out_;
};

}  // namespace latentkv
