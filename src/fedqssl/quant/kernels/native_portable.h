// The names of native_avx2.h in plain C++, for any little-endian CPU. Included by native_kernels.h.

// `each` has its loops unrolled: compilers then keep the values in registers.

#define FQ_INLINE __attribute__((always_inline)) inline

namespace {

struct F8 {
    float v[8];
};
struct I8 {
    int32_t v[8];
};
struct D4 {
    double v[4];
};

template <class Out, class Of>
FQ_INLINE Out each(Of of) {
    Out out;
    constexpr int n = sizeof(out.v) / sizeof(out.v[0]);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) out.v[i] = of(i);
    return out;
}

FQ_INLINE F8 load(const float* p) { return each<F8>([=](int i) { return p[i]; }); }
FQ_INLINE void store(float* p, const F8& a) { std::memcpy(p, a.v, sizeof a.v); }
FQ_INLINE F8 splat(float a) { return each<F8>([=](int) { return a; }); }
FQ_INLINE F8 add(const F8& a, const F8& b) { return each<F8>([&](int i) { return a.v[i] + b.v[i]; }); }
FQ_INLINE F8 sub(const F8& a, const F8& b) { return each<F8>([&](int i) { return a.v[i] - b.v[i]; }); }
FQ_INLINE F8 mul(const F8& a, const F8& b) { return each<F8>([&](int i) { return a.v[i] * b.v[i]; }); }
FQ_INLINE F8 min(const F8& a, const F8& b) { return each<F8>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
FQ_INLINE F8 max(const F8& a, const F8& b) { return each<F8>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
FQ_INLINE F8 floats_of(const I8& k) { return each<F8>([&](int i) { return static_cast<float>(k.v[i]); }); }

// Half to even without a call: from 2^23 on, floats are whole numbers, and the sum rounds as all sums do.
FQ_INLINE int32_t code_of(float t, float top) {
    t = t > 0.0f ? t : 0.0f;
    t = t < top ? t : top;
    t += 8388608.0f;
    int32_t bits;
    std::memcpy(&bits, &t, 4);
    return bits - 0x4B000000;
}
FQ_INLINE I8 codes_of(const F8& t, const F8& top) { return each<I8>([&](int i) { return code_of(t.v[i], top.v[i]); }); }

template <class Code>
FQ_INLINE void store_codes(Code* out, const I8& k) {
    Code narrow[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) narrow[i] = static_cast<Code>(k.v[i]);
    std::memcpy(out, narrow, sizeof narrow);
}
template <class Code>
FQ_INLINE F8 load_codes(const Code* in) {
    return each<F8>([=](int i) { return static_cast<float>(static_cast<int32_t>(in[i])); });
}

FQ_INLINE uint8_t inside(const F8& t, const F8& top) {
    unsigned bits = 0;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) bits |= static_cast<unsigned>((t.v[i] > 0.0f) & (t.v[i] < top.v[i])) << i;
    return static_cast<uint8_t>(bits);
}
FQ_INLINE F8 kept(const F8& a, uint8_t bits) { return each<F8>([&](int i) { return bits >> i & 1 ? a.v[i] : 0.0f; }); }
FQ_INLINE F8 look_up(const float* table, const float* x, int shift) {
    return each<F8>([=](int i) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        return table[bits >> shift];
    });
}

FQ_INLINE D4 load(const double* p) { return each<D4>([=](int i) { return p[i]; }); }
FQ_INLINE D4 splat(double a) { return each<D4>([=](int) { return a; }); }
FQ_INLINE D4 add(const D4& a, const D4& b) { return each<D4>([&](int i) { return a.v[i] + b.v[i]; }); }
FQ_INLINE D4 sub(const D4& a, const D4& b) { return each<D4>([&](int i) { return a.v[i] - b.v[i]; }); }
FQ_INLINE D4 mul(const D4& a, const D4& b) { return each<D4>([&](int i) { return a.v[i] * b.v[i]; }); }
FQ_INLINE D4 div(const D4& a, const D4& b) { return each<D4>([&](int i) { return a.v[i] / b.v[i]; }); }
FQ_INLINE D4 min(const D4& a, const D4& b) { return each<D4>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
FQ_INLINE D4 above_zero(const D4& a) { return each<D4>([&](int i) { return a.v[i] > 0.0 ? a.v[i] : 0.0; }); }
FQ_INLINE D4 absolute(const D4& a) { return each<D4>([&](int i) { return a.v[i] < 0.0 ? -a.v[i] : a.v[i]; }); }
FQ_INLINE double nearest1(double a) { return (a + 4503599627370496.0) - 4503599627370496.0; }  // 0 <= a < 2^51
FQ_INLINE D4 nearest(const D4& a) { return each<D4>([&](int i) { return nearest1(a.v[i]); }); }
FQ_INLINE D4 whole(const D4& a) {
    return each<D4>([&](int i) { return nearest1(a.v[i]) - (nearest1(a.v[i]) > a.v[i] ? 1.0 : 0.0); });
}
FQ_INLINE D4 one_if_less(const D4& a, const D4& b) { return each<D4>([&](int i) { return a.v[i] < b.v[i] ? 1.0 : 0.0; }); }
FQ_INLINE D4 if_less_equal(const D4& a, const D4& b, const D4& yes, const D4& no) {
    return each<D4>([&](int i) { return a.v[i] <= b.v[i] ? yes.v[i] : no.v[i]; });
}
template <class Code>
FQ_INLINE void store_codes(Code* out, const D4& a) {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<Code>(static_cast<int32_t>(a.v[i]));
}

#include "native_lanes.h"
FQ_INLINE int64_t ones(uint64_t a) { return __builtin_popcountll(a); }
#include "native_plain.h"


using Factor = int16_t;
constexpr int64_t kDepth = 1;
constexpr int64_t place(int64_t, int64_t lane) { return lane; }
FQ_INLINE I8 no_sums() { return each<I8>([](int) { return 0; }); }
FQ_INLINE I8 dot(const I8& sums, const Factor* w, const Factor* x) {
    return each<I8>([&](int i) { return sums.v[i] + static_cast<int32_t>(w[i]) * static_cast<int32_t>(x[0]); });
}
FQ_INLINE I8 centred(const I8& sums, int32_t shift) {  // twice a sum may pass through 2^31 and back: unsigned
    return each<I8>([&](int i) { return static_cast<int32_t>(2u * static_cast<uint32_t>(sums.v[i]) - static_cast<uint32_t>(shift)); });
}

}  // namespace
