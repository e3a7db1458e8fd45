// The weight update of a low-bit layer, k' = Q(x - a g), in two passes around the compander. Included by native.cpp.

namespace {

// out = table[code] - rate * centres[gradient code], in doubles.
template <class Code, class Gradient>
void step_target(const uint8_t* in, int64_t n, int s, const double* table, const uint8_t* gradient, int gs,
                 const float* centres, double rate, double* out, int threads) {
    const int64_t total = packed_bytes(n, s), gradient_total = packed_bytes(n, gs);
    for_blocks<Code>(n, threads, [=](Code* codes, int64_t b0, int64_t count) {
        alignas(32) Gradient moves[kBlock];
        const int64_t at = b0 * s / 8, gradient_at = b0 * gs / 8;
        unpack(in + at, count, s, codes, total - at);
        unpack(gradient + gradient_at, count, gs, moves, gradient_total - gradient_at);
        for (int64_t i = 0; i < count; ++i)
            out[b0 + i] = table[codes[i]] - rate * static_cast<double>(centres[moves[i]]);
    });
}

// Codes of four values, as doubles; `uniform` null: to the nearest.
inline __m256d rounded(__m256d y, __m256d scale, __m256d top, __m256d snap, const double* uniform) {
    const __m256d zero = _mm256_setzero_pd(), one = _mm256_set1_pd(1.0);
    __m256d t = _mm256_mul_pd(_mm256_add_pd(_mm256_div_pd(y, scale), one), _mm256_mul_pd(top, _mm256_set1_pd(0.5)));
    t = _mm256_min_pd(_mm256_max_pd(t, zero), top);  // max_pd returns its second operand for NaN
    const __m256d nearest = _mm256_round_pd(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    if (!uniform) return nearest;
    const __m256d low = _mm256_floor_pd(t);
    const __m256d above = _mm256_cmp_pd(_mm256_loadu_pd(uniform), _mm256_sub_pd(t, low), _CMP_LT_OQ);
    const __m256d up = _mm256_min_pd(_mm256_add_pd(low, _mm256_and_pd(above, one)), top);
    const __m256d away = _mm256_andnot_pd(_mm256_set1_pd(-0.0), _mm256_sub_pd(t, nearest));
    return _mm256_blendv_pd(up, nearest, _mm256_cmp_pd(away, snap, _CMP_LE_OQ));
}

template <class Code>
void round_pack(const double* y, int64_t n, int s, double scale, double snap, const double* uniform, uint8_t* out,
                int threads) {
    const __m256d m = _mm256_set1_pd(scale), top = _mm256_set1_pd((1 << s) - 1), near = _mm256_set1_pd(snap);
    for_blocks<Code>(n, threads, [=](Code* codes, int64_t b0, int64_t count) {
        alignas(16) int32_t four[4];
        for (int64_t i = 0; i < count; i += 4) {
            const int64_t many = count - i < 4 ? count - i : 4;
            double values[4] = {0}, draws[4] = {0};
            const double* from = y + b0 + i;
            const double* draw = uniform ? uniform + b0 + i : nullptr;
            if (many < 4) {
                std::memcpy(values, from, 8 * many);
                from = values;
                if (draw) std::memcpy(draws, draw, 8 * many), draw = draws;
            }
            const __m256d k = rounded(_mm256_loadu_pd(from), m, top, near, draw);
            _mm_store_si128(reinterpret_cast<__m128i*>(four), _mm256_cvttpd_epi32(k));
            for (int64_t j = 0; j < many; ++j) codes[i + j] = static_cast<Code>(four[j]);
        }
        pack(codes, count, s, out + b0 * s / 8, packed_bytes(count, s));
    });
}

}  // namespace

FQ_API void fq_step_target(const uint8_t* in, int64_t n, int s, const double* table, const uint8_t* gradient, int gs,
                           const float* centres, double rate, double* out, int threads) {
    if (s <= 8 && gs <= 8) step_target<uint8_t, uint8_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
    else if (s <= 8) step_target<uint8_t, uint16_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
    else if (gs <= 8) step_target<uint16_t, uint8_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
    else step_target<uint16_t, uint16_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
}

// Codes of t = (y / scale + 1) (2^s - 1) / 2, packed; `uniform`: numbers in [0, 1) for stochastic rounding, or null.
FQ_API void fq_round_pack(const double* y, int64_t n, int s, double scale, double snap, const double* uniform,
                          uint8_t* out, int threads) {
    if (s <= 8) round_pack<uint8_t>(y, n, s, scale, snap, uniform, out, threads);
    else round_pack<uint16_t>(y, n, s, scale, snap, uniform, out, threads);
}
