// Codes to and from adjacent bits without special instructions, for native_portable.h and native_neon.h: neighbours move
// together, then pairs of them, then fours.

struct Lanes8 {
    int s;
    uint64_t m1, m2, m3;  // the lower one of each pair, when one, two, four codes lie together
    explicit Lanes8(int bits)
        : s(bits),
          m1(0x0001000100010001ull * ((1ull << bits) - 1)),
          m2(0x0000000100000001ull * ((1ull << 2 * bits) - 1)),
          m3((1ull << 4 * bits) - 1) {}
    uint64_t join(uint64_t v) const {
        v = (v & m1) | (v >> (8 - s) & m1 << s);
        v = (v & m2) | (v >> (16 - 2 * s) & m2 << 2 * s);
        return (v & m3) | (v >> (32 - 4 * s) & m3 << 4 * s);
    }
    uint64_t spread(uint64_t bits) const {
        uint64_t v = (bits & m3) | (bits & m3 << 4 * s) << (32 - 4 * s);
        v = (v & m2) | (v & m2 << 2 * s) << (16 - 2 * s);
        return (v & m1) | (v & m1 << s) << (8 - s);
    }
};

struct Lanes16 {
    int s;
    uint64_t m1, m2;
    explicit Lanes16(int bits)
        : s(bits), m1(0x0000000100000001ull * ((1ull << bits) - 1)), m2((1ull << 2 * bits) - 1) {}
    uint64_t join(uint64_t v) const {
        v = (v & m1) | (v >> (16 - s) & m1 << s);
        return (v & m2) | (v >> (32 - 2 * s) & m2 << 2 * s);
    }
    uint64_t spread(uint64_t bits) const {
        const uint64_t v = (bits & m2) | (bits & m2 << 2 * s) << (32 - 2 * s);
        return (v & m1) | (v & m1 << s) << (16 - s);
    }
};

// Bit `plane` of eight codes, as one byte: the product moves bit 8 i to bit 56 + i.
inline uint8_t plane_byte(uint64_t codes, int plane) {
    return static_cast<uint8_t>((codes >> plane & 0x0101010101010101ull) * 0x0102040810204080ull >> 56);
}
