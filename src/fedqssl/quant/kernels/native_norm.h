// Fused batch norm + residual add + clipped ReLU + quantization + packing, and its backward. Included by native.cpp.
//
// Tensors are (rows, channels) matrices: channels_last activations with rows = N*H*W, or the (N, C) input of BatchNorm1d.

namespace {

constexpr int64_t kGroup = 32;  // blocks per partial sum

template <class F>
void for_blocks(int64_t rows, int64_t channels, int threads, F body) {
    const int64_t step = block_rows(channels), blocks = (rows + step - 1) / step;
    const int64_t groups = (blocks + kGroup - 1) / kGroup;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t b1 = (g + 1) * kGroup < blocks ? (g + 1) * kGroup : blocks;
        for (int64_t b = g * kGroup; b < b1; ++b) {
            const int64_t r0 = b * step, r1 = r0 + step < rows ? r0 + step : rows;
            body(g, r0, r1);
        }
    }
}

inline int64_t group_count(int64_t rows, int64_t channels) {
    const int64_t step = block_rows(channels), blocks = (rows + step - 1) / step;
    return (blocks + kGroup - 1) / kGroup;
}

// Adds the float partial sums of one block (channels entries each of a and b) to the doubles of its group.
inline void flush_sums(const float* a, const float* b, int64_t channels, double* to) {
    for (int64_t c = 0; c < channels; ++c) {
        to[c] += a[c];
        to[channels + c] += b[c];
    }
}

inline void reduce_groups(const std::vector<double>& partial, int64_t channels, double* first, double* second) {
    std::memset(first, 0, channels * sizeof(double));
    std::memset(second, 0, channels * sizeof(double));
    for (size_t g = 0; g < partial.size() / (2 * channels); ++g)
        for (int64_t c = 0; c < channels; ++c) {
            first[c] += partial[2 * channels * g + c];
            second[c] += partial[2 * channels * g + channels + c];
        }
}

struct Scratch {  // per-thread buffers of one block
    std::vector<uint8_t> codes, hat, mask;
    std::vector<uint16_t> wide;
    std::vector<float> a, b;
    void resize(int64_t n, int64_t channels) {
        codes.resize(n + 8), hat.resize(n + 8), mask.resize(n + 8), wide.resize(n + 8);
        a.resize(channels + 8), b.resize(channels + 8);
    }
};

inline Scratch& scratch(int64_t channels) {
    static thread_local Scratch s;
    s.resize(block_rows(channels) * channels, channels);
    return s;
}

}  // namespace

// Per channel: sum of (y - shift) and of (y - shift)^2, shift = the first row (it keeps the variance exact).
FQ_API void FQ_NAME(norm_stats)(const float* y, int64_t rows, int64_t channels, double* sum, double* squares, int threads) {
    std::vector<double> partial(2 * channels * group_count(rows, channels), 0.0);
    for_blocks(rows, channels, threads, [&](int64_t g, int64_t r0, int64_t r1) {
        Scratch& t = scratch(channels);
        std::memset(t.a.data(), 0, channels * 4);
        std::memset(t.b.data(), 0, channels * 4);
        for_columns(channels / 8 * 8, [&](auto like, int64_t c) {
            using V = decltype(like);
            V s1 = splatted<V>(0.0f), s2 = s1;
            const V shift = loaded<V>(y + c);
            for (int64_t r = r0; r < r1; ++r) {
                const V v = sub(loaded<V>(y + r * channels + c), shift);
                s1 = add(s1, v);
                s2 = add(s2, mul(v, v));
            }
            store(t.a.data() + c, s1);
            store(t.b.data() + c, s2);
        });
        for (int64_t c = channels / 8 * 8; c < channels; ++c)
            for (int64_t r = r0; r < r1; ++r) {
                const float v = y[r * channels + c] - y[c];
                t.a[c] += v;
                t.b[c] += v * v;
            }
        flush_sums(t.a.data(), t.b.data(), channels, partial.data() + 2 * channels * g);
    });
    reduce_groups(partial, channels, sum, squares);
}

struct NormActArgs {
    const float* y;           // (rows, channels)
    int64_t rows, channels;
    const float *hat_mul, *hat_add;  // x_hat = y * hat_mul + hat_add
    const float *mul, *add;          // z = x_hat * mul + add (+ residual)
    const uint8_t* res_codes;        // residual = res_codes * res_step, or res_values, or none
    const float* res_values;
    float res_step;
    int bits;                 // 0: no activation, values = z
    float scale, step;        // level = z * scale, value = code * step
    int hat_bits;             // 0: x_hat is not kept
    float hat_step;
    uint8_t *codes8, *packed, *mask, *hat_packed;  // each may be null: not wanted
    float* values;            // may be null
    int threads;
};

namespace {

// Constants of one call in registers. By value on purpose: code stores are byte stores, which may alias anything in memory.
template <class V>
struct NormActConstants {
    V scale, step, top, hat_inverse, hat_half, hat_top, res_step;
    bool has_hat, has_act, has_values;
    explicit NormActConstants(const NormActArgs& p)
        : scale(splatted<V>(p.scale)),
          step(splatted<V>(p.step)),
          top(splatted<V>(static_cast<float>((1 << p.bits) - 1))),
          hat_inverse(splatted<V>(1.0f / p.hat_step)),
          hat_half(splatted<V>(static_cast<float>((1 << p.hat_bits) - 1) * 0.5f)),
          hat_top(splatted<V>(static_cast<float>((1 << p.hat_bits) - 1))),
          res_step(splatted<V>(p.res_step)),
          has_hat(p.hat_bits > 0),
          has_act(p.bits > 0),
          has_values(p.values != nullptr) {}
};

template <class V>
struct Affine {  // of as many channels
    V hat_mul, hat_add, mul, add;
    Affine(const float* hm, const float* ha, const float* m, const float* a)
        : hat_mul(loaded<V>(hm)), hat_add(loaded<V>(ha)), mul(loaded<V>(m)), add(loaded<V>(a)) {}
};

// A few channels of one row; odd channel counts go through padded copies so that both paths round alike.
template <class Code, class V>
FQ_INLINE void norm_act_few(const NormActConstants<V>& k, V y, const Affine<V>& f, V res, bool has_res, Code* code,
                            uint8_t* hat, uint8_t* mask, float* value) {
    const V x = add(mul(y, f.hat_mul), f.hat_add);
    V z = add(mul(x, f.mul), f.add);
    if (has_res) z = add(z, res);
    if (k.has_hat) store_codes(hat, codes_of(add(mul(x, k.hat_inverse), k.hat_half), k.hat_top));
    if (k.has_act) {
        const V t = mul(z, k.scale);
        store_inside(mask, t, k.top);
        const auto c = codes_of(t, k.top);
        store_codes(code, c);
        if (k.has_values) store(value, mul(floats_of(c), k.step));
    } else {
        store(value, z);
    }
}

// Channel counts that are no multiple of 8: element by element through a padded group of 8.
template <class Code>
void norm_act_odd(const NormActArgs& p, int64_t i0, int64_t n, Code* code, uint8_t* hat, uint8_t* mask_bits) {
    const bool has_res = p.res_codes || p.res_values;
    const NormActConstants<F8> k8(p);
    for (int64_t j = 0; j < n; j += 8) {
        const int64_t count = n - j < 8 ? n - j : 8;
        float y[8] = {0}, hm[8] = {0}, ha[8] = {0}, m[8] = {0}, a[8] = {0}, res[8] = {0}, value[8];
        Code c8[8];
        uint8_t h8[8], mask = 0;
        for (int64_t k = 0; k < count; ++k) {
            const int64_t i = i0 + j + k, c = i % p.channels;
            y[k] = p.y[i], hm[k] = p.hat_mul[c], ha[k] = p.hat_add[c], m[k] = p.mul[c], a[k] = p.add[c];
            if (p.res_codes) res[k] = float(p.res_codes[i]) * p.res_step;
            else if (p.res_values) res[k] = p.res_values[i];
        }
        norm_act_few<Code, F8>(k8, load(y), Affine<F8>(hm, ha, m, a), load(res), has_res, c8, h8, &mask, value);
        if (p.bits) std::memcpy(code + j, c8, sizeof(Code) * count);
        if (p.hat_bits) std::memcpy(hat + j, h8, count);
        mask_bits[j / 8] = count == 8 ? mask : mask & ((1 << count) - 1);
        if (p.values) std::memcpy(p.values + i0 + j, value, 4 * count);
    }
}

enum Residual { kNone, kCodes, kFloats };

// A few channels at a time down the rows of a block, so that their coefficients stay in registers.
template <class Code, Residual kResidual, class V>
FQ_INLINE void norm_act_column(const NormActArgs& p, int64_t r0, int64_t r1, int64_t c, Code* code, uint8_t* hat,
                               uint8_t* mask) {
    const NormActConstants<V> k(p);
    const int64_t C = p.channels, i0 = r0 * C, rows = r1 - r0;
    const float* y = p.y + i0;
    float* values = p.values ? p.values + i0 : nullptr;
    const uint8_t* res_codes = kResidual == kCodes ? p.res_codes + i0 : nullptr;
    const float* res_values = kResidual == kFloats ? p.res_values + i0 : nullptr;
    const Affine<V> f(p.hat_mul + c, p.hat_add + c, p.mul + c, p.add + c);
    for (int64_t r = 0, j = c; r < rows; ++r, j += C) {
        V res = splatted<V>(0.0f);
        if (kResidual == kCodes) res = mul(loaded_codes<V>(res_codes + j), k.res_step);
        if (kResidual == kFloats) res = loaded<V>(res_values + j);
        norm_act_few<Code, V>(k, loaded<V>(y + j), f, res, kResidual != kNone, code + j, hat + j, mask + j / 8,
                              values + j);
    }
}

template <class Code, Residual kResidual>
void norm_act_columns(const NormActArgs& p, int64_t r0, int64_t r1, Code* code, uint8_t* hat, uint8_t* mask) {
    for_columns(p.channels, [&](auto like, int64_t c) {
        norm_act_column<Code, kResidual, decltype(like)>(p, r0, r1, c, code, hat, mask);
    });
}

template <class Code>
void norm_act_block(const NormActArgs& p, int64_t r0, int64_t r1, Code* code) {
    Scratch& t = scratch(p.channels);
    const int64_t C = p.channels, i0 = r0 * C, n = (r1 - r0) * C;
    uint8_t* mask = p.bits && p.mask ? p.mask + i0 / 8 : t.mask.data();
    uint8_t* hat = t.hat.data();
    if (C % 8) norm_act_odd<Code>(p, i0, n, code, hat, mask);
    else if (p.res_codes) norm_act_columns<Code, kCodes>(p, r0, r1, code, hat, mask);
    else if (p.res_values) norm_act_columns<Code, kFloats>(p, r0, r1, code, hat, mask);
    else norm_act_columns<Code, kNone>(p, r0, r1, code, hat, mask);
    if (p.bits) {
        if (p.packed) pack(code, n, p.bits, p.packed + i0 * p.bits / 8, packed_bytes(n, p.bits));
        if (p.codes8) std::memcpy(p.codes8 + i0, code, n);  // only for bits <= 8
    }
    if (p.hat_bits) pack8(hat, n, p.hat_bits, p.hat_packed + i0 * p.hat_bits / 8, packed_bytes(n, p.hat_bits));
}

}  // namespace

FQ_API void FQ_NAME(norm_act)(const NormActArgs* args) {
    const NormActArgs& p = *args;
    for_blocks(p.rows, p.channels, p.threads, [&](int64_t, int64_t r0, int64_t r1) {
        Scratch& t = scratch(p.channels);
        if (p.bits <= 8) norm_act_block<uint8_t>(p, r0, r1, t.codes.data());
        else norm_act_block<uint16_t>(p, r0, r1, t.wide.data());
    });
}

namespace {

template <class V>
FQ_INLINE V masked(V g, const uint8_t* mask, int64_t i) {  // i a multiple of 8
    return mask ? kept(g, mask + i / 8) : g;
}

inline float masked1(float g, const uint8_t* mask, int64_t i) {
    return !mask || (mask[i / 8] >> (i % 8) & 1) ? g : 0.0f;
}

// x_hat of a block, as codes; without kept bits every code is 0 and hat_step is 0.
inline const uint8_t* hat_codes(const uint8_t* hat_packed, int hat_bits, int64_t i0, int64_t n, Scratch& t) {
    if (!hat_bits) std::memset(t.hat.data(), 0, n);
    else unpack8(hat_packed + i0 * hat_bits / 8, n, hat_bits, t.hat.data(), packed_bytes(n, hat_bits));
    return t.hat.data();
}

}  // namespace

// Per channel: sum of g and of g * x_hat, g masked by the activation's clip; out (may be null) receives the masked g.
FQ_API void FQ_NAME(norm_backward_sums)(const float* g, int64_t rows, int64_t C, const uint8_t* mask,
                                  const uint8_t* hat_packed, int hat_bits, float hat_step, float* out, double* sum_g,
                                  double* sum_gx, int threads) {
    const float offset = -0.5f * static_cast<float>((1 << hat_bits) - 1) * hat_step;
    std::vector<double> partial(2 * C * group_count(rows, C), 0.0);
    for_blocks(rows, C, threads, [&](int64_t group, int64_t r0, int64_t r1) {
        Scratch& t = scratch(C);
        const int64_t i0 = r0 * C, n = (r1 - r0) * C;
        const uint8_t* hat = hat_codes(hat_packed, hat_bits, i0, n, t);
        std::memset(t.a.data(), 0, C * 4);
        std::memset(t.b.data(), 0, C * 4);
        if (C % 8 == 0) {  // a few channels at a time down the rows: the sums stay in registers
            for_columns(C, [&](auto like, int64_t c) {
                using V = decltype(like);
                const V step = splatted<V>(hat_step), shift = splatted<V>(offset);
                V a = splatted<V>(0.0f), b = a;
                for (int64_t j = c; j < n; j += C) {
                    const V v = masked(loaded<V>(g + i0 + j), mask, i0 + j);
                    const V x = add(mul(loaded_codes<V>(hat + j), step), shift);
                    if (out) store(out + i0 + j, v);
                    a = add(a, v);
                    b = add(b, mul(v, x));
                }
                store(t.a.data() + c, a);
                store(t.b.data() + c, b);
            });
        } else {
            for (int64_t j = 0, c = 0; j < n; ++j, c = c + 1 == C ? 0 : c + 1) {
                const float v = masked1(g[i0 + j], mask, i0 + j);
                if (out) out[i0 + j] = v;
                t.a[c] += v;
                t.b[c] += v * (float(hat[j]) * hat_step + offset);
            }
        }
        flush_sums(t.a.data(), t.b.data(), C, partial.data() + 2 * C * group);
    });
    reduce_groups(partial, C, sum_g, sum_gx);
}

// dx = g * g_mul + x_hat * hat_mul + shift per channel (the backward of batch norm), with the key histogram of dx.
FQ_API void FQ_NAME(norm_backward_apply)(const float* g, int64_t rows, int64_t C, const uint8_t* mask,
                                   const uint8_t* hat_packed, int hat_bits, float hat_step, const float* g_mul,
                                   const float* hat_mul, const float* shift, float* dx, uint32_t* hist, float* range,
                                   int threads) {
    const float offset = -0.5f * static_cast<float>((1 << hat_bits) - 1) * hat_step;
    Histograms h(hist, rows * C, threads);
    for_blocks(rows, C, threads, [&](int64_t, int64_t r0, int64_t r1) {
        Scratch& t = scratch(C);
        const int64_t i0 = r0 * C, n = (r1 - r0) * C;
        const uint8_t* hat = hat_codes(hat_packed, hat_bits, i0, n, t);
        if (C % 8 == 0) {
            for_columns(C, [&](auto like, int64_t c) {
                using V = decltype(like);
                const V step = splatted<V>(hat_step), low = splatted<V>(offset);
                const V own_mul = loaded<V>(g_mul + c), of_hat = loaded<V>(hat_mul + c), constant = loaded<V>(shift + c);
                for (int64_t j = c; j < n; j += C) {
                    const V v = masked(loaded<V>(g + i0 + j), mask, i0 + j);
                    const V x = add(mul(loaded_codes<V>(hat + j), step), low);
                    const V d = add(mul(v, own_mul), mul(x, of_hat));
                    store(dx + i0 + j, add(d, constant));
                }
            });
        } else {
            for (int64_t j = 0, c = 0; j < n; ++j, c = c + 1 == C ? 0 : c + 1) {
                const float x = float(hat[j]) * hat_step + offset;
                dx[i0 + j] = masked1(g[i0 + j], mask, i0 + j) * g_mul[c] + x * hat_mul[c] + shift[c];
            }
        }
        if (hist) h.count(dx + i0, n);
    });
    if (hist) h.merge(range);
}
