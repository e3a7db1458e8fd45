// What an integer convolution leaves to be added up at 8 bits. Included by native_kernels.h.

namespace {

template <bool kOne>
void odd_sums_row(const float* in, int64_t channels, F8 factor, F8 scale, float* out) {
    const F8 one = splat(in[channels]);
    int64_t c = 0;
    for (; c + 8 <= channels; c += 8) {
        const F8 rest = kOne ? one : load(in + channels + c);
        store(out + c, mul(add(mul(load(in + c), factor), rest), scale));
    }
    if (c < channels) {
        float first[8] = {0}, second[8] = {0}, sums[8];
        std::memcpy(first, in + c, 4 * (channels - c));
        if (!kOne) std::memcpy(second, in + channels + c, 4 * (channels - c));
        store(sums, mul(add(mul(load(first), factor), kOne ? one : load(second)), scale));
        std::memcpy(out + c, sums, 4 * (channels - c));
    }
}

}  // namespace

// out = (in[:, :channels] * factor + rest) * scale, rest being the columns behind them: one for all channels, or one for each.
FQ_API void FQ_NAME(odd_sums)(const float* in, int64_t rows, int64_t width, int64_t channels, float factor, float scale,
                              float* out, int threads) {
    const F8 f = splat(factor), s = splat(scale);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        if (width == channels + 1) odd_sums_row<true>(in + r * width, channels, f, s, out + r * channels);
        else odd_sums_row<false>(in + r * width, channels, f, s, out + r * channels);
    }
}
