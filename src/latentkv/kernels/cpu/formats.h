// The three storage formats as types, and scalar conversions for processors that have none.
#pragma once

#include <cstdint>
#include <cstring>

namespace latentkv {

struct Bf16 {
  using Storage = uint16_t;
};
struct Fp16 {
  using Storage = uint16_t;
};
struct Fp32 {
  using Storage = float;
};

// What a caller knows of the values to be rounded: a rounding that needs to look less is faster.
enum class Values {
  any,
  finite,
  normal,  // nor subnormal: their rounding may go through instructions that flush them
};

// One fp32 value for each row that is worked on together: one's root and division hide others'.
constexpr int kRows = 4;
typedef float Quad __attribute__((vector_size(16)));

// In the inner loops: left to itself, GCC 12 calls a fold's parts through memory, which doubles its time.
#define LATENTKV_INLINE inline __attribute__((always_inline))

constexpr uint32_t kQuietNan = 0x7fc00000;

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen_fp16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
    return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
  }
  return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t round_to_fp16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;  // a NaN stays one
  } else if (magnitude >= 0x477ff000) {
    half = 0x7c00;  // 65520 and above: 65504 + half a step ties to infinity
  } else if (magnitude < 0x38800000) {
    // Below 2^-14. Next to 0.5, fp32 steps by 2^-24, fp16's subnormal step: the addition rounds.
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

inline uint16_t round_to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return kQuietNan >> 16;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace latentkv
