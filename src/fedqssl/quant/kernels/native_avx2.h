// Eight floats at a time with AVX2, codes to bits with BMI2. The other CPUs' files offer the same names. Included by
// native_kernels.h.

#define FQ_INLINE __attribute__((always_inline)) inline

namespace {

using F8 = __m256;   // eight floats
using I8 = __m256i;  // eight 32-bit integers
using D4 = __m256d;  // four doubles

FQ_INLINE F8 load(const float* p) { return _mm256_loadu_ps(p); }
FQ_INLINE void store(float* p, F8 a) { _mm256_storeu_ps(p, a); }
FQ_INLINE F8 splat(float a) { return _mm256_set1_ps(a); }
FQ_INLINE F8 add(F8 a, F8 b) { return _mm256_add_ps(a, b); }
FQ_INLINE F8 sub(F8 a, F8 b) { return _mm256_sub_ps(a, b); }
FQ_INLINE F8 mul(F8 a, F8 b) { return _mm256_mul_ps(a, b); }
FQ_INLINE F8 min(F8 a, F8 b) { return _mm256_min_ps(a, b); }
FQ_INLINE F8 max(F8 a, F8 b) { return _mm256_max_ps(a, b); }
FQ_INLINE F8 floats_of(I8 k) { return _mm256_cvtepi32_ps(k); }

// round(clamp(t, 0, top)), half to even; NaN becomes 0, because max_ps returns its second operand for it.
FQ_INLINE I8 codes_of(F8 t, F8 top) {
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(t, _mm256_setzero_ps()), top));
}

FQ_INLINE void store_codes(uint8_t* out, I8 k) {
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(w, w));
}
FQ_INLINE void store_codes(uint16_t* out, I8 k) {
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), w);
}
FQ_INLINE F8 load_codes(const uint8_t* in) {
    return floats_of(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in))));
}
FQ_INLINE F8 load_codes(const uint16_t* in) {
    return floats_of(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
}

// One bit per float: 0 < t < top.
FQ_INLINE uint8_t inside(F8 t, F8 top) {
    const F8 both = _mm256_and_ps(_mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_GT_OQ), _mm256_cmp_ps(t, top, _CMP_LT_OQ));
    return static_cast<uint8_t>(_mm256_movemask_ps(both));
}

// Zero where the bit is not set.
FQ_INLINE F8 kept(F8 a, uint8_t bits) {
    const I8 bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const I8 on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), bit), bit);
    return _mm256_and_ps(a, _mm256_castsi256_ps(on));
}

// table[bits of x[i] >> shift]
FQ_INLINE F8 look_up(const float* table, const float* x, int shift) {
    const I8 key = _mm256_srl_epi32(_mm256_loadu_si256(reinterpret_cast<const I8*>(x)), _mm_cvtsi32_si128(shift));
    return _mm256_i32gather_ps(table, key, 4);
}

FQ_INLINE D4 load(const double* p) { return _mm256_loadu_pd(p); }
FQ_INLINE D4 splat(double a) { return _mm256_set1_pd(a); }
FQ_INLINE D4 add(D4 a, D4 b) { return _mm256_add_pd(a, b); }
FQ_INLINE D4 sub(D4 a, D4 b) { return _mm256_sub_pd(a, b); }
FQ_INLINE D4 mul(D4 a, D4 b) { return _mm256_mul_pd(a, b); }
FQ_INLINE D4 div(D4 a, D4 b) { return _mm256_div_pd(a, b); }
FQ_INLINE D4 min(D4 a, D4 b) { return _mm256_min_pd(a, b); }
FQ_INLINE D4 above_zero(D4 a) { return _mm256_max_pd(a, _mm256_setzero_pd()); }  // NaN becomes 0
FQ_INLINE D4 absolute(D4 a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
FQ_INLINE D4 nearest(D4 a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FQ_INLINE D4 whole(D4 a) { return _mm256_floor_pd(a); }
FQ_INLINE D4 one_if_less(D4 a, D4 b) { return _mm256_and_pd(_mm256_cmp_pd(a, b, _CMP_LT_OQ), _mm256_set1_pd(1.0)); }
FQ_INLINE D4 if_less_equal(D4 a, D4 b, D4 yes, D4 no) {
    return _mm256_blendv_pd(no, yes, _mm256_cmp_pd(a, b, _CMP_LE_OQ));
}
FQ_INLINE void store_codes(uint16_t* out, D4 a) {
    const __m128i k = _mm256_cvttpd_epi32(a);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi32(k, k));
}
FQ_INLINE void store_codes(uint8_t* out, D4 a) {
    const __m128i k = _mm256_cvttpd_epi32(a), w = _mm_packus_epi32(k, k);
    const int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(w, w));
    std::memcpy(out, &four, 4);
}

// Codes in the bytes (or 16-bit words) of a word, to and from s adjacent bits each.
struct Lanes {
    uint64_t mask;
    uint64_t join(uint64_t v) const { return _pext_u64(v, mask); }
    uint64_t spread(uint64_t bits) const { return _pdep_u64(bits, mask); }
};
struct Lanes8 : Lanes {
    explicit Lanes8(int s) : Lanes{0x0101010101010101ull * ((1u << s) - 1)} {}
};
struct Lanes16 : Lanes {
    explicit Lanes16(int s) : Lanes{0x0001000100010001ull * ((1ull << s) - 1)} {}
};
FQ_INLINE int64_t ones(uint64_t a) { return _mm_popcnt_u64(a); }
#include "native_plain.h"

FQ_INLINE uint8_t plane_byte(uint64_t codes, int plane) {
    return static_cast<uint8_t>(_pext_u64(codes, 0x0101010101010101ull << plane));
}

// Dot products of codes, eight outputs at a time: sums += w . x for kDepth entries of x.
using Factor = int16_t;
constexpr int64_t kDepth = 2;
constexpr int64_t place(int64_t k, int64_t lane) { return lane * 2 + k; }  // of weight k of output `lane`
FQ_INLINE I8 no_sums() { return _mm256_setzero_si256(); }
FQ_INLINE I8 dot(I8 sums, const Factor* w, const Factor* x) {
    int32_t two;
    std::memcpy(&two, x, 4);
    const I8 products = _mm256_madd_epi16(_mm256_loadu_si256(reinterpret_cast<const I8*>(w)), _mm256_set1_epi32(two));
    return _mm256_add_epi32(sums, products);
}
FQ_INLINE I8 centred(I8 sums, int32_t shift) {  // 2 sums - shift
    return _mm256_sub_epi32(_mm256_add_epi32(sums, sums), _mm256_set1_epi32(shift));
}

}  // namespace
