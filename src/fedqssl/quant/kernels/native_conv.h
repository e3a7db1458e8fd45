// Convolution for predictions without torch (fedqssl.lean): codes by codes in integers, or floats. Included by native_kernels.h.
//
// Windows of a few output pixels are laid out as rows; eight outputs at a time, their weights stream past the rows.

struct ConvArgs {
    const void* x;        // (N, H, W, C): codes of up to 8 bits, or floats
    const void* factors;  // from conv_prepare
    float* out;           // (N, OH, OW, O): scale * sum x * (2 w - (2^bits - 1)); of floats: scale * sum x * w
    int64_t N, H, W, C, O, KH, KW, OH, OW, stride_h, stride_w, pad_h, pad_w;
    int bits;             // of the weights' codes; 0: floats
    float scale;
    int threads;
};

namespace {

constexpr int64_t kLanes = 8, kTile = 16;  // outputs side by side; pixels whose windows are laid out at a time
constexpr int kPixels = 4, kGroups = 2;    // of a tile that share loads

struct InIntegers {
    using Value = uint8_t;
    using Entry = Factor;
    using Sums = I8;
    static constexpr int64_t depth = kDepth;
    static constexpr int64_t at(int64_t k, int64_t lane) { return place(k, lane); }
    FQ_INLINE static Sums none() { return no_sums(); }
    FQ_INLINE static Sums more(const Sums& s, const Entry* w, const Entry* x) { return dot(s, w, x); }
    FQ_INLINE static F8 finished(const Sums& s, int32_t shift, float scale) {
        return mul(floats_of(centred(s, shift)), splat(scale));
    }
};

struct InFloats {
    using Value = float;
    using Entry = float;
    using Sums = F8;
    static constexpr int64_t depth = 1;
    static constexpr int64_t at(int64_t, int64_t lane) { return lane; }
    FQ_INLINE static Sums none() { return splat(0.0f); }
    FQ_INLINE static Sums more(const Sums& s, const Entry* w, const Entry* x) { return add(s, mul(load(w), splat(*x))); }
    FQ_INLINE static F8 finished(const Sums& s, int32_t, float scale) { return mul(s, splat(scale)); }
};

template <class A>
int64_t row_length(int64_t k) {
    return (k + A::depth - 1) / A::depth * A::depth;
}

template <class A>
void prepare(const typename A::Value* w, int64_t O, int64_t C, int64_t taps, typename A::Entry* out) {
    const int64_t length = row_length<A>(C * taps);
    std::memset(out, 0, (O + kLanes - 1) / kLanes * kLanes * length * sizeof(*out));
    for (int64_t o = 0; o < O; ++o) {
        typename A::Entry* panel = out + o / kLanes * kLanes * length;
        for (int64_t t = 0; t < taps; ++t)
            for (int64_t c = 0; c < C; ++c) {  // weights come as (O, C, taps), windows are (taps, C)
                const int64_t k = t * C + c;
                panel[k / A::depth * A::depth * kLanes + A::at(k % A::depth, o % kLanes)] = w[(o * C + c) * taps + t];
            }
    }
}

// The window of one output pixel as a row: taps in order (row, column), C entries each; outside the image is zero.
template <class Value, class Entry>
void window(const ConvArgs& p, int64_t pixel, Entry* row) {
    const int64_t n = pixel / (p.OH * p.OW), oh = pixel / p.OW % p.OH, ow = pixel % p.OW;
    const Value* image = static_cast<const Value*>(p.x) + n * p.H * p.W * p.C;
    const int64_t w0 = ow * p.stride_w - p.pad_w;
    const int64_t left = w0 < 0 ? -w0 : 0, right = w0 + p.KW > p.W ? p.W - w0 : p.KW;
    for (int64_t a = 0; a < p.KH; ++a, row += p.KW * p.C) {
        const int64_t h = oh * p.stride_h - p.pad_h + a;
        if (h < 0 || h >= p.H || right <= left) {
            std::memset(row, 0, p.KW * p.C * sizeof(Entry));
            continue;
        }
        const Value* from = image + (h * p.W + w0) * p.C;
        std::memset(row, 0, left * p.C * sizeof(Entry));
        for (int64_t i = left * p.C; i < right * p.C; ++i) row[i] = from[i];
        std::memset(row + right * p.C, 0, (p.KW - right) * p.C * sizeof(Entry));
    }
}

// P pixels by G groups of eight outputs.
template <class A, int P, int G>
FQ_INLINE void block(const ConvArgs& p, const typename A::Entry* rows, const typename A::Entry* w, int64_t length,
                     const int32_t* shifts, int64_t o, float* out) {
    typename A::Sums s[P][G];
    for (int i = 0; i < P; ++i)
        for (int g = 0; g < G; ++g) s[i][g] = A::none();
    for (int64_t k = 0; k < length; k += A::depth)
        for (int g = 0; g < G; ++g)
            for (int i = 0; i < P; ++i) s[i][g] = A::more(s[i][g], w + (g * length + k) * kLanes, rows + i * length + k);
    for (int i = 0; i < P; ++i)
        for (int g = 0; g < G; ++g) {
            const F8 y = A::finished(s[i][g], shifts[i], p.scale);
            const int64_t first = o + g * kLanes, many = p.O - first;
            float* to = out + i * p.O + first;
            if (many >= kLanes) {
                store(to, y);
            } else {
                float some[kLanes];
                store(some, y);
                std::memcpy(to, some, 4 * many);
            }
        }
}

template <class A, int P>
void outputs(const ConvArgs& p, const typename A::Entry* rows, int64_t length, const int32_t* shifts, int64_t o0, int64_t o1,
             float* out) {
    const auto* factors = static_cast<const typename A::Entry*>(p.factors);
    int64_t o = o0;
    for (; o + kGroups * kLanes <= o1; o += kGroups * kLanes)
        block<A, P, kGroups>(p, rows, factors + o * length, length, shifts, o, out);
    for (; o < o1; o += kLanes) block<A, P, 1>(p, rows, factors + o * length, length, shifts, o, out);
}

template <class A>
void convolve(const ConvArgs& p) {
    const int64_t pixels = p.N * p.OH * p.OW, taps = p.KH * p.KW * p.C, length = row_length<A>(taps);
    const int32_t top = (1 << p.bits) - 1;
    constexpr int64_t kPanel = 4 * kGroups * kLanes;  // outputs whose weights stay near while a tile's pixels pass
#pragma omp parallel for num_threads(p.threads) schedule(static)
    for (int64_t t0 = 0; t0 < pixels; t0 += kTile) {
        const int64_t count = pixels - t0 < kTile ? pixels - t0 : kTile;
        static thread_local std::vector<typename A::Entry> rows;
        rows.assign(kTile * length, 0);
        int32_t shifts[kTile];
        for (int64_t i = 0; i < count; ++i) {
            typename A::Entry* row = rows.data() + i * length;
            window<typename A::Value>(p, t0 + i, row);
            int32_t sum = 0;
            for (int64_t k = 0; k < taps; ++k) sum += static_cast<int32_t>(row[k]);
            shifts[i] = top * sum;
        }
        for (int64_t o = 0; o < p.O; o += kPanel) {
            const int64_t o1 = o + kPanel < p.O ? o + kPanel : p.O;
            int64_t i = 0;
            for (; i + kPixels <= count; i += kPixels)
                outputs<A, kPixels>(p, rows.data() + i * length, length, shifts + i, o, o1, p.out + (t0 + i) * p.O);
            for (; i < count; ++i)
                outputs<A, 1>(p, rows.data() + i * length, length, shifts + i, o, o1, p.out + (t0 + i) * p.O);
        }
    }
}

}  // namespace

// Bytes that conv_prepare writes for O outputs of k inputs each (channels times taps).
FQ_API int64_t FQ_NAME(conv_bytes)(int64_t O, int64_t k, int bits) {
    const int64_t outputs = (O + kLanes - 1) / kLanes * kLanes;
    return bits ? outputs * row_length<InIntegers>(k) * sizeof(Factor) : outputs * row_length<InFloats>(k) * sizeof(float);
}

// Weights (O, C, taps), codes of up to 8 bits (or floats: bits = 0), in the order in which conv2d reads them.
FQ_API void FQ_NAME(conv_prepare)(const void* w, int64_t O, int64_t C, int64_t taps, int bits, void* out) {
    if (bits) prepare<InIntegers>(static_cast<const uint8_t*>(w), O, C, taps, static_cast<Factor*>(out));
    else prepare<InFloats>(static_cast<const float*>(w), O, C, taps, static_cast<float*>(out));
}

FQ_API void FQ_NAME(conv2d)(const ConvArgs* args) {
    if (args->bits) convolve<InIntegers>(*args);
    else convolve<InFloats>(*args);
}
