// The torch-free core: rows of raw memory in, rows of raw memory out.
//
// docs/numerics.md defines the arithmetic; every instruction set gives the same bits. Nothing here
// allocates, throws or knows a tensor: binding.cpp does, and tests call the C functions below.
#pragma once

#include <cstdint>

namespace latentkv {

enum class Dtype : int { bf16 = 0, fp16 = 1, fp32 = 2 };
enum class Order : int { cast_then_gain = 0, gain_then_cast = 1 };

constexpr int kDtypes = 3;
constexpr int kOrders = 2;

// PyTorch's promotion of two of the three dtypes: equal ones stay, any other pair gives fp32.
constexpr Dtype promote(Dtype a, Dtype b) { return a == b ? a : Dtype::fp32; }

constexpr Dtype output_dtype(Dtype in, Dtype gain, Order order) {
  return order == Order::cast_then_gain ? promote(in, gain) : in;
}

constexpr int64_t kStreamAlign = 64;  // bytes: a cache line, and the widest vector

// Rows at constant strides, in elements. Outputs must not overlap inputs.
struct NormRows {
  const void* x;
  int64_t x_stride;
  const void* residual;  // null: the form without a residual; then sum is not used
  int64_t residual_stride;
  const void* gain;
  void* y;
  int64_t y_stride;
  void* sum;
  int64_t sum_stride;
  float* rstd;  // one a row; null: not wanted
  int64_t rows;
  int64_t follow;  // rows behind these that the caller turns to next, at the same strides: a hint
  int64_t width;
  bool stream;  // past the caches, where every row of y and sum starts at a multiple of kStreamAlign
  double eps;  // rounded to fp32 by the kernel, in IEEE mode: that is a rounding, too
};

using NormKernel = void (*)(const NormRows&);

// The kernel of the instruction set in use.
NormKernel norm_kernel(Dtype in, Dtype gain, Order order, bool with_residual);

// Rows of one backward call that are worked on together, wherever they lie. Only the last block of a
// call may be shorter.
constexpr int kGradRows = 4;

struct NormGradBlock {
  const void* dy[kGradRows];
  const void* x[kGradRows];
  const void* residual[kGradRows];  // null: the form without
  const void* dsum[kGradRows];      // see NormGradCall
  void* dx[kGradRows];
  float rstd[kGradRows];
  int64_t dy_ahead;  // elements to the rows of the next block, to prefetch them; 0: none
  int64_t x_ahead;
  int64_t dx_ahead;
  int rows;
};

struct NormGradCall {
  const void* gain;
  int64_t width;
  bool with_dsum;
  bool stream;  // dx, as in NormRows; the caller's fence has to follow
};

// Partial sums of the gain's gradient: level k holds one of 2^k rows, as a binary counter does.
struct GradSums {
  float* levels;       // 64-byte aligned
  int64_t level_size;  // in floats: the width, rounded up to kGradAlign
  int64_t rows;        // summed so far
};

constexpr int64_t kGradAlign = 32;  // what the widest instruction set handles at once

using NormGradKernel = void (*)(const NormGradBlock&, const NormGradCall&, GradSums&);
using GradTotal = void (*)(const GradSums&, float* out, int64_t width);

struct NormGradKernels {
  NormGradKernel rows;
  GradTotal total;
};

NormGradKernels norm_grad_kernels(Dtype in, Dtype gain, Order order);

// How a group's largest magnitude gives its scale: contracts.py's LatentQuant.
enum class Rule : int { act_quant, flashmla, vllm_fused, vllm_cuda, sglang };

struct QuantCall {
  int64_t width;
  int64_t group;  // divides the width
  Rule rule;
};

// One row's e4m3 codes, a byte each, and its fp32 scales, at any alignment.
using QuantCodes = void (*)(const void* latent, const QuantCall&, char* codes, char* scales);
// What they stand for, in the dtype of `out`; in place, if that is the source's.
using QuantValues = void (*)(const void* latent, const QuantCall&, void* out);

QuantCodes quant_codes(Dtype source);
QuantValues quant_values(Dtype source, Dtype out);

// contracts.py's RopeContract: the layout of the result, and how often is rounded.
enum class Rotation : int {
  none,
  half_each_step,
  half_result,
  interleaved_each_step,
  interleaved_result,
};

// One key of `width` features; cos of its pairs' angles, then sin (not read without rotation). Keys may
// not overlap. Streamed as in NormRows, where `out` and the key's bytes are multiples of kStreamAlign.
using KeyKernel = void (*)(const void* key, const float* cos, void* out, int64_t width, bool stream);

KeyKernel key_kernel(Dtype in, Rotation rotation);

// Rounds n fp32 values to the dtype, and widens values of it, on any instruction set.
void round_values(const float* values, void* out, int64_t n, Dtype dtype);
void widen_values(const void* values, Dtype dtype, float* out, int64_t n);

}  // namespace latentkv

extern "C" {

// The instruction sets that this processor runs, best first, separated by spaces.
const char* latentkv_instruction_sets();

// The one in use: the best, until another is chosen.
const char* latentkv_instruction_set();

// Choose one by name for the whole process. Returns 0, or -1 where this processor lacks it.
int latentkv_use_instruction_set(const char* name);

// NormRows, with the enums and the bool as ints, in IEEE mode on the calling thread. Returns 0, or -1
// for an unknown dtype or order.
int latentkv_norm_rows(int in, int gain_dtype, int order, const void* x, int64_t x_stride,
                       const void* residual, int64_t residual_stride, const void* gain, void* y,
                       int64_t y_stride, void* sum, int64_t sum_stride, int64_t rows,
                       int64_t width, int stream, double eps);
}
