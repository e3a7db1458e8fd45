// Sixteen floats at a time with AVX-512, for the kernels that gain by it; the others keep to native_avx2.h, which this file
// adds to. Included by native_kernels.h.

namespace {

using F16 = __m512;   // sixteen floats
using I16 = __m512i;  // sixteen 32-bit integers
using Full = F16;

FQ_INLINE void load(F16& to, const float* p) { to = _mm512_loadu_ps(p); }
FQ_INLINE void splat(F16& to, float a) { to = _mm512_set1_ps(a); }
FQ_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a); }
FQ_INLINE F16 add(F16 a, F16 b) { return _mm512_add_ps(a, b); }
FQ_INLINE F16 sub(F16 a, F16 b) { return _mm512_sub_ps(a, b); }
FQ_INLINE F16 mul(F16 a, F16 b) { return _mm512_mul_ps(a, b); }
FQ_INLINE F16 min(F16 a, F16 b) { return _mm512_min_ps(a, b); }
FQ_INLINE F16 max(F16 a, F16 b) { return _mm512_max_ps(a, b); }
FQ_INLINE F16 floats_of(I16 k) { return _mm512_cvtepi32_ps(k); }
FQ_INLINE I16 codes_of(F16 t, F16 top) {
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(t, _mm512_setzero_ps()), top));
}
FQ_INLINE void store_codes(uint8_t* out, I16 k) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(k));
}
FQ_INLINE void store_codes(uint16_t* out, I16 k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(k));
}
FQ_INLINE void load_codes(F16& to, const uint8_t* in) {
    to = floats_of(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
}
FQ_INLINE void load_codes(F16& to, const uint16_t* in) {
    to = floats_of(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in))));
}
FQ_INLINE void store_inside(uint8_t* out, F16 t, F16 top) {
    const __mmask16 low = _mm512_cmp_ps_mask(t, _mm512_setzero_ps(), _CMP_GT_OQ);
    const uint16_t both = static_cast<uint16_t>(_mm512_mask_cmp_ps_mask(low, t, top, _CMP_LT_OQ));
    std::memcpy(out, &both, 2);
}
FQ_INLINE F16 kept(F16 a, const uint8_t* bits) {
    uint16_t on;
    std::memcpy(&on, bits, 2);
    return _mm512_maskz_mov_ps(on, a);
}
FQ_INLINE void look_up(F16& to, const float* table, const float* x, int shift) {
    const I16 key = _mm512_srl_epi32(_mm512_loadu_si512(x), _mm_cvtsi32_si128(shift));
    to = _mm512_i32gather_ps(key, table, 4);
}

}  // namespace
