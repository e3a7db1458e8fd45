// The names of native_avx2.h with NEON, on 64-bit ARM: pairs of 128-bit vectors. With FQ_DOTPROD, dot products of codes use
// `udot`. Included by native_kernels.h.

#define FQ_INLINE __attribute__((always_inline)) inline

namespace {

struct F8 {
    float32x4_t a, b;
};
struct I8 {
    int32x4_t a, b;
};
struct D4 {
    float64x2_t a, b;
};

FQ_INLINE F8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
FQ_INLINE void store(float* p, F8 x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b); }
FQ_INLINE F8 splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
FQ_INLINE F8 add(F8 x, F8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
FQ_INLINE F8 sub(F8 x, F8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
FQ_INLINE F8 mul(F8 x, F8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
FQ_INLINE F8 min(F8 x, F8 y) { return {vminnmq_f32(x.a, y.a), vminnmq_f32(x.b, y.b)}; }
FQ_INLINE F8 max(F8 x, F8 y) { return {vmaxnmq_f32(x.a, y.a), vmaxnmq_f32(x.b, y.b)}; }
FQ_INLINE F8 floats_of(I8 k) { return {vcvtq_f32_s32(k.a), vcvtq_f32_s32(k.b)}; }

// maxnm takes the number of a number and NaN.
FQ_INLINE I8 codes_of(F8 t, F8 top) {
    const F8 inside = min(max(t, splat(0.0f)), top);
    return {vcvtnq_s32_f32(inside.a), vcvtnq_s32_f32(inside.b)};
}

FQ_INLINE uint16x8_t narrowed(I8 k) {
    return vuzp1q_u16(vreinterpretq_u16_s32(k.a), vreinterpretq_u16_s32(k.b));
}
FQ_INLINE void store_codes(uint8_t* out, I8 k) { vst1_u8(out, vmovn_u16(narrowed(k))); }
FQ_INLINE void store_codes(uint16_t* out, I8 k) { vst1q_u16(out, narrowed(k)); }
FQ_INLINE F8 load_codes(const uint16_t* in) {
    const uint16x8_t k = vld1q_u16(in);
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(k))), vcvtq_f32_u32(vmovl_high_u16(k))};
}
FQ_INLINE F8 load_codes(const uint8_t* in) {
    const uint16x8_t k = vmovl_u8(vld1_u8(in));
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(k))), vcvtq_f32_u32(vmovl_high_u16(k))};
}

FQ_INLINE uint8_t inside(F8 t, F8 top) {
    const uint16x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint32x4_t a = vandq_u32(vcgtzq_f32(t.a), vcltq_f32(t.a, top.a));
    const uint32x4_t b = vandq_u32(vcgtzq_f32(t.b), vcltq_f32(t.b, top.b));
    const uint16x8_t on = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    return static_cast<uint8_t>(vaddvq_u16(vandq_u16(on, bit)));
}
FQ_INLINE F8 kept(F8 x, uint8_t bits) {
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128}, all = vdupq_n_u32(bits);
    const uint32x4_t a = vandq_u32(vreinterpretq_u32_f32(x.a), vtstq_u32(all, low));
    const uint32x4_t b = vandq_u32(vreinterpretq_u32_f32(x.b), vtstq_u32(all, high));
    return {vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b)};
}
// NEON cannot gather: one by one, stored by the caller as a whole.
FQ_INLINE F8 look_up(const float* table, const float* x, int shift) {
    uint32_t key[8];
    std::memcpy(key, x, sizeof key);
    float out[8];
    for (int i = 0; i < 8; ++i) out[i] = table[key[i] >> shift];
    return load(out);
}

FQ_INLINE D4 load(const double* p) { return {vld1q_f64(p), vld1q_f64(p + 2)}; }
FQ_INLINE D4 splat(double x) { return {vdupq_n_f64(x), vdupq_n_f64(x)}; }
FQ_INLINE D4 add(D4 x, D4 y) { return {vaddq_f64(x.a, y.a), vaddq_f64(x.b, y.b)}; }
FQ_INLINE D4 sub(D4 x, D4 y) { return {vsubq_f64(x.a, y.a), vsubq_f64(x.b, y.b)}; }
FQ_INLINE D4 mul(D4 x, D4 y) { return {vmulq_f64(x.a, y.a), vmulq_f64(x.b, y.b)}; }
FQ_INLINE D4 div(D4 x, D4 y) { return {vdivq_f64(x.a, y.a), vdivq_f64(x.b, y.b)}; }
FQ_INLINE D4 min(D4 x, D4 y) { return {vminnmq_f64(x.a, y.a), vminnmq_f64(x.b, y.b)}; }
FQ_INLINE D4 above_zero(D4 x) { return {vmaxnmq_f64(x.a, vdupq_n_f64(0.0)), vmaxnmq_f64(x.b, vdupq_n_f64(0.0))}; }
FQ_INLINE D4 absolute(D4 x) { return {vabsq_f64(x.a), vabsq_f64(x.b)}; }
FQ_INLINE D4 nearest(D4 x) { return {vrndnq_f64(x.a), vrndnq_f64(x.b)}; }
FQ_INLINE D4 whole(D4 x) { return {vrndmq_f64(x.a), vrndmq_f64(x.b)}; }
FQ_INLINE float64x2_t one_if(uint64x2_t on) {
    return vreinterpretq_f64_u64(vandq_u64(on, vreinterpretq_u64_f64(vdupq_n_f64(1.0))));
}
FQ_INLINE D4 one_if_less(D4 x, D4 y) { return {one_if(vcltq_f64(x.a, y.a)), one_if(vcltq_f64(x.b, y.b))}; }
FQ_INLINE D4 if_less_equal(D4 x, D4 y, D4 yes, D4 no) {
    return {vbslq_f64(vcleq_f64(x.a, y.a), yes.a, no.a), vbslq_f64(vcleq_f64(x.b, y.b), yes.b, no.b)};
}
FQ_INLINE uint16x4_t narrowed(D4 x) {
    return vmovn_u32(vcombine_u32(vmovn_u64(vcvtq_u64_f64(x.a)), vmovn_u64(vcvtq_u64_f64(x.b))));
}
FQ_INLINE void store_codes(uint16_t* out, D4 x) { vst1_u16(out, narrowed(x)); }
FQ_INLINE void store_codes(uint8_t* out, D4 x) {
    const uint16x4_t k = narrowed(x);
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(k, k))), 0);
    std::memcpy(out, &four, 4);
}

#include "native_lanes.h"

// Shift-and-insert moves codes together as native_lanes.h does, in two vectors of 64 bits and two instructions a step.
template <int s>
int64_t pack_groups8(const uint8_t* codes, int64_t groups, uint8_t* out, int64_t room) {
    int64_t g = 0;
    for (; g + 2 <= groups && (g + 1) * s + 8 <= room; g += 2) {
        uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(codes + 8 * g));
        v = vsliq_n_u16(v, vshrq_n_u16(v, 8), s);
        uint32x4_t w = vreinterpretq_u32_u16(v);
        w = vsliq_n_u32(w, vshrq_n_u32(w, 16), 2 * s);
        uint64x2_t x = vreinterpretq_u64_u32(w);
        x = vsliq_n_u64(x, vshrq_n_u64(x, 32), 4 * s);
        vst1_u8(out + g * s, vreinterpret_u8_u64(vget_low_u64(x)));
        vst1_u8(out + (g + 1) * s, vreinterpret_u8_u64(vget_high_u64(x)));
    }
    return g;
}

template <int s>
int64_t unpack_groups8(const uint8_t* in, int64_t groups, uint8_t* codes, int64_t room) {
    int64_t g = 0;
    for (; g + 2 <= groups && (g + 1) * s + 8 <= room; g += 2) {
        uint64x2_t x = vreinterpretq_u64_u8(vcombine_u8(vld1_u8(in + g * s), vld1_u8(in + (g + 1) * s)));
        x = vsliq_n_u64(x, vshrq_n_u64(x, 4 * s), 32);
        uint32x4_t w = vreinterpretq_u32_u64(x);
        w = vsliq_n_u32(w, vshrq_n_u32(w, 2 * s), 16);
        uint16x8_t v = vreinterpretq_u16_u32(w);
        v = vsliq_n_u16(v, vshrq_n_u16(v, s), 8);
        vst1q_u8(codes + 8 * g, vandq_u8(vreinterpretq_u8_u16(v), vdupq_n_u8((1 << s) - 1)));
    }
    return g;
}

template <int s>
int64_t pack_groups16(const uint16_t* codes, int64_t groups, uint8_t* out, int64_t room) {
    int64_t g = 0;
    for (; g < groups && g * s + 16 <= room; ++g) {
        uint32x4_t w = vreinterpretq_u32_u16(vld1q_u16(codes + 8 * g));
        w = vsliq_n_u32(w, vshrq_n_u32(w, 16), s);
        uint64x2_t x = vreinterpretq_u64_u32(w);
        x = vsliq_n_u64(x, vshrq_n_u64(x, 32), 2 * s);
        uint64_t a = vgetq_lane_u64(x, 0), b = vgetq_lane_u64(x, 1);
        if (s < 16) a |= b << (4 * s & 63), b >>= (64 - 4 * s) & 63;
        std::memcpy(out + g * s, &a, 8);
        std::memcpy(out + g * s + 8, &b, 8);
    }
    return g;
}

template <int s>
int64_t unpack_groups16(const uint8_t* in, int64_t groups, uint16_t* codes, int64_t room) {
    int64_t g = 0;
    for (; g < groups && g * s + 16 <= room; ++g) {
        uint64_t a, b;
        std::memcpy(&a, in + g * s, 8);
        std::memcpy(&b, in + g * s + 8, 8);
        if (s < 16) b = a >> (4 * s & 63) | b << ((64 - 4 * s) & 63);
        uint64x2_t x = {a, b};
        x = vsliq_n_u64(x, vshrq_n_u64(x, 2 * s), 32);
        uint32x4_t w = vreinterpretq_u32_u64(x);
        w = vsliq_n_u32(w, vshrq_n_u32(w, s), 16);
        vst1q_u16(codes + 8 * g, vandq_u16(vreinterpretq_u16_u32(w), vdupq_n_u16(static_cast<uint16_t>((1 << s) - 1))));
    }
    return g;
}

#define FQ_FOR_BITS(function, low, ...)                       \
    switch (s - low) {                                        \
        case 1: return function<low + 1>(__VA_ARGS__);        \
        case 2: return function<low + 2>(__VA_ARGS__);        \
        case 3: return function<low + 3>(__VA_ARGS__);        \
        case 4: return function<low + 4>(__VA_ARGS__);        \
        case 5: return function<low + 5>(__VA_ARGS__);        \
        case 6: return function<low + 6>(__VA_ARGS__);        \
        case 7: return function<low + 7>(__VA_ARGS__);        \
        default: return function<low + 8>(__VA_ARGS__);       \
    }
// As many whole groups of eight codes as fit without touching bytes outside; returns their number.
inline int64_t pack_groups(const uint8_t* codes, int64_t groups, int s, uint8_t* out, int64_t room) {
    FQ_FOR_BITS(pack_groups8, 0, codes, groups, out, room)
}
inline int64_t unpack_groups(const uint8_t* in, int64_t groups, int s, uint8_t* codes, int64_t room) {
    FQ_FOR_BITS(unpack_groups8, 0, in, groups, codes, room)
}
inline int64_t pack_groups(const uint16_t* codes, int64_t groups, int s, uint8_t* out, int64_t room) {
    FQ_FOR_BITS(pack_groups16, 8, codes, groups, out, room)
}
inline int64_t unpack_groups(const uint8_t* in, int64_t groups, int s, uint16_t* codes, int64_t room) {
    FQ_FOR_BITS(unpack_groups16, 8, in, groups, codes, room)
}
#undef FQ_FOR_BITS

// out = table[code] for tables of up to 16 floats, which fit the four registers that `tbl` looks bytes up in; returns how many.
inline int64_t look_up_codes(const float* table, int s, const uint8_t* codes, int64_t n, float* out) {
    if (s > 4) return 0;
    uint8_t bytes[64] = {0};
    std::memcpy(bytes, table, size_t(4) << s);
    const uint8x16x4_t all = {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
    const uint8x16_t within = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16_t first = vshlq_n_u8(vld1q_u8(codes + i), 2);  // where a code's four bytes begin
        const uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(first, first)), high = vreinterpretq_u16_u8(vzip2q_u8(first, first));
        const uint16x8_t four[4] = {vzip1q_u16(low, low), vzip2q_u16(low, low), vzip1q_u16(high, high), vzip2q_u16(high, high)};
        for (int q = 0; q < 4; ++q) {
            const uint8x16_t found = vqtbl4q_u8(all, vorrq_u8(vreinterpretq_u8_u16(four[q]), within));
            vst1q_f32(out + i + 4 * q, vreinterpretq_f32_u8(found));
        }
    }
    return i;
}
inline int64_t look_up_codes(const float*, int, const uint16_t*, int64_t, float*) { return 0; }

// Bits that are set in both; counts of eight bits hold 31 vectors.
FQ_INLINE int64_t and_ones(const uint64_t* x, const uint64_t* y, int64_t n) {
    int64_t found = 0, q = 0;
    while (q + 2 <= n) {
        const int64_t end = q + 62 < n ? q + 62 : n;
        uint8x16_t counts = vdupq_n_u8(0);
        for (; q + 2 <= end; q += 2)
            counts = vaddq_u8(counts, vcntq_u8(vreinterpretq_u8_u64(vandq_u64(vld1q_u64(x + q), vld1q_u64(y + q)))));
        found += vaddlvq_u8(counts);
    }
    return q < n ? found + __builtin_popcountll(x[q] & y[q]) : found;
}

FQ_INLINE I8 no_sums() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
FQ_INLINE I8 centred(I8 x, int32_t shift) {
    const int32x4_t by = vdupq_n_s32(shift);
    return {vsubq_s32(vaddq_s32(x.a, x.a), by), vsubq_s32(vaddq_s32(x.b, x.b), by)};
}

#ifdef FQ_DOTPROD
using Factor = uint8_t;
constexpr int64_t kDepth = 16;
constexpr int64_t place(int64_t k, int64_t lane) { return k / 4 * 32 + lane * 4 + k % 4; }
template <int at>
FQ_INLINE I8 dot4(I8 sums, const Factor* w, uint8x16_t x) {
    // Not the intrinsics: compilers offer them only where all code may use these instructions.
    const uint8x16_t low = vld1q_u8(w + 32 * at), high = vld1q_u8(w + 32 * at + 16);
    asm(FQ_ARM_DOT "udot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sums.a) : "w"(low), "w"(x), "i"(at));
    asm(FQ_ARM_DOT "udot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sums.b) : "w"(high), "w"(x), "i"(at));
    return sums;
}
FQ_INLINE I8 dot(I8 sums, const Factor* w, const Factor* x) {
    const uint8x16_t v = vld1q_u8(x);
    return dot4<3>(dot4<2>(dot4<1>(dot4<0>(sums, w, v), w, v), w, v), w, v);
}
#else
using Factor = int16_t;
constexpr int64_t kDepth = 4;
constexpr int64_t place(int64_t k, int64_t lane) { return k * 8 + lane; }
template <int at>
FQ_INLINE I8 dot1(I8 sums, const Factor* w, int16x4_t x) {
    const int16x8_t v = vld1q_s16(w + 8 * at);
    return {vmlal_lane_s16(sums.a, vget_low_s16(v), x, at), vmlal_high_lane_s16(sums.b, v, x, at)};
}
FQ_INLINE I8 dot(I8 sums, const Factor* w, const Factor* x) {
    const int16x4_t v = vld1_s16(x);
    return dot1<3>(dot1<2>(dot1<1>(dot1<0>(sums, w, v), w, v), w, v), w, v);
}
#endif

}  // namespace
