// CPU kernels of fedqssl: packing, uniform and quantile quantization, fused batch norm + activation, bit convolution,
// the weight update.
//
// A plain C ABI, loaded with ctypes; no Python or torch headers, so nothing but a compiler is needed to build it.
// Every function has a plain-torch twin in reference.py that is its specification. Arithmetic is written as separate
// multiplies and adds (built with -ffp-contract=off), so that both round alike.
//
// The kernels are written once, for eight floats at a time; native_avx2.h, native_neon.h and native_portable.h say what that
// means on a CPU, and native_avx512.h where it is sixteen. Each variant has functions of its own (fq_avx2_pack, fq_portable_pack, ...), and all of them give the same
// bits. Headers of the language come first: what they define must run on every CPU.
//
// Bit order of a packed stream of s-bit codes: code i occupies bits [i*s, (i+1)*s); bit j is bit (j % 8) of byte j / 8.
// Work is cut into fixed chunks that do not depend on the number of threads; partial sums are added in chunk order, so
// results are the same for every thread count.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num() { return 0; }
#endif

#define FQ_API extern "C" __attribute__((visibility("default")))

// FQ_ONLY_PORTABLE leaves out everything that is special to a CPU: for tests.
#if defined(__x86_64__) && !defined(FQ_ONLY_PORTABLE)
#define FQ_X86
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(FQ_ONLY_PORTABLE)
#define FQ_ARM
#include <arm_neon.h>
#if defined(__ARM_FEATURE_DOTPROD)  // all code may use dot products, as on Apple's CPUs
#define FQ_ARM_DOT ""
#elif !defined(__clang__)  // else the assembler must be told; clang's refuses
#define FQ_ARM_DOT ".arch armv8.2-a+dotprod\n\t"
#endif
#ifdef __linux__
#include <sys/auxv.h>
#endif
#endif

#define FQ_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define FQ_BEGIN_TARGET(features) FQ_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FQ_END_TARGET _Pragma("clang attribute pop")
#else
#define FQ_BEGIN_TARGET(features) _Pragma("GCC push_options") FQ_PRAGMA(GCC target(features))
#define FQ_END_TARGET _Pragma("GCC pop_options")
#endif

#ifdef FQ_X86
#pragma GCC diagnostic ignored "-Wignored-attributes"  // vectors are arguments of templates, whose alignment does not matter
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC 12's own AVX-512 header
#endif
FQ_BEGIN_TARGET("avx2,bmi,bmi2,popcnt")
#define FQ_VARIANT avx2
namespace avx2_kernels {
#include "native_avx2.h"
#include "native_kernels.h"
}  // namespace avx2_kernels
#undef FQ_VARIANT
FQ_END_TARGET
#endif

#ifdef FQ_X86
FQ_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,popcnt")
#define FQ_VARIANT avx512
#define FQ_WIDE
namespace avx512_kernels {
#include "native_avx2.h"
#include "native_avx512.h"
#include "native_kernels.h"
}  // namespace avx512_kernels
#undef FQ_WIDE
#undef FQ_VARIANT
FQ_END_TARGET
#endif

#ifdef FQ_ARM
#define FQ_VARIANT neon
namespace neon_kernels {
#include "native_neon.h"
#include "native_kernels.h"
}  // namespace neon_kernels
#undef FQ_VARIANT

#ifdef FQ_ARM_DOT
#define FQ_VARIANT neon_dot
#define FQ_DOTPROD
namespace neon_dot_kernels {
#include "native_neon.h"
#include "native_kernels.h"
}  // namespace neon_dot_kernels
#undef FQ_DOTPROD
#undef FQ_VARIANT
#endif
#endif

#define FQ_VARIANT portable
namespace portable_kernels {
#include "native_portable.h"
#include "native_kernels.h"
}  // namespace portable_kernels
#undef FQ_VARIANT

FQ_API int fq_abi_version() { return 6; }

// The variants that run on this CPU, best first, separated by commas; empty if none does.
FQ_API const char* fq_variants() {
#if FLT_EVAL_METHOD != 0 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    return "";  // other rounding, or another order of bytes, than the reference has
#elif defined(FQ_X86)
    __builtin_cpu_init();
    const bool all = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return all ? (wide ? "avx512,avx2,portable" : "avx2,portable") : "portable";
#elif defined(FQ_ARM) && defined(__ARM_FEATURE_DOTPROD)
    return "neon_dot,neon,portable";
#elif defined(FQ_ARM_DOT) && defined(__linux__)
    return getauxval(AT_HWCAP) & (1 << 20) /* HWCAP_ASIMDDP */ ? "neon_dot,neon,portable" : "neon,portable";
#elif defined(FQ_ARM)
    return "neon,portable";
#else
    return "portable";
#endif
}
