// What native_avx2.h and native_portable.h share.

// No vectors of its own for packing and for small tables: nothing is done here.
template <class... Arguments>
constexpr int64_t pack_groups(Arguments...) {
    return 0;
}
template <class... Arguments>
constexpr int64_t unpack_groups(Arguments...) {
    return 0;
}
template <class... Arguments>
constexpr int64_t look_up_codes(Arguments...) {
    return 0;
}

// Bits that are set in both.
FQ_INLINE int64_t and_ones(const uint64_t* x, const uint64_t* y, int64_t n) {
    int64_t found = 0;
    for (int64_t q = 0; q < n; ++q) found += ones(x[q] & y[q]);
    return found;
}
