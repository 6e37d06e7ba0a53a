// The row algorithm compiled once per instruction set, and the choice among them.
#include "core.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "formats.h"
#include "ieee_mode.h"

// One source, a compilation for each instruction set: the compiler applies a target to the functions between begin and
// end. target_clones would do as much, but no test could force its choice.
#if defined(__x86_64__) && defined(__clang__)
#define LATENTKV_X86 1
#define BEGIN_AVX2 \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,f16c\"))), apply_to = function)")
#define BEGIN_AVX512 \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,f16c\"))), apply_to = function)")
#define BEGIN_AVX512_BF16 \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c\"))), apply_to = function)")
#define END_TARGET _Pragma("clang attribute pop")
#elif defined(__x86_64__) && defined(__GNUC__)
#define LATENTKV_X86 1
#define BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,f16c\")")
#define BEGIN_AVX512          \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,f16c\")")
#define BEGIN_AVX512_BF16     \
  _Pragma("GCC push_options") \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c\")")
#define END_TARGET _Pragma("GCC pop_options")
#endif

#ifdef LATENTKV_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace latentkv {

// What one instruction set offers.
struct Kernels {
  NormKernel (*norm)(Dtype in, Dtype gain, Order order, bool with_residual);
  NormGradKernel (*grad)(Dtype in, Dtype gain, Order order);
  GradTotal total;
  QuantCodes (*codes)(Dtype source);
  QuantValues (*values)(Dtype source, Dtype out);
  KeyKernel (*key)(Dtype in, Rotation rotation);
};

namespace baseline {
#include "vec_baseline.inc"

#include "kernels.inc"
}  // namespace baseline

#ifdef LATENTKV_X86
BEGIN_AVX2
namespace avx2 {
#include "vec_avx2.inc"

#include "kernels.inc"
}  // namespace avx2
END_TARGET

BEGIN_AVX512
namespace avx512 {
#include "vec_avx512.inc"

#include "kernels.inc"
}  // namespace avx512
END_TARGET

BEGIN_AVX512_BF16
#define LATENTKV_BF16_INSTRUCTIONS 1
namespace avx512_bf16 {
#include "vec_avx512.inc"

#include "kernels.inc"
}  // namespace avx512_bf16
#undef LATENTKV_BF16_INSTRUCTIONS
END_TARGET
#endif

namespace {

#ifdef LATENTKV_X86
bool has_f16c() {  // clang's __builtin_cpu_supports doesn't know the name
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct InstructionSet {
  const char* name;
  bool available;
  Kernels kernels;
};

// Best first.
const InstructionSet* instruction_sets() {
  static const InstructionSet sets[] = {
#ifdef LATENTKV_X86
      {"avx512_bf16", has_avx512() && __builtin_cpu_supports("avx512bf16"), avx512_bf16::kernels()},
      {"avx512", has_avx512(), avx512::kernels()},
      {"avx2", __builtin_cpu_supports("avx2") && has_f16c(), avx2::kernels()},
#endif
      {"baseline", true, baseline::kernels()},
      {nullptr, false, {}},
  };
  return sets;
}

const InstructionSet* best() {
  const InstructionSet* set = instruction_sets();
  while (!set->available) ++set;
  return set;
}

std::atomic<const InstructionSet*>& in_use() {
  static std::atomic<const InstructionSet*> set{best()};
  return set;
}

}  // namespace

namespace {
const Kernels& chosen() { return in_use().load(std::memory_order_relaxed)->kernels; }
}  // namespace

NormKernel norm_kernel(Dtype in, Dtype gain, Order order, bool with_residual) {
  return chosen().norm(in, gain, order, with_residual);
}

NormGradKernels norm_grad_kernels(Dtype in, Dtype gain, Order order) {
  const Kernels& kernels = chosen();
  return {kernels.grad(in, gain, order), kernels.total};
}

QuantCodes quant_codes(Dtype source) { return chosen().codes(source); }

QuantValues quant_values(Dtype source, Dtype out) { return chosen().values(source, out); }

KeyKernel key_kernel(Dtype in, Rotation rotation) { return chosen().key(in, rotation); }

void widen_values(const void* values, Dtype dtype, float* out, int64_t n) {
  if (dtype == Dtype::fp32) {
    std::memcpy(out, values, static_cast<size_t>(n) * sizeof *out);
    return;
  }
  const auto* from = static_cast<const uint16_t*>(values);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = dtype == Dtype::fp16 ? widen_fp16(from[i]) : float_of(uint32_t{from[i]} << 16);
  }
}

void round_values(const float* values, void* out, int64_t n, Dtype dtype) {
  for (int64_t i = 0; i < n; ++i) {
    if (dtype == Dtype::fp32) {
      static_cast<float*>(out)[i] = values[i];
    } else if (dtype == Dtype::fp16) {
      static_cast<uint16_t*>(out)[i] = round_to_fp16(values[i]);
    } else {
      static_cast<uint16_t*>(out)[i] = round_to_bf16(values[i]);
    }
  }
}

}  // namespace latentkv

using namespace latentkv;

extern "C" {

const char* latentkv_instruction_sets() {
  static const struct Names {
    char text[64] = "";
    Names() {
      for (const auto* set = instruction_sets(); set->name; ++set) {
        if (!set->available) continue;
        if (text[0]) std::strcat(text, " ");
        std::strcat(text, set->name);
      }
    }
  } names;
  return names.text;
}

const char* latentkv_instruction_set() { return in_use().load()->name; }

int latentkv_use_instruction_set(const char* name) {
  for (const auto* set = instruction_sets(); set->name; ++set) {
    if (set->available && std::strcmp(set->name, name) == 0) {
      in_use().store(set);
      return 0;
    }
  }
  return -1;
}

int latentkv_norm_rows(int in, int gain_dtype, int order, const void* x, int64_t x_stride,
                       const void* residual, int64_t residual_stride, const void* gain, void* y,
                       int64_t y_stride, void* sum, int64_t sum_stride, int64_t rows,
                       int64_t width, int stream, double eps) {
  const auto known = [](int value, int count) { return value >= 0 && value < count; };
  if (!known(in, kDtypes) || !known(gain_dtype, kDtypes) || !known(order, kOrders)) return -1;
  const IeeeMode mode;
  norm_kernel(static_cast<Dtype>(in), static_cast<Dtype>(gain_dtype), static_cast<Order>(order),
              residual != nullptr)(NormRows{x, x_stride, residual, residual_stride, gain, y,
                                            y_stride, sum, sum_stride, nullptr, rows, 0, width,
                                            stream != 0, eps});
  return 0;
}
}
