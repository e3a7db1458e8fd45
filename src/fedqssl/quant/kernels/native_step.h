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
FQ_INLINE D4 rounded(D4 y, D4 scale, D4 top, D4 snap, const double* uniform) {
    const D4 t = min(above_zero(mul(add(div(y, scale), splat(1.0)), mul(top, splat(0.5)))), top);
    const D4 close = nearest(t);
    if (!uniform) return close;
    const D4 low = whole(t);
    const D4 up = min(add(low, one_if_less(load(uniform), sub(t, low))), top);
    return if_less_equal(absolute(sub(t, close)), snap, close, up);
}

template <class Code>
void round_pack(const double* y, int64_t n, int s, double scale, double snap, const double* uniform, uint8_t* out,
                int threads) {
    const D4 m = splat(scale), top = splat(static_cast<double>((1 << s) - 1)), near = splat(snap);
    for_blocks<Code>(n, threads, [=](Code* codes, int64_t b0, int64_t count) {
        int64_t i = 0;
        for (; i + 4 <= count; i += 4)
            store_codes(codes + i, rounded(load(y + b0 + i), m, top, near, uniform ? uniform + b0 + i : nullptr));
        if (i < count) {
            double values[4] = {0}, draws[4] = {0};
            Code four[4];
            std::memcpy(values, y + b0 + i, 8 * (count - i));
            if (uniform) std::memcpy(draws, uniform + b0 + i, 8 * (count - i));
            store_codes(four, rounded(load(values), m, top, near, uniform ? draws : nullptr));
            std::memcpy(codes + i, four, sizeof(Code) * (count - i));
        }
        pack(codes, count, s, out + b0 * s / 8, packed_bytes(count, s));
    });
}

}  // namespace

FQ_API void FQ_NAME(step_target)(const uint8_t* in, int64_t n, int s, const double* table, const uint8_t* gradient, int gs,
                           const float* centres, double rate, double* out, int threads) {
    if (s <= 8 && gs <= 8) step_target<uint8_t, uint8_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
    else if (s <= 8) step_target<uint8_t, uint16_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
    else if (gs <= 8) step_target<uint16_t, uint8_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
    else step_target<uint16_t, uint16_t>(in, n, s, table, gradient, gs, centres, rate, out, threads);
}

// Codes of t = (y / scale + 1) (2^s - 1) / 2, packed; `uniform`: numbers in [0, 1) for stochastic rounding, or null.
FQ_API void FQ_NAME(round_pack)(const double* y, int64_t n, int s, double scale, double snap, const double* uniform,
                          uint8_t* out, int threads) {
    if (s <= 8) round_pack<uint8_t>(y, n, s, scale, snap, uniform, out, threads);
    else round_pack<uint16_t>(y, n, s, scale, snap, uniform, out, threads);
}
