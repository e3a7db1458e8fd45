// Quantile quantization by a histogram over the upper 16 bits of floats, without sorting. Included by native.cpp.

namespace {

constexpr int64_t kKeys = 65536;

struct Range {
    float low, high;
};

inline void min_max(const float* x, int64_t n, Range& r) {
    int64_t i = 0;
    constexpr int64_t kStep = kWidth<Full>;
    if (n >= kStep) {
        Full lo = loaded<Full>(x), hi = lo;
        for (i = kStep; i + kStep <= n; i += kStep) {
            const Full v = loaded<Full>(x + i);
            lo = min(lo, v);
            hi = max(hi, v);
        }
        float a[kStep], b[kStep];
        store(a, lo);
        store(b, hi);
        for (int64_t j = 0; j < kStep; ++j) {
            if (a[j] < r.low) r.low = a[j];
            if (b[j] > r.high) r.high = b[j];
        }
    }
    for (; i < n; ++i) {
        if (x[i] < r.low) r.low = x[i];
        if (x[i] > r.high) r.high = x[i];
    }
}

// Counts the upper 16 bits of each float. Two tables in turn: equal neighbours would otherwise wait for each other.
inline void count_keys(const float* x, int64_t n, uint32_t* h, uint32_t* h2) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(x);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint16_t a = half[2 * i + 1], b = half[2 * i + 3], c = half[2 * i + 5], d = half[2 * i + 7];
        ++h[a];
        ++h2[b];
        ++h[c];
        ++h2[d];
    }
    for (; i < n; ++i) ++h[half[2 * i + 1]];
}

// Two tables and a range per thread; merging integers is order-free. The first table is the result itself, and a few floats
// get by with it: to clear and to add up another one takes as long as to count 50,000 of them.
struct Histograms {
    uint32_t* first;
    int64_t tables;  // of each thread
    std::vector<uint32_t>& others;
    std::vector<Range> ranges;
    static constexpr float kInfinity = __builtin_inff();
    static std::vector<uint32_t>& kept() {  // between calls: fresh memory costs more than to clear it
        static thread_local std::vector<uint32_t> tables;
        return tables;
    }
    Histograms(uint32_t* hist, int64_t n, int threads)
        : first(hist), tables(n < (1 << 17) ? 1 : 2), others(kept()), ranges(threads, Range{kInfinity, -kInfinity}) {
        if (!hist) return;
        std::memset(hist, 0, kKeys * sizeof(uint32_t));
        others.assign((tables * threads - 1) * kKeys, 0);
    }
    uint32_t* table(int64_t t) { return t ? others.data() + (t - 1) * kKeys : first; }
    void count(const float* x, int64_t n) {
        const int64_t t = omp_get_thread_num();
        count_keys(x, n, table(tables * t), table(tables * t + tables - 1));
        min_max(x, n, ranges[t]);
    }
    void merge(float* range) {
        for (int64_t t = 1; t < tables * static_cast<int64_t>(ranges.size()); ++t)
            for (int64_t k = 0; k < kKeys; ++k) first[k] += table(t)[k];
        Range r = ranges[0];
        for (const Range& o : ranges) {
            if (o.low < r.low) r.low = o.low;
            if (o.high > r.high) r.high = o.high;
        }
        range[0] = r.low;
        range[1] = r.high;
    }
};

}  // namespace

// hist[key] = how many floats have this key (their upper 16 bits); range = {smallest, largest}.
FQ_API void FQ_NAME(key_histogram)(const float* x, int64_t n, uint32_t* hist, float* range, int threads) {
    Histograms h(hist, n, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t count = c0 + kChunk < n ? kChunk : n - c0;
        h.count(x + c0, count);
    }
    h.merge(range);
}

namespace {

inline int64_t raw_key(int64_t order) { return order >= 0x8000 ? order - 0x8000 : 0xFFFF - order; }

// Calls body(key, count) for every key that occurs, in ascending order of floats. Most keys never occur: eight neighbours,
// whose keys are neighbours, too, are passed over at once.
template <class Body>
inline void for_keys(const uint32_t* hist, Body body) {
    for (int64_t block = 0; block < kKeys; block += 8) {
        uint64_t pairs[4];
        std::memcpy(pairs, hist + (raw_key(block) & ~int64_t(7)), sizeof pairs);
        if (!(pairs[0] | pairs[1] | pairs[2] | pairs[3])) continue;
        for (int64_t order = block; order < block + 8; ++order)
            if (hist[raw_key(order)]) body(raw_key(order), static_cast<int64_t>(hist[raw_key(order)]));
    }
}

inline float float_of(uint32_t bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
}

inline float clamped(float v, float low, float high) {
    v = v < low ? low : v;
    return v > high ? high : v;
}

// What stands for part q of the 2^split equal parts of a key's interval: its middle; 0 for zeros and denormals.
inline float part_value(int64_t raw, int64_t q, int split) {
    if (!(raw & 0x7F80)) return 0.0f;
    return float_of(static_cast<uint32_t>(raw << 16 | q << (16 - split) | int64_t(1) << (15 - split)));
}

// The centre of rank `rank` within a key: as if the key's `count` entries lay evenly in its interval.
inline float interpolated(int64_t raw, int64_t rank, int64_t before, int64_t count) {
    if (!(raw & 0x7F80)) return 0.0f;
    const double lo = float_of(static_cast<uint32_t>(raw << 16)), hi = float_of(static_cast<uint32_t>(raw << 16 | 0xFFFF));
    double part = (static_cast<double>(rank - before) - 0.5) / static_cast<double>(count);
    if (raw & 0x8000) part = 1.0 - part;  // a larger mantissa is a smaller number
    return static_cast<float>(lo + part * (hi - lo));
}

}  // namespace

// The quantile quantizer over keys. centres[i] = Quantile(i / (2^bits - 1)) as the inverted CDF, to within a key, first and
// last exact. Floats that share their upper 16 + extra bits share an entry of values and codes: the centre nearest to the
// middle of their interval, and its code; entries that do not occur are left alone. Returns 1 if something is not finite.
FQ_API int FQ_NAME(quantile_table)(const uint32_t* hist, int64_t n, int bits, int extra, float low, float high, float* centres,
                             float* values, uint16_t* codes) {
    const int64_t last = (int64_t(1) << bits) - 1, parts = int64_t(1) << extra;
    low += 0.0f;  // -0 becomes +0
    high += 0.0f;
    for (int64_t k = 0x7F80; k < 0x8000; ++k)
        if (hist[k] || hist[k | 0x8000]) return 1;
    int64_t i = 0, seen = 0;
    for_keys(hist, [&](int64_t raw, int64_t count) {
        for (; i <= last; ++i) {
            const int64_t rank = i == 0 ? 1 : (i * n + last - 1) / last;
            if (rank > seen + count) break;
            centres[i] = clamped(interpolated(raw, rank, seen, count), low, high);
        }
        seen += count;
    });
    centres[0] = low;
    centres[last] = high;
    int64_t at = 0;
    for_keys(hist, [&](int64_t raw, int64_t) {
        for (int64_t p = 0; p < parts; ++p) {
            const int64_t q = raw & 0x8000 ? parts - 1 - p : p;  // ascending values
            const float v = clamped(part_value(raw, q, extra), low, high);
            while (at < last && centres[at] < v) ++at;
            const int64_t down = at ? at - 1 : at;
            codes[raw << extra | q] = static_cast<uint16_t>(v - centres[down] <= centres[at] - v ? down : at);
        }
    });
    const float ends[2] = {low, high};
    for (int e = 0; e < 2; ++e) {  // the entries of the end points stand for them exactly; zero has two signs
        uint32_t word;
        std::memcpy(&word, &ends[e], 4);
        codes[word >> (16 - extra)] = static_cast<uint16_t>(e ? last : 0);
        if (ends[e] == 0) codes[0x80000000u >> (16 - extra)] = static_cast<uint16_t>(e ? last : 0);
    }
    for_keys(hist, [&](int64_t k, int64_t) {
        for (int64_t q = k << extra; q < (k + 1) << extra; ++q) values[q] = centres[codes[q]];
    });
    return 0;
}

// A quantizer over keys with little error and without bias: 2^bits cells of equal weight, each standing for the mean of its
// entries. A key that weighs less than a cell stays whole. It weighs sqrt(entries * width), rounded to 24 bits so that sums are exact in any order. Sums of entries run
// from the smallest to the largest, and a cell's is a difference of two. Arguments and result as for quantile_table.
FQ_API int FQ_NAME(mean_table)(const uint32_t* hist, int64_t, int bits, int extra, float low, float high, float* centres,
                         float* values, uint16_t* codes) {
    const int64_t cells = int64_t(1) << bits, parts = int64_t(1) << extra;
    for (int64_t k = 0x7F80; k < 0x8000; ++k)
        if (hist[k] || hist[k | 0x8000]) return 1;
    const auto weight = [](int64_t raw, int64_t count) {
        if (!(raw & 0x7F80)) return 0.0;
        const double width = double(float_of(uint32_t(raw << 16 | 0xFFFF))) - double(float_of(uint32_t(raw << 16)));
        return std::sqrt(double(count) * (width < 0 ? -width : width));
    };
    double heaviest = 0;
    for_keys(hist, [&](int64_t raw, int64_t count) {
        const double w = weight(raw, count);
        heaviest = w > heaviest ? w : heaviest;
    });
    const double scale = heaviest > 0 ? 16777216.0 / heaviest : 0.0;
    const auto units = [&](int64_t raw, int64_t count) { return int64_t(std::nearbyint(weight(raw, count) * scale)); };
    int64_t total = 0;
    for_keys(hist, [&](int64_t raw, int64_t count) { total += units(raw, count); });
    int64_t before = 0, at = -1;
    double sum = 0, seen = 0, sum_before = 0, seen_before = 0;
    const auto close = [&](int64_t upto) {  // cells up to this one have the mean of what came since the last one
        const float mean = static_cast<float>((sum - sum_before) / (seen - seen_before));
        const float least = at < 0 ? mean : centres[at];
        for (++at; at < upto; ++at) centres[at] = least;
        centres[at] = mean > least ? mean : least;
        sum_before = sum;
        seen_before = seen;
    };
    int64_t open = -1;
    for_keys(hist, [&](int64_t raw, int64_t count) {
        const int64_t heavy = units(raw, count);
        for (int64_t p = 0; p < parts; ++p) {
            const int64_t q = raw & 0x8000 ? parts - 1 - p : p;  // ascending values
            const int64_t within = heavy * cells >= total ? (2 * p + 1) * heavy : parts * heavy;
            int64_t cell = total ? (2 * parts * before + within) * cells / (2 * parts * total) : 0;
            cell = cell < cells ? cell : cells - 1;  // zeros at the very end weigh nothing
            if (open >= 0 && cell != open) close(open);
            open = cell;
            codes[raw << extra | q] = static_cast<uint16_t>(cell);
            const double entries = double(count) / double(parts);
            sum += entries * double(clamped(part_value(raw, q, extra), low, high));
            seen += entries;
        }
        before += heavy;
    });
    close(open);
    for (int64_t rest = at + 1; rest < cells; ++rest) centres[rest] = centres[at];
    for_keys(hist, [&](int64_t k, int64_t) {
        for (int64_t q = k << extra; q < (k + 1) << extra; ++q) values[q] = centres[codes[q]];
    });
    return 0;
}

// out[i] = values[upper 16 + extra bits of x[i]]; out may be x.
FQ_API void FQ_NAME(table_apply)(const float* x, int64_t n, int extra, const float* values, float* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        int64_t i = c0;
        for (; i + 8 <= c1; i += 8) store(out + i, look_up(values, x + i, 16 - extra));
        for (; i < c1; ++i) {
            uint32_t b;
            std::memcpy(&b, x + i, 4);
            out[i] = values[b >> (16 - extra)];
        }
    }
}

// out[i] = codes[upper 16 + extra bits of x[i]].
FQ_API void FQ_NAME(code_apply)(const float* x, int64_t n, int extra, const uint16_t* codes, uint16_t* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c0 = 0; c0 < n; c0 += kChunk) {
        const int64_t c1 = c0 + kChunk < n ? c0 + kChunk : n;
        const auto code = [=](int64_t i) {
            uint32_t b;
            std::memcpy(&b, x + i, 4);
            return codes[b >> (16 - extra)];
        };
        int64_t i = c0;
        for (; i + 4 <= c1; i += 4) {
            const uint16_t four[4] = {code(i), code(i + 1), code(i + 2), code(i + 3)};
            std::memcpy(out + i, four, 8);
        }
        for (; i < c1; ++i) out[i] = code(i);
    }
}
