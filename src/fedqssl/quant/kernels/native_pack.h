// Packing of codes, uniform quantization and look-ups. Included by native_kernels.h.

namespace {

constexpr int64_t kChunk = 1 << 15;  // elements per unit of work; a multiple of 64

// Packs n codes (n a multiple of 8, or the stream's tail) into out, which has `room` writable bytes.
void pack8(const uint8_t* codes, int64_t n, int s, uint8_t* out, int64_t room) {
    const Lanes8 lanes(s);
    const int64_t groups = n / 8;
    for (int64_t g = pack_groups(codes, groups, s, out, room); g < groups; ++g) {
        uint64_t v;
        std::memcpy(&v, codes + 8 * g, 8);
        const uint64_t bits = lanes.join(v);
        const int64_t at = g * s;
        if (at + 8 <= room) std::memcpy(out + at, &bits, 8);
        else std::memcpy(out + at, &bits, s);
    }
    const int rest = static_cast<int>(n % 8);
    if (rest) {
        uint64_t v = 0;
        std::memcpy(&v, codes + 8 * groups, rest);
        const uint64_t bits = lanes.join(v);
        std::memcpy(out + groups * s, &bits, (rest * s + 7) / 8);
    }
}

void unpack8(const uint8_t* in, int64_t n, int s, uint8_t* codes, int64_t room) {
    const Lanes8 lanes(s);
    const int64_t groups = n / 8;
    for (int64_t g = unpack_groups(in, groups, s, codes, room); g < groups; ++g) {
        uint64_t bits = 0;
        const int64_t at = g * s;
        if (at + 8 <= room) std::memcpy(&bits, in + at, 8);
        else std::memcpy(&bits, in + at, s);
        const uint64_t v = lanes.spread(bits);
        std::memcpy(codes + 8 * g, &v, 8);
    }
    const int rest = static_cast<int>(n % 8);
    if (rest) {
        uint64_t bits = 0;
        std::memcpy(&bits, in + groups * s, (rest * s + 7) / 8);
        const uint64_t v = lanes.spread(bits);
        std::memcpy(codes + 8 * groups, &v, rest);
    }
}

// The same for codes of 9 to 16 bits held in 16-bit words: eight codes make exactly s bytes.
struct Wide {
    Lanes16 lanes;
    int half;  // bits of four codes: 36..64
    explicit Wide(int s) : lanes(s), half(4 * s) {}
    uint64_t low(uint64_t a, uint64_t b) const { return half == 64 ? a : (a | (b << half)); }
    uint64_t high(uint64_t b) const { return half == 64 ? b : (b >> (64 - half)); }
    uint64_t second(uint64_t low, uint64_t high) const {
        return half == 64 ? high : ((low >> half) | (high << (64 - half)));
    }
};

// Words go to and from memory one by one: a 16-byte load right after two 8-byte stores would stall.
inline uint64_t load64(const void* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
}
inline void store64(void* p, uint64_t v) { std::memcpy(p, &v, 8); }

void pack16(const uint16_t* codes, int64_t n, int s, uint8_t* out, int64_t room) {
    const Wide wide(s);
    int64_t i = 8 * pack_groups(codes, n / 8, s, out, room), at = i / 8 * s;
    for (; i + 8 <= n && at + 16 <= room; i += 8, at += s) {
        const uint64_t a = wide.lanes.join(load64(codes + i)), b = wide.lanes.join(load64(codes + i + 4));
        store64(out + at, wide.low(a, b));
        store64(out + at + 8, wide.high(b));
    }
    for (; i < n; i += 8, at += s) {
        const int64_t count = n - i < 8 ? n - i : 8;
        uint16_t v[8] = {0};
        std::memcpy(v, codes + i, 2 * count);
        const uint64_t a = wide.lanes.join(load64(v)), b = wide.lanes.join(load64(v + 4));
        const uint64_t w[2] = {wide.low(a, b), wide.high(b)};
        std::memcpy(out + at, w, (count * s + 7) / 8);
    }
}

void unpack16(const uint8_t* in, int64_t n, int s, uint16_t* codes, int64_t room) {
    const Wide wide(s);
    int64_t i = 8 * unpack_groups(in, n / 8, s, codes, room), at = i / 8 * s;
    for (; i + 8 <= n && at + 16 <= room; i += 8, at += s) {
        const uint64_t low = load64(in + at), high = load64(in + at + 8);
        store64(codes + i, wide.lanes.spread(low));
        store64(codes + i + 4, wide.lanes.spread(wide.second(low, high)));
    }
    for (; i < n; i += 8, at += s) {
        const int64_t count = n - i < 8 ? n - i : 8;
        uint64_t w[2] = {0, 0};
        std::memcpy(w, in + at, (count * s + 7) / 8);
        const uint64_t v[2] = {wide.lanes.spread(w[0]), wide.lanes.spread(wide.second(w[0], w[1]))};
        std::memcpy(codes + i, v, 2 * count);
    }
}

inline void pack(const uint8_t* c, int64_t n, int s, uint8_t* o, int64_t room) { pack8(c, n, s, o, room); }
inline void pack(const uint16_t* c, int64_t n, int s, uint8_t* o, int64_t room) { pack16(c, n, s, o, room); }
inline void unpack(const uint8_t* in, int64_t n, int s, uint8_t* c, int64_t room) { unpack8(in, n, s, c, room); }
inline void unpack(const uint8_t* in, int64_t n, int s, uint16_t* c, int64_t room) { unpack16(in, n, s, c, room); }

inline int64_t packed_bytes(int64_t n, int s) { return (n * s + 7) / 8; }

constexpr int64_t kBlock = 1024;  // elements whose codes wait in a small buffer before they are packed

// Calls body(buffer, start, count) for every block of n elements, the chunks of blocks side by side.
template <class Code, class Body>
void for_blocks(int64_t n, int threads, Body body) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        alignas(32) Code buffer[kBlock];
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        for (int64_t b0 = c0; b0 < c1; b0 += kBlock) body(buffer, b0, b0 + kBlock < c1 ? kBlock : c1 - b0);
    }
}

template <class Code>
void quantize_pack(const float* x, int64_t n, int s, float factor, uint8_t* out, int threads) {
    const float top = static_cast<float>((1 << s) - 1);
    for_blocks<Code>(n, threads, [=](Code* buffer, int64_t b0, int64_t count) {
        int64_t i = 0;
        const Full by = splatted<Full>(factor), most = splatted<Full>(top);
        for (; i + kWidth<Full> <= count; i += kWidth<Full>)
            store_codes(buffer + i, codes_of(mul(loaded<Full>(x + b0 + i), by), most));
        for (; i + 8 <= count; i += 8) {
            store_codes(buffer + i, codes_of(mul(load(x + b0 + i), splat(factor)), splat(top)));
        }
        if (i < count) {
            float tail[8] = {0};
            Code codes[8];
            std::memcpy(tail, x + b0 + i, 4 * (count - i));
            store_codes(codes, codes_of(mul(load(tail), splat(factor)), splat(top)));
            std::memcpy(buffer + i, codes, sizeof(Code) * (count - i));
        }
        // A block must not write past its own bytes: its neighbour may belong to another thread.
        pack(buffer, count, s, out + b0 * s / 8, packed_bytes(count, s));
    });
}

template <class Code, bool kTable>
void unpack_float(const uint8_t* in, int64_t n, int s, float factor, float shift, const float* table, float* out,
                  int threads) {
    const int64_t total = packed_bytes(n, s);
    for_blocks<Code>(n, threads, [=](Code* buffer, int64_t b0, int64_t count) {
        const int64_t at = b0 * s / 8;
        unpack(in + at, count, s, buffer, total - at);
        int64_t i = kTable ? look_up_codes(table, s, buffer, count, out + b0) : 0;
        if (!kTable) {
            for (; i + 8 <= count; i += 8)
                store(out + b0 + i, add(mul(load_codes(buffer + i), splat(factor)), splat(shift)));
        }
        for (; i < count; ++i) out[b0 + i] = kTable ? table[buffer[i]] : float(buffer[i]) * factor + shift;
    });
}

// Rows per block of a (rows, channels) matrix: a multiple of 8, so that every block starts on a byte boundary.
inline int64_t block_rows(int64_t channels) {
    const int64_t rows = 4096 / channels / 8 * 8;
    return rows < 8 ? 8 : rows;
}

}  // namespace

FQ_API void FQ_NAME(pack)(const void* codes, int64_t n, int s, uint8_t* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t count = c0 + kChunk < n ? kChunk : n - c0;
        uint8_t* o = out + c0 * s / 8;
        if (s <= 8) pack8(static_cast<const uint8_t*>(codes) + c0, count, s, o, packed_bytes(count, s));
        else pack16(static_cast<const uint16_t*>(codes) + c0, count, s, o, packed_bytes(count, s));
    }
}

FQ_API void FQ_NAME(unpack)(const uint8_t* in, int64_t n, int s, void* codes, int threads) {
    const int64_t total = packed_bytes(n, s);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t count = c0 + kChunk < n ? kChunk : n - c0;
        const int64_t at = c0 * s / 8;
        if (s <= 8) unpack8(in + at, count, s, static_cast<uint8_t*>(codes) + c0, total - at);
        else unpack16(in + at, count, s, static_cast<uint16_t*>(codes) + c0, total - at);
    }
}

// codes = round(clamp(x * mul, 0, 2^s - 1)), packed.
FQ_API void FQ_NAME(quantize_pack)(const float* x, int64_t n, int s, float mul, uint8_t* out, int threads) {
    if (s <= 8) quantize_pack<uint8_t>(x, n, s, mul, out, threads);
    else quantize_pack<uint16_t>(x, n, s, mul, out, threads);
}

// out = code * mul + add.
FQ_API void FQ_NAME(unpack_affine)(const uint8_t* in, int64_t n, int s, float mul, float add, float* out, int threads) {
    if (s <= 8) unpack_float<uint8_t, false>(in, n, s, mul, add, nullptr, out, threads);
    else unpack_float<uint16_t, false>(in, n, s, mul, add, nullptr, out, threads);
}

// out = table[code].
FQ_API void FQ_NAME(unpack_table)(const uint8_t* in, int64_t n, int s, const float* table, float* out, int threads) {
    if (s <= 8) unpack_float<uint8_t, true>(in, n, s, 0, 0, table, out, threads);
    else unpack_float<uint16_t, true>(in, n, s, 0, 0, table, out, threads);
}
