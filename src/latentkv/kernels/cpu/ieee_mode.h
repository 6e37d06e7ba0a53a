// Round to nearest even, keep subnormals: on this thread, for the life of the object.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace latentkv {

class IeeeMode {
 public:
  IeeeMode(const IeeeMode&) = delete;
  IeeeMode& operator=(const IeeeMode&) = delete;

#if defined(__x86_64__)
  IeeeMode() : caller_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // the state at process start
  ~IeeeMode() { _mm_setcsr(caller_); }

 private:
  unsigned caller_;
#elif defined(__aarch64__)
  // FE_DFL_ENV need not touch flush-to-zero here, so clear FPCR (rounding, FZ, FZ16) itself.
  IeeeMode() {
    asm volatile("mrs %0, fpcr" : "=r"(caller_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~IeeeMode() { asm volatile("msr fpcr, %0" : : "r"(caller_)); }

 private:
  uint64_t caller_;
#else
  IeeeMode() {
    std::fegetenv(&caller_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~IeeeMode() { std::fesetenv(&caller_); }

 private:
  std::fenv_t caller_;
#endif
};

}  // namespace latentkv
