// Runs kernels on inputs from a file and compares every output with the file's, bit by bit.
//
//   driver FILE VARIANT [REPEATS [OPERATION]]
//
// The file is a list of cases: name, integers, floats, inputs, outputs; each list starts with its length (see cases.py). Built from
// the kernels' own source, for any CPU; needs neither Python nor torch.

#include "native.cpp"

#include <cstdio>
#include <cstdlib>
#include <string>

using Bytes = std::vector<uint8_t>;

struct Case {
    std::string name;
    std::vector<int64_t> i;
    std::vector<double> f;
    std::vector<Bytes> in, want, out;
    const void* input(size_t k) const { return k < in.size() && !in[k].empty() ? in[k].data() : nullptr; }
    const float* floats(size_t k) const { return static_cast<const float*>(input(k)); }
    const double* doubles(size_t k) const { return static_cast<const double*>(input(k)); }
    const uint8_t* bytes(size_t k) const { return static_cast<const uint8_t*>(input(k)); }
    template <class T>
    T* output(size_t k) {
        return k < want.size() && !want[k].empty() ? reinterpret_cast<T*>(out[k].data()) : nullptr;
    }
};

constexpr size_t kGuard = 64;  // bytes behind every output that must stay as they are

#define DEFINE_RUN(v)                                                                                                  \
    static void run_##v(Case& c) {                                                                                     \
        using namespace v##_kernels;                                                                                   \
        const auto& i = c.i;                                                                                           \
        const auto& f = c.f;                                                                                           \
        const int threads = 1;                                                                                         \
        uint8_t* o = c.output<uint8_t>(0);                                                                             \
        float* of = c.output<float>(0);                                                                                \
        const int64_t n = i[0];                                                                                        \
        const int s = static_cast<int>(i[1]);                                                                          \
        if (c.name == "pack") fq_##v##_pack(c.input(0), n, s, o, threads);                                             \
        else if (c.name == "unpack") fq_##v##_unpack(c.bytes(0), n, s, o, threads);                                    \
        else if (c.name == "quantize_pack") fq_##v##_quantize_pack(c.floats(0), n, s, f[0], o, threads);               \
        else if (c.name == "unpack_affine") fq_##v##_unpack_affine(c.bytes(0), n, s, f[0], f[1], of, threads);         \
        else if (c.name == "unpack_table") fq_##v##_unpack_table(c.bytes(0), n, s, c.floats(1), of, threads);          \
        else if (c.name == "key_histogram")                                                                            \
            fq_##v##_key_histogram(c.floats(0), n, c.output<uint32_t>(0), c.output<float>(1), threads);                \
        else if (c.name == "quantile_table")                                                                           \
            fq_##v##_quantile_table(static_cast<const uint32_t*>(c.input(0)), n, s, i[2], f[0], f[1], of,              \
                                    c.output<float>(1), c.output<uint16_t>(2));                                        \
        else if (c.name == "mean_table")                                                                               \
            fq_##v##_mean_table(static_cast<const uint32_t*>(c.input(0)), n, s, i[2], f[0], f[1], of,                  \
                                    c.output<float>(1), c.output<uint16_t>(2));                                        \
        else if (c.name == "table_apply") fq_##v##_table_apply(c.floats(0), n, s, c.floats(1), of, threads);           \
        else if (c.name == "code_apply")                                                                               \
            fq_##v##_code_apply(c.floats(0), n, s, static_cast<const uint16_t*>(c.input(1)), c.output<uint16_t>(0),    \
                                threads);                                                                              \
        else if (c.name == "norm_stats")                                                                               \
            fq_##v##_norm_stats(c.floats(0), n, i[1], c.output<double>(0), c.output<double>(1), threads);              \
        else if (c.name == "norm_act") {                                                                               \
            v##_kernels::NormActArgs p{c.floats(0), n, i[1], c.floats(1), c.floats(2), c.floats(3), c.floats(4),       \
                                       c.bytes(5), c.floats(6), float(f[0]), int(i[2]), float(f[1]), float(f[2]),      \
                                       int(i[3]), float(f[3]), c.output<uint8_t>(0), c.output<uint8_t>(1),             \
                                       c.output<uint8_t>(2), c.output<uint8_t>(3), c.output<float>(4), threads};       \
            fq_##v##_norm_act(&p);                                                                                     \
        } else if (c.name == "norm_backward_sums")                                                                     \
            fq_##v##_norm_backward_sums(c.floats(0), n, i[1], c.bytes(1), c.bytes(2), i[2], f[0], of,                  \
                                        c.output<double>(1), c.output<double>(2), threads);                            \
        else if (c.name == "norm_backward_apply")                                                                      \
            fq_##v##_norm_backward_apply(c.floats(0), n, i[1], c.bytes(1), c.bytes(2), i[2], f[0], c.floats(3),        \
                                         c.floats(4), c.floats(5), of, c.output<uint32_t>(1), c.output<float>(2),      \
                                         threads);                                                                     \
        else if (c.name == "bit_dot") *c.output<int64_t>(0) = fq_##v##_bit_dot(c.bytes(0), c.bytes(1), n, s, i[2]);    \
        else if (c.name == "bit_conv2d") {                                                                             \
            v##_kernels::BitConvArgs p{c.bytes(0), c.bytes(1), of, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7],     \
                                       i[8], i[9], i[10], i[11], i[12], i[13], i[14], int(i[15]), int(i[16]),          \
                                       float(f[0]), threads};                                                          \
            fq_##v##_bit_conv2d(&p);                                                                                   \
        } else if (c.name == "step_target")                                                                            \
            fq_##v##_step_target(c.bytes(0), n, s, c.doubles(1), c.bytes(2), i[2], c.floats(3), f[0],                  \
                                 c.output<double>(0), threads);                                                        \
        else if (c.name == "round_pack")                                                                               \
            fq_##v##_round_pack(c.doubles(0), n, s, f[0], f[1], c.doubles(1), o, threads);                             \
        else if (c.name == "odd_sums")                                                                                 \
            fq_##v##_odd_sums(c.floats(0), n, i[1], i[2], f[0], f[1], of, threads);                                    \
        else if (c.name == "conv2d") {                                                                                 \
            Bytes factors(fq_##v##_conv_bytes(i[4], i[3] * i[5] * i[6], i[13]));                                       \
            fq_##v##_conv_prepare(c.input(1), i[4], i[3], i[5] * i[6], i[13], factors.data());                         \
            v##_kernels::ConvArgs p{c.input(0), factors.data(), of, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7],    \
                                    i[8], i[9], i[10], i[11], i[12], int(i[13]), float(f[0]), threads};                \
            fq_##v##_conv2d(&p);                                                                                       \
        } else {                                                                                                       \
            std::fprintf(stderr, "no operation %s\n", c.name.c_str());                                                 \
            std::exit(2);                                                                                              \
        }                                                                                                              \
    }

DEFINE_RUN(portable)
#ifdef FQ_X86
DEFINE_RUN(avx2)
DEFINE_RUN(avx512)
#endif
#ifdef FQ_ARM
DEFINE_RUN(neon)
#endif
#ifdef FQ_ARM_DOT
DEFINE_RUN(neon_dot)
#endif

static void (*runner(const std::string& variant))(Case&) {
#ifdef FQ_X86
    if (variant == "avx2") return run_avx2;
    if (variant == "avx512") return run_avx512;
#endif
#ifdef FQ_ARM
    if (variant == "neon") return run_neon;
#endif
#ifdef FQ_ARM_DOT
    if (variant == "neon_dot") return run_neon_dot;
#endif
    return variant == "portable" ? run_portable : nullptr;
}

static std::FILE* file;

template <class T>
static T read_one() {
    T v;
    if (std::fread(&v, sizeof v, 1, file) != 1) std::fprintf(stderr, "the file ends too early\n"), std::exit(2);
    return v;
}

template <class T>
static std::vector<T> read_list() {
    std::vector<T> list(read_one<uint64_t>());
    for (T& v : list) v = read_one<T>();
    return list;
}

static std::vector<Bytes> read_buffers() {
    std::vector<Bytes> list(read_one<uint64_t>());
    for (Bytes& v : list) {
        v.resize(read_one<uint64_t>());
        if (std::fread(v.data(), 1, v.size(), file) != v.size()) std::exit(2);
    }
    return list;
}

static Case read_case() {
    Case c;
    for (uint8_t letter : read_list<uint8_t>()) c.name += static_cast<char>(letter);
    c.i = read_list<int64_t>();
    c.f = read_list<double>();
    c.in = read_buffers();
    c.want = read_buffers();
    return c;
}

static bool right(const Case& c, size_t number) {
    for (size_t k = 0; k < c.want.size(); ++k) {
        const size_t size = c.want[k].size();
        if (std::memcmp(c.out[k].data(), c.want[k].data(), size)) {
            size_t at = 0;
            while (c.out[k][at] == c.want[k][at]) ++at;
            std::printf("case %zu, %s: output %zu differs at byte %zu of %zu\n", number, c.name.c_str(), k, at, size);
            return false;
        }
        for (size_t at = size; at < size + kGuard; ++at)
            if (c.out[k][at] != 0xA5) {
                std::printf("case %zu, %s: wrote past output %zu\n", number, c.name.c_str(), k);
                return false;
            }
    }
    return true;
}

int main(int argc, char** argv) {
    if (argc == 1) return std::puts(fq_variants()), 0;
    const auto run = argc > 2 ? runner(argv[2]) : nullptr;
    file = std::fopen(argv[1], "rb");
    if (!run || !file) return std::fprintf(stderr, "usage: driver FILE VARIANT [REPEATS [OPERATION]]\n"), 2;
    const int repeats = argc > 3 ? std::atoi(argv[3]) : 1;
    size_t done = 0, wrong = 0;
    const uint64_t count = read_one<uint64_t>();
    for (uint64_t number = 0; number < count; ++number) {
        Case c = read_case();
        if (argc > 4 && c.name != argv[4]) continue;
        for (const Bytes& b : c.want) {
            c.out.emplace_back(b.size() + kGuard, 0xA5);
            // Entries that the operation leaves alone: as in the file.
            if (c.name == "quantile_table" || c.name == "mean_table") std::memcpy(c.out.back().data(), b.data(), b.size());
        }
        for (int r = 0; r < repeats; ++r) run(c);
        ++done;
        wrong += !right(c, number);
    }
    std::printf("%zu cases, %zu wrong\n", done, wrong);
    return wrong != 0;
}
