// The paper's bit kernel (Sec. 1.1): x . y = sum_ij 2^(i+j) bitcount(and(x_i, y_j)) over bit planes. Included by native.cpp.

namespace {

// Bit plane `plane` of `channels` codes, 8 per byte.
inline void plane_bytes(const uint8_t* codes, int64_t channels, int plane, uint8_t* out) {
    int64_t c = 0;
    for (; c + 8 <= channels; c += 8) out[c / 8] = plane_byte(load64(codes + c), plane);
    if (c < channels) {
        uint64_t v = 0;
        std::memcpy(&v, codes + c, channels - c);
        out[c / 8] = plane_byte(v, plane);
    }
}

}  // namespace

// sum_k x[k] * y[k] for codes of m and k bits (both at most 8).
FQ_API int64_t FQ_NAME(bit_dot)(const uint8_t* x, const uint8_t* y, int64_t n, int m, int k) {
    int64_t total = 0;
    for (int64_t c = 0; c < n; c += 64) {
        uint8_t a[8][8] = {{0}}, b[8][8] = {{0}};
        const int64_t count = n - c < 64 ? n - c : 64;
        for (int i = 0; i < m; ++i) plane_bytes(x + c, count, i, a[i]);
        for (int j = 0; j < k; ++j) plane_bytes(y + c, count, j, b[j]);
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < k; ++j) {
                const uint64_t u = load64(a[i]), v = load64(b[j]);
                total += and_ones(&u, &v, 1) << (i + j);
            }
    }
    return total;
}

struct BitConvArgs {
    const uint8_t* x;  // codes (N, H, W, C), m bits
    const uint8_t* w;  // codes (O, KH, KW, C), k bits
    float* out;        // (N, OH, OW, O): scale * sum x * (2 w - (2^k - 1))
    int64_t N, H, W, C, O, KH, KW, OH, OW, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;
    int m, k;
    float scale;
    int threads;
};

namespace {

// The window of one output pixel in one plane: taps in order (row, column), cb bytes each; outside the image is zero.
// Rows inside the image are copied eight bytes at a time past their end: the next row, or clear_tail, overwrites the excess.
inline void bit_window(const BitConvArgs& p, const uint8_t* plane, int64_t cb, int64_t oh, int64_t ow, uint8_t* out) {
    const int64_t w0 = ow * p.stride_w - p.pad_w, row_bytes = p.KW * cb;
    const bool inside = p.dil_w == 1 && w0 >= 0 && w0 + p.KW <= p.W;
    for (int64_t a = 0; a < p.KH; ++a, out += row_bytes) {
        const int64_t h = oh * p.stride_h - p.pad_h + a * p.dil_h;
        if (h < 0 || h >= p.H) {
            std::memset(out, 0, row_bytes);
        } else if (inside) {
            const uint8_t* from = plane + (h * p.W + w0) * cb;
            for (int64_t i = 0; i < row_bytes; i += 8) store64(out + i, load64(from + i));
        } else {
            for (int64_t b = 0; b < p.KW; ++b) {
                const int64_t w = w0 + b * p.dil_w;
                if (w < 0 || w >= p.W) std::memset(out + b * cb, 0, cb);
                else std::memcpy(out + b * cb, plane + (h * p.W + w) * cb, cb);
            }
        }
    }
}

template <int kWords>  // 0: any number
inline int64_t and_count(const uint64_t* x, const uint64_t* y, int64_t words) {
    return and_ones(x, y, kWords ? kWords : words);
}

template <int kWords>
void bit_image(const BitConvArgs& p, int64_t n, const uint64_t* weight, int64_t words, int64_t cb) {
    const bool one = p.m == 1 && p.k == 1;
    const int64_t outputs = p.O;
    const float scale = p.scale;
    const int64_t pixels = p.H * p.W, used = p.KH * p.KW * cb, levels = (1 << p.k) - 1;
    std::vector<uint8_t> planes(p.m * pixels * cb + 16);
    for (int i = 0; i < p.m; ++i)
        for (int64_t q = 0; q < pixels; ++q)
            plane_bytes(p.x + (n * pixels + q) * p.C, p.C, i, planes.data() + (i * pixels + q) * cb);
    std::vector<uint64_t> columns(p.m * words + 2);
    for (int64_t oh = 0; oh < p.OH; ++oh)
        for (int64_t ow = 0; ow < p.OW; ++ow) {
            int64_t sum_x = 0;
            for (int i = 0; i < p.m; ++i) {
                uint64_t* column = columns.data() + i * words;
                bit_window(p, planes.data() + i * pixels * cb, cb, oh, ow, reinterpret_cast<uint8_t*>(column));
                if (used % 8) column[words - 1] &= (uint64_t(1) << (8 * (used % 8))) - 1;
                sum_x += and_count<kWords>(column, column, words) << i;
            }
            float* out = p.out + ((n * p.OH + oh) * p.OW + ow) * p.O;
            if (one) {  // one bit by one bit: a single pass
                const int32_t sum = static_cast<int32_t>(sum_x);
                for (int64_t o = 0; o < outputs; ++o) {
                    const int32_t dot = static_cast<int32_t>(and_count<kWords>(columns.data(), weight + o * words, words));
                    out[o] = static_cast<float>(2 * dot - sum) * scale;
                }
                continue;
            }
            for (int64_t o = 0; o < p.O; ++o) {
                int64_t dot = 0;
                for (int i = 0; i < p.m; ++i)
                    for (int j = 0; j < p.k; ++j)
                        dot += and_count<kWords>(columns.data() + i * words, weight + (o * p.k + j) * words, words) << (i + j);
                out[o] = static_cast<float>(2 * dot - levels * sum_x) * p.scale;
            }
        }
}

}  // namespace

FQ_API void FQ_NAME(bit_conv2d)(const BitConvArgs* args) {
    const BitConvArgs& p = *args;
    const int64_t cb = (p.C + 7) / 8, taps = p.KH * p.KW, words = (taps * cb + 7) / 8;
    std::vector<uint64_t> weight(p.O * p.k * words, 0);
    for (int64_t o = 0; o < p.O; ++o)
        for (int j = 0; j < p.k; ++j)
            for (int64_t t = 0; t < taps; ++t)
                plane_bytes(p.w + (o * taps + t) * p.C, p.C, j,
                            reinterpret_cast<uint8_t*>(weight.data() + (o * p.k + j) * words) + t * cb);
#pragma omp parallel for num_threads(p.threads) schedule(static)
    for (int64_t n = 0; n < p.N; ++n) {
        if (words == 3) bit_image<3>(p, n, weight.data(), words, cb);
        else if (words == 5) bit_image<5>(p, n, weight.data(), words, cb);
        else if (words == 9) bit_image<9>(p, n, weight.data(), words, cb);
        else if (words == 18) bit_image<18>(p, n, weight.data(), words, cb);
        else bit_image<0>(p, n, weight.data(), words, cb);
    }
}
