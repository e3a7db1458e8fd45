// CPU kernels of fedqssl: packing, uniform and quantile quantization, fused batch norm + activation, bit convolution.
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

FQ_API int fq_abi_version() { return 2; }

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

template <class Code>
void quantize_pack(const float* x, int64_t n, int s, float mul, uint8_t* out, int threads) {
    const float top = static_cast<float>((1 << s) - 1);
    const int64_t total = packed_bytes(n, s);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        alignas(32) Code buffer[kBlock];
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        for (int64_t b0 = c0; b0 < c1; b0 += kBlock) {
            const int64_t count = b0 + kBlock < c1 ? kBlock : c1 - b0;
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
        }
    }
    (void)total;
}

template <class Code, bool kTable>
void unpack_float(const uint8_t* in, int64_t n, int s, float mul, float add, const float* table, float* out,
                  int threads) {
    const int64_t total = packed_bytes(n, s);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        alignas(32) Code buffer[kBlock];
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        for (int64_t b0 = c0; b0 < c1; b0 += kBlock) {
            const int64_t count = b0 + kBlock < c1 ? kBlock : c1 - b0;
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
        }
    }
}

// Rows per block of a (rows, channels) matrix: a multiple of 8, so that every block starts on a byte boundary.
inline int64_t block_rows(int64_t channels) {
    const int64_t rows = 4096 / channels / 8 * 8;
    return rows < 8 ? 8 : rows;
}

struct Range {
    float low, high;
};

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

namespace {

constexpr int64_t kKeys = 65536;

inline void min_max(const float* x, int64_t n, Range& r) {
    int64_t i = 0;
    if (n >= 8) {
        __m256 lo = _mm256_loadu_ps(x), hi = lo;
        for (i = 8; i + 8 <= n; i += 8) {
            const __m256 v = _mm256_loadu_ps(x + i);
            lo = _mm256_min_ps(lo, v);
            hi = _mm256_max_ps(hi, v);
        }
        float a[8], b[8];
        _mm256_storeu_ps(a, lo);
        _mm256_storeu_ps(b, hi);
        for (int j = 0; j < 8; ++j) {
            if (a[j] < r.low) r.low = a[j];
            if (b[j] > r.high) r.high = b[j];
        }
    }
    for (; i < n; ++i) {
        if (x[i] < r.low) r.low = x[i];
        if (x[i] > r.high) r.high = x[i];
    }
}

// Counts the upper 16 bits of each float. Two tables in turn: equal neighbours would otherwise wait for each other.
inline void count_keys(const float* x, int64_t n, uint32_t* h) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(x);
    uint32_t* h2 = h + kKeys;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint16_t a = half[2 * i + 1], b = half[2 * i + 3], c = half[2 * i + 5], d = half[2 * i + 7];
        ++h[a];
        ++h2[b];
        ++h[c];
        ++h2[d];
    }
    for (; i < n; ++i) ++h[half[2 * i + 1]];
}

struct Histograms {  // one pair of tables and one range per thread; merging integers is order-free
    std::vector<uint32_t> counts;
    std::vector<Range> ranges;
    explicit Histograms(int threads) : counts(2 * kKeys * threads, 0), ranges(threads, Range{INFINITY_, -INFINITY_}) {}
    static constexpr float INFINITY_ = __builtin_inff();
    uint32_t* of(int t) { return counts.data() + 2 * kKeys * t; }
    void merge(uint32_t* hist, float* range) {
        const int64_t tables = static_cast<int64_t>(counts.size()) / kKeys;
        std::memcpy(hist, counts.data(), kKeys * sizeof(uint32_t));
        for (int64_t t = 1; t < tables; ++t)
            for (int64_t k = 0; k < kKeys; ++k) hist[k] += counts[t * kKeys + k];
        Range r = ranges[0];
        for (const Range& o : ranges) {
            if (o.low < r.low) r.low = o.low;
            if (o.high > r.high) r.high = o.high;
        }
        range[0] = r.low;
        range[1] = r.high;
    }
};

}  // namespace

#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num() { return 0; }
#endif

// hist[key] = how many floats have this key (their upper 16 bits); range = {smallest, largest}.
FQ_API void fq_key_histogram(const float* x, int64_t n, uint32_t* hist, float* range, int threads) {
    Histograms h(threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t count = c0 + kChunk < n ? kChunk : n - c0;
        const int t = omp_get_thread_num();
        count_keys(x + c0, count, h.of(t));
        min_max(x + c0, count, h.ranges[t]);
    }
    h.merge(hist, range);
}

namespace {

inline int64_t raw_key(int64_t order) { return order >= 0x8000 ? order - 0x8000 : 0xFFFF - order; }

inline float float_of(uint32_t bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
}

inline float clamped(float v, float low, float high) {
    v = v < low ? low : v;
    return v > high ? high : v;
}

// What stands for part q of the 2^split equal parts of a key's interval: its middle; 0 for zeros and denormals.
inline float part_value(int64_t raw, int64_t q, int split) {
    if (!(raw & 0x7F80)) return 0.0f;
    return float_of(static_cast<uint32_t>(raw << 16 | q << (16 - split) | int64_t(1) << (15 - split)));
}

// The centre of rank `rank` within a key: as if the key's `count` entries lay evenly in its interval.
inline float interpolated(int64_t raw, int64_t rank, int64_t before, int64_t count) {
    if (!(raw & 0x7F80)) return 0.0f;
    const double lo = float_of(static_cast<uint32_t>(raw << 16)), hi = float_of(static_cast<uint32_t>(raw << 16 | 0xFFFF));
    double part = (static_cast<double>(rank - before) - 0.5) / static_cast<double>(count);
    if (raw & 0x8000) part = 1.0 - part;  // a larger mantissa is a smaller number
    return static_cast<float>(lo + part * (hi - lo));
}

}  // namespace

// The quantile quantizer over keys. centres[i] = Quantile(i / (2^bits - 1)) as the inverted CDF, to within a key, first and
// last exact. Floats that share their upper 16 + extra bits share an entry of values and codes: the centre nearest to the
// middle of their interval, and its code; entries that do not occur are left alone. Returns 1 if something is not finite.
FQ_API int fq_quantile_table(const uint32_t* hist, int64_t n, int bits, int extra, float low, float high, float* centres,
                             float* values, uint16_t* codes) {
    const int64_t last = (int64_t(1) << bits) - 1, parts = int64_t(1) << extra;
    low += 0.0f;  // -0 becomes +0
    high += 0.0f;
    for (int64_t k = 0x7F80; k < 0x8000; ++k)
        if (hist[k] || hist[k | 0x8000]) return 1;
    int64_t i = 0, seen = 0;
    for (int64_t order = 0; order < kKeys && i <= last; ++order) {
        const int64_t raw = raw_key(order), count = hist[raw];
        if (!count) continue;
        for (; i <= last; ++i) {
            const int64_t rank = i == 0 ? 1 : (i * n + last - 1) / last;
            if (rank > seen + count) break;
            centres[i] = clamped(interpolated(raw, rank, seen, count), low, high);
        }
        seen += count;
    }
    centres[0] = low;
    centres[last] = high;
    int64_t at = 0;
    for (int64_t order = 0; order < kKeys; ++order) {
        const int64_t raw = raw_key(order);
        if (!hist[raw]) continue;
        for (int64_t p = 0; p < parts; ++p) {
            const int64_t q = raw & 0x8000 ? parts - 1 - p : p;  // ascending values
            const float v = clamped(part_value(raw, q, extra), low, high);
            while (at < last && centres[at] < v) ++at;
            const int64_t down = at ? at - 1 : at;
            codes[raw << extra | q] = static_cast<uint16_t>(v - centres[down] <= centres[at] - v ? down : at);
        }
    }
    const float ends[2] = {low, high};
    for (int e = 0; e < 2; ++e) {  // the entries of the end points stand for them exactly; zero has two signs
        uint32_t word;
        std::memcpy(&word, &ends[e], 4);
        codes[word >> (16 - extra)] = static_cast<uint16_t>(e ? last : 0);
        if (ends[e] == 0) codes[0x80000000u >> (16 - extra)] = static_cast<uint16_t>(e ? last : 0);
    }
    for (int64_t k = 0; k < kKeys; ++k)
        if (hist[k])
            for (int64_t q = k << extra; q < (k + 1) << extra; ++q) values[q] = centres[codes[q]];
    return 0;
}

// out[i] = values[upper 16 + extra bits of x[i]]; out may be x.
FQ_API void fq_table_apply(const float* x, int64_t n, int extra, const float* values, float* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        const __m128i shift = _mm_cvtsi32_si128(16 - extra);
        int64_t i = c0;
        for (; i + 8 <= c1; i += 8) {
            const __m256i key = _mm256_srl_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), shift);
            _mm256_storeu_ps(out + i, _mm256_i32gather_ps(values, key, 4));
        }
        for (; i < c1; ++i) {
            uint32_t b;
            std::memcpy(&b, x + i, 4);
            out[i] = values[b >> (16 - extra)];
        }
    }
}

// out[i] = codes[upper 16 + extra bits of x[i]].
FQ_API void fq_code_apply(const float* x, int64_t n, int extra, const uint16_t* codes, uint16_t* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) {
        uint32_t b;
        std::memcpy(&b, x + i, 4);
        out[i] = codes[b >> (16 - extra)];
    }
}

#include "native_norm.h"
#include "native_bits.h"

#pragma GCC pop_options
#else
FQ_API int fq_abi_version() { return 2; }
FQ_API int fq_supported() { return 0; }
#endif
