// CPU kernels of fedqssl: packing, uniform and quantile quantization, fused batch norm + activation, bit convolution,
// the weight update.
//
// A plain C ABI, loaded with ctypes; no Python or torch headers, so nothing but a compiler is needed to build it.
// Every function has a plain-torch twin in reference.py that is its specification. Arithmetic is written as separate
// multiplies and adds (built with -ffp-contract=off), so that both round alike.
//
// Bit order of a packed stream of s-bit codes: code i occupies bits [i*s, (i+1)*s); bit j is bit (j % 8) of byte j / 8.
// Work is cut into fixed chunks that do not depend on the number of threads; partial sums are added in chunk order, so
// results are the same for every thread count.

#include <cstdint>
#include <cstring>
#include <vector>

#define FQ_API extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__) && defined(__GNUC__)

FQ_API int fq_abi_version() { return 3; }

FQ_API int fq_supported() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt")
#include <immintrin.h>

namespace {

constexpr int64_t kChunk = 1 << 15;  // elements per unit of work; a multiple of 64

inline uint64_t lane_mask8(int s) { return 0x0101010101010101ull * ((1u << s) - 1); }
inline uint64_t lane_mask16(int s) { return 0x0001000100010001ull * ((1ull << s) - 1); }

// Packs n codes (n a multiple of 8, or the stream's tail) into out, which has `room` writable bytes.
void pack8(const uint8_t* codes, int64_t n, int s, uint8_t* out, int64_t room) {
    const uint64_t mask = lane_mask8(s);
    const int64_t groups = n / 8;
    for (int64_t g = 0; g < groups; ++g) {
        uint64_t v;
        std::memcpy(&v, codes + 8 * g, 8);
        const uint64_t bits = _pext_u64(v, mask);
        const int64_t at = g * s;
        if (at + 8 <= room) std::memcpy(out + at, &bits, 8);
        else std::memcpy(out + at, &bits, s);
    }
    const int rest = static_cast<int>(n % 8);
    if (rest) {
        uint64_t v = 0;
        std::memcpy(&v, codes + 8 * groups, rest);
        const uint64_t bits = _pext_u64(v, mask);
        std::memcpy(out + groups * s, &bits, (rest * s + 7) / 8);
    }
}

void unpack8(const uint8_t* in, int64_t n, int s, uint8_t* codes, int64_t room) {
    const uint64_t mask = lane_mask8(s);
    const int64_t groups = n / 8;
    for (int64_t g = 0; g < groups; ++g) {
        uint64_t bits = 0;
        const int64_t at = g * s;
        if (at + 8 <= room) std::memcpy(&bits, in + at, 8);
        else std::memcpy(&bits, in + at, s);
        const uint64_t v = _pdep_u64(bits, mask);
        std::memcpy(codes + 8 * g, &v, 8);
    }
    const int rest = static_cast<int>(n % 8);
    if (rest) {
        uint64_t bits = 0;
        std::memcpy(&bits, in + groups * s, (rest * s + 7) / 8);
        const uint64_t v = _pdep_u64(bits, mask);
        std::memcpy(codes + 8 * groups, &v, rest);
    }
}

// The same for codes of 9 to 16 bits held in 16-bit words: eight codes make exactly s bytes.
struct Wide {
    uint64_t mask;
    int half;  // bits of four codes: 36..64
    explicit Wide(int s) : mask(lane_mask16(s)), half(4 * s) {}
    uint64_t low(uint64_t a, uint64_t b) const { return half == 64 ? a : (a | (b << half)); }
    uint64_t high(uint64_t b) const { return half == 64 ? b : (b >> (64 - half)); }
    uint64_t second(uint64_t low, uint64_t high) const {
        return half == 64 ? high : ((low >> half) | (high << (64 - half)));
    }
};

// Words go to and from memory one by one: a 16-byte load right after two 8-byte stores would stall.
inline uint64_t load64(const void* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
}
inline void store64(void* p, uint64_t v) { std::memcpy(p, &v, 8); }

void pack16(const uint16_t* codes, int64_t n, int s, uint8_t* out, int64_t room) {
    const Wide wide(s);
    int64_t i = 0, at = 0;
    for (; i + 8 <= n && at + 16 <= room; i += 8, at += s) {
        const uint64_t a = _pext_u64(load64(codes + i), wide.mask), b = _pext_u64(load64(codes + i + 4), wide.mask);
        store64(out + at, wide.low(a, b));
        store64(out + at + 8, wide.high(b));
    }
    for (; i < n; i += 8, at += s) {
        const int64_t count = n - i < 8 ? n - i : 8;
        uint16_t v[8] = {0};
        std::memcpy(v, codes + i, 2 * count);
        const uint64_t a = _pext_u64(load64(v), wide.mask), b = _pext_u64(load64(v + 4), wide.mask);
        const uint64_t w[2] = {wide.low(a, b), wide.high(b)};
        std::memcpy(out + at, w, (count * s + 7) / 8);
    }
}

void unpack16(const uint8_t* in, int64_t n, int s, uint16_t* codes, int64_t room) {
    const Wide wide(s);
    int64_t i = 0, at = 0;
    for (; i + 8 <= n && at + 16 <= room; i += 8, at += s) {
        const uint64_t low = load64(in + at), high = load64(in + at + 8);
        store64(codes + i, _pdep_u64(low, wide.mask));
        store64(codes + i + 4, _pdep_u64(wide.second(low, high), wide.mask));
    }
    for (; i < n; i += 8, at += s) {
        const int64_t count = n - i < 8 ? n - i : 8;
        uint64_t w[2] = {0, 0};
        std::memcpy(w, in + at, (count * s + 7) / 8);
        const uint64_t v[2] = {_pdep_u64(w[0], wide.mask), _pdep_u64(wide.second(w[0], w[1]), wide.mask)};
        std::memcpy(codes + i, v, 2 * count);
    }
}

inline __m256i clamp_round(__m256 t, __m256 top) {
    // max_ps returns its second operand for NaN: NaN becomes code 0, as in the reference.
    t = _mm256_min_ps(_mm256_max_ps(t, _mm256_setzero_ps()), top);
    return _mm256_cvtps_epi32(t);  // round half to even
}

inline void store_codes(uint8_t* out, __m256i k) {
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(w, w));
}

inline void store_codes(uint16_t* out, __m256i k) {
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), w);
}

inline __m256 load_codes(const uint8_t* in) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in))));
}

inline __m256 load_codes(const uint16_t* in) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
}

inline void pack(const uint8_t* c, int64_t n, int s, uint8_t* o, int64_t room) { pack8(c, n, s, o, room); }
inline void pack(const uint16_t* c, int64_t n, int s, uint8_t* o, int64_t room) { pack16(c, n, s, o, room); }
inline void unpack(const uint8_t* in, int64_t n, int s, uint8_t* c, int64_t room) { unpack8(in, n, s, c, room); }
inline void unpack(const uint8_t* in, int64_t n, int s, uint16_t* c, int64_t room) { unpack16(in, n, s, c, room); }

inline int64_t packed_bytes(int64_t n, int s) { return (n * s + 7) / 8; }

constexpr int64_t kBlock = 1024;  // elements whose codes wait in a small buffer before they are packed

// Calls body(buffer, start, count) for every block of n elements, the chunks of blocks side by side.
template <class Code, class Body>
void for_blocks(int64_t n, int threads, Body body) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        alignas(32) Code buffer[kBlock];
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        for (int64_t b0 = c0; b0 < c1; b0 += kBlock) body(buffer, b0, b0 + kBlock < c1 ? kBlock : c1 - b0);
    }
}

template <class Code>
void quantize_pack(const float* x, int64_t n, int s, float mul, uint8_t* out, int threads) {
    const float top = static_cast<float>((1 << s) - 1);
    for_blocks<Code>(n, threads, [=](Code* buffer, int64_t b0, int64_t count) {
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) {
            const __m256 t = _mm256_mul_ps(_mm256_loadu_ps(x + b0 + i), _mm256_set1_ps(mul));
            store_codes(buffer + i, clamp_round(t, _mm256_set1_ps(top)));
        }
        if (i < count) {
            float tail[8] = {0};
            Code codes[8];
            std::memcpy(tail, x + b0 + i, 4 * (count - i));
            const __m256 t = _mm256_mul_ps(_mm256_loadu_ps(tail), _mm256_set1_ps(mul));
            store_codes(codes, clamp_round(t, _mm256_set1_ps(top)));
            std::memcpy(buffer + i, codes, sizeof(Code) * (count - i));
        }
        // A block must not write past its own bytes: its neighbour may belong to another thread.
        pack(buffer, count, s, out + b0 * s / 8, packed_bytes(count, s));
    });
}

template <class Code, bool kTable>
void unpack_float(const uint8_t* in, int64_t n, int s, float mul, float add, const float* table, float* out,
                  int threads) {
    const int64_t total = packed_bytes(n, s);
    for_blocks<Code>(n, threads, [=](Code* buffer, int64_t b0, int64_t count) {
        const int64_t at = b0 * s / 8;
        unpack(in + at, count, s, buffer, total - at);
        int64_t i = 0;
        if (!kTable) {
            for (; i + 8 <= count; i += 8) {
                const __m256 v = _mm256_mul_ps(load_codes(buffer + i), _mm256_set1_ps(mul));
                _mm256_storeu_ps(out + b0 + i, _mm256_add_ps(v, _mm256_set1_ps(add)));
            }
        }
        for (; i < count; ++i) out[b0 + i] = kTable ? table[buffer[i]] : float(buffer[i]) * mul + add;
    });
}

// Rows per block of a (rows, channels) matrix: a multiple of 8, so that every block starts on a byte boundary.
inline int64_t block_rows(int64_t channels) {
    const int64_t rows = 4096 / channels / 8 * 8;
    return rows < 8 ? 8 : rows;
}

}  // namespace

FQ_API void fq_pack(const void* codes, int64_t n, int s, uint8_t* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t count = c0 + kChunk < n ? kChunk : n - c0;
        uint8_t* o = out + c0 * s / 8;
        if (s <= 8) pack8(static_cast<const uint8_t*>(codes) + c0, count, s, o, packed_bytes(count, s));
        else pack16(static_cast<const uint16_t*>(codes) + c0, count, s, o, packed_bytes(count, s));
    }
}

FQ_API void fq_unpack(const uint8_t* in, int64_t n, int s, void* codes, int threads) {
    const int64_t total = packed_bytes(n, s);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t count = c0 + kChunk < n ? kChunk : n - c0;
        const int64_t at = c0 * s / 8;
        if (s <= 8) unpack8(in + at, count, s, static_cast<uint8_t*>(codes) + c0, total - at);
        else unpack16(in + at, count, s, static_cast<uint16_t*>(codes) + c0, total - at);
    }
}

// codes = round(clamp(x * mul, 0, 2^s - 1)), packed.
FQ_API void fq_quantize_pack(const float* x, int64_t n, int s, float mul, uint8_t* out, int threads) {
    if (s <= 8) quantize_pack<uint8_t>(x, n, s, mul, out, threads);
    else quantize_pack<uint16_t>(x, n, s, mul, out, threads);
}

// out = code * mul + add.
FQ_API void fq_unpack_affine(const uint8_t* in, int64_t n, int s, float mul, float add, float* out, int threads) {
    if (s <= 8) unpack_float<uint8_t, false>(in, n, s, mul, add, nullptr, out, threads);
    else unpack_float<uint16_t, false>(in, n, s, mul, add, nullptr, out, threads);
}

// out = table[code].
FQ_API void fq_unpack_table(const uint8_t* in, int64_t n, int s, const float* table, float* out, int threads) {
    if (s <= 8) unpack_float<uint8_t, true>(in, n, s, 0, 0, table, out, threads);
    else unpack_float<uint16_t, true>(in, n, s, 0, 0, table, out, threads);
}

#include "native_quantile.h"
#include "native_norm.h"
#include "native_bits.h"
#include "native_step.h"

#pragma GCC pop_options
#else
FQ_API int fq_abi_version() { return 3; }
FQ_API int fq_supported() { return 0; }
#endif
