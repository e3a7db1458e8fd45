// Loops over as many floats as a CPU takes at once: `Full` is F8, or F16 with AVX-512. Functions that take `V` are for both.
// Included by native_kernels.h.

namespace {

#ifndef FQ_WIDE
using Full = F8;
#endif

FQ_INLINE void load(F8& to, const float* p) { to = load(p); }
FQ_INLINE void splat(F8& to, float a) { to = splat(a); }
FQ_INLINE void load_codes(F8& to, const uint8_t* in) { to = load_codes(in); }
FQ_INLINE void load_codes(F8& to, const uint16_t* in) { to = load_codes(in); }
FQ_INLINE void store_inside(uint8_t* out, F8 t, F8 top) { *out = inside(t, top); }
FQ_INLINE F8 kept(F8 a, const uint8_t* bits) { return kept(a, *bits); }
FQ_INLINE void look_up(F8& to, const float* table, const float* x, int shift) { to = look_up(table, x, shift); }

template <class V>
constexpr int64_t kWidth = sizeof(V) / sizeof(float);

template <class V>
FQ_INLINE V loaded(const float* p) {
    V v;
    load(v, p);
    return v;
}
template <class V>
FQ_INLINE V splatted(float a) {
    V v;
    splat(v, a);
    return v;
}
template <class V, class Code>
FQ_INLINE V loaded_codes(const Code* p) {
    V v;
    load_codes(v, p);
    return v;
}

// body(V's zero, c) for every V of the columns, wide ones first: `channels` is a multiple of 8.
template <class Body>
FQ_INLINE void for_columns(int64_t channels, Body body) {
    int64_t c = 0;
    for (; c + kWidth<Full> <= channels; c += kWidth<Full>) body(Full{}, c);
    if (kWidth<Full> > 8 && c < channels) body(F8{}, c);
}

}  // namespace
