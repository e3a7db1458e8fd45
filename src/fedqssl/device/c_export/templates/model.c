/* A low-bit image classifier in plain C99, written by fedqssl @VERSION@. See model.h and README.md.
 *
 * Activations are codes (uint8_t) in the order row, column, channel. Weights are s-bit codes k that stand for the odd
 * integers 2k - (2^s - 1). A layer adds up codes x integers in int32_t; one multiplier and one offset per channel then do
 * batch norm, activation and rounding at once:
 *
 *     code = clip((sum * multiplier + offset + residual) / 2^shift, 0, top)
 *
 * The offset includes one half, so that this rounds to the nearest code. C99 is enough for all of it; gcc and clang on x86-64
 * and Cortex-M4 and M7 use wider instructions for the same sums (not with -DMODEL_PLAIN_C on x86-64).
 */
#include "model.h"

#include <stddef.h>
#include <string.h>

#if defined(__ARM_FEATURE_SIMD32)
#include <arm_acle.h> /* two products in one instruction on Cortex-M4, M7 and their like */
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(MODEL_PLAIN_C)
#define USES_AVX2
#include <immintrin.h> /* sixteen products in one instruction on a PC that has AVX2, which is asked when it runs */
#if defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__) && !defined(__clang__)
#pragma GCC optimize("O3") /* gcc's -O2 does not vectorize the loops that unpack and gather */
#endif
#endif

#define WEIGHT_TOP ((1 << MODEL_BITS) - 1)
#define MOST_PATCHES 64 /* even */

typedef struct {
    const uint8_t *weights;     /* one row of packed codes for each output channel */
    const int32_t *multipliers; /* one for each output channel */
    const int64_t *offsets;     /* one for each output channel */
    int64_t residual;           /* multiplier of what is added before rounding */
    int32_t in_height, in_width, in_channels;
    int32_t out_height, out_width, out_channels;
    int32_t kernel_height, kernel_width;
    int32_t stride_height, stride_width;
    int32_t pad_height, pad_width;
    int32_t patch;   /* weights of a channel, rounded up with zeros */
    int32_t patches; /* output pixels that are worked on at a time */
    int32_t shift;
    int32_t top; /* largest code of the output */
} Layer;

/* Where a layer writes to, and what it adds before rounding: codes, or integers of 32 bits; NULL what is not there. */
typedef struct {
    uint8_t *codes;
    int32_t *wide;
    const uint8_t *added_codes;
    const int32_t *added_wide;
} Target;

/* An average or a maximum over windows of codes. The last six are for averages. */
typedef struct {
    int32_t in_height, in_width, channels;
    int32_t out_height, out_width;
    int32_t window_height, window_width;
    int32_t stride_height, stride_width;
    int32_t pad_height, pad_width;
    const float *values; /* of the codes */
    float area, divisor, low, inverse;
    int32_t group, top;
} Pool;

@TABLES@
static uint8_t activations[@ACTIVATION_BYTES@]; /* the arena: what is alive at the same time has places of its own */
@WIDE_ARENA@
static int16_t scratch[@SCRATCH_COUNT@];      /* patches of the input, then the weights of two channels */
static int32_t sums[2][MOST_PATCHES];

static uint8_t to_code(int64_t level, int32_t shift, int32_t top)
{
    if (level < 0)
        return 0;
    level >>= shift;
    return (uint8_t)(level < top ? level : top);
}

static int32_t to_wide(int64_t value, int32_t shift)
{
    return (int32_t)(value >= 0 ? value >> shift : -(-value >> shift));
}

/* Weights of one output channel as odd integers. Codes are stored in planes of 8, 4, 2 and 1 bits, as many as s needs
 * (6 = 4 + 2); byte j of a plane that has n bytes holds bits of the weights j, j + n, j + 2n and so on, the lowest first. */
static void unpack(const uint8_t *restrict packed, int32_t count, int16_t *restrict weights)
{
    int32_t low = 0;

    for (int32_t bits = 8; bits > 0; bits /= 2) {
        const int32_t bytes = count * bits / 8, mask = (1 << bits) - 1;
        if (!(MODEL_BITS & bits))
            continue;
        for (int32_t shift = 0; shift < 8; shift += bits) {
            int16_t *const to = weights + shift / bits * bytes;
            if (low == 0)
                for (int32_t j = 0; j < bytes; j++)
                    to[j] = (int16_t)(2 * ((packed[j] >> shift) & mask) - WEIGHT_TOP);
            else
                for (int32_t j = 0; j < bytes; j++)
                    to[j] = (int16_t)(to[j] + 2 * (((packed[j] >> shift) & mask) << low));
        }
        packed += bytes;
        low += bits;
    }
}

static void zero(int16_t *from, int32_t count)
{
    if (count > 0)
        memset(from, 0, (size_t)count * sizeof *from);
}

/* The part of the input that one output pixel sees, with zeros outside the image. */
static void gather(const Layer *layer, const uint8_t *restrict input, int32_t pixel, int16_t *restrict patch)
{
    const int32_t channels = layer->in_channels, width = layer->in_width;
    const int32_t top = pixel / layer->out_width * layer->stride_height - layer->pad_height;
    const int32_t left = pixel % layer->out_width * layer->stride_width - layer->pad_width;
    const int32_t row = layer->kernel_width * channels;
    const int32_t first = left < 0 ? -left : 0;
    int32_t end = left + layer->kernel_width > width ? width - left : layer->kernel_width;

    if (end < first)
        end = first; /* nothing but padding */
    for (int32_t k = 0; k < layer->kernel_height; k++, patch += row) {
        const int32_t y = top + k, count = (end - first) * channels;
        if (y < 0 || y >= layer->in_height || count == 0) {
            zero(patch, row);
            continue;
        }
        const uint8_t *const from = input + (y * width + left + first) * channels;
        int16_t *const to = patch + first * channels;
        zero(patch, first * channels);
        for (int32_t i = 0; i < count; i++)
            to[i] = from[i];
        zero(to + count, row - end * channels);
    }
}

#if defined(USES_AVX2)
#define AVX2 __attribute__((target("avx2")))
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define ADD_PRODUCTS(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))

AVX2 static inline int32_t total(__m256i lanes)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));

    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

/* What multiply computes. */
AVX2 static void multiply_avx2(const int16_t *restrict x, int32_t patches, const int16_t *restrict w0,
                               const int16_t *restrict w1, int32_t count, int32_t *restrict sums0,
                               int32_t *restrict sums1)
{
    for (int32_t p = 0; p < patches; p += 2) {
        const int16_t *const x0 = x + p * count;
        const int16_t *const x1 = p + 1 < patches ? x0 + count : x0;
        __m256i s00 = _mm256_setzero_si256(), s01 = s00, s10 = s00, s11 = s00;
        for (int32_t i = 0; i < count; i += 16) {
            const __m256i a0 = LOAD(x0 + i), a1 = LOAD(x1 + i), b0 = LOAD(w0 + i), b1 = LOAD(w1 + i);
            s00 = ADD_PRODUCTS(s00, a0, b0);
            s01 = ADD_PRODUCTS(s01, a0, b1);
            s10 = ADD_PRODUCTS(s10, a1, b0);
            s11 = ADD_PRODUCTS(s11, a1, b1);
        }
        sums0[p] = total(s00);
        sums1[p] = total(s01);
        sums0[p + 1] = total(s10);
        sums1[p + 1] = total(s11);
    }
}
#endif

/* Sums of products of all patches with the weights of two channels; two patches at a time share what is loaded.
 * count is a multiple of 16. */
static void multiply(const int16_t *restrict x, int32_t patches, const int16_t *restrict w0, const int16_t *restrict w1,
                     int32_t count, int32_t *restrict sums0, int32_t *restrict sums1)
{
#if defined(USES_AVX2)
    if (__builtin_cpu_supports("avx2")) {
        multiply_avx2(x, patches, w0, w1, count, sums0, sums1);
        return;
    }
#endif
    for (int32_t p = 0; p < patches; p += 2) {
        const int16_t *const x0 = x + p * count;
        const int16_t *const x1 = p + 1 < patches ? x0 + count : x0;
        int32_t s00 = 0, s01 = 0, s10 = 0, s11 = 0;
#if defined(__ARM_FEATURE_SIMD32)
        for (int32_t i = 0; i < count; i += 2) {
            int16x2_t a0, a1, b0, b1;
            memcpy(&a0, x0 + i, sizeof a0);
            memcpy(&a1, x1 + i, sizeof a1);
            memcpy(&b0, w0 + i, sizeof b0);
            memcpy(&b1, w1 + i, sizeof b1);
            s00 = __smlad(a0, b0, s00);
            s01 = __smlad(a0, b1, s01);
            s10 = __smlad(a1, b0, s10);
            s11 = __smlad(a1, b1, s11);
        }
#else
        for (int32_t i = 0; i < count; i++) {
            s00 += (int32_t)x0[i] * w0[i];
            s01 += (int32_t)x0[i] * w1[i];
            s10 += (int32_t)x1[i] * w0[i];
            s11 += (int32_t)x1[i] * w1[i];
        }
#endif
        sums0[p] = s00;
        sums1[p] = s01;
        sums0[p + 1] = s10; /* there is room for one more than there are patches */
        sums1[p + 1] = s11;
    }
}

/* Batch norm, residual, activation and rounding of the sums of one channel. */
static void finish(const Layer *layer, const Target *target, int32_t first, int32_t pixels, int32_t channel,
                   const int32_t *restrict sums_of_channel)
{
    const int64_t multiplier = layer->multipliers[channel], offset = layer->offsets[channel];
    const int64_t residual = layer->residual;
    const int32_t step = layer->out_channels, shift = layer->shift, top = layer->top;
    const Target t = *target; /* a copy: bytes that are written might be anything, as far as the compiler knows */
    int32_t at = first * step + channel;

    for (int32_t p = 0; p < pixels; p++, at += step) {
        int64_t level = sums_of_channel[p] * multiplier + offset;
        if (t.added_codes)
            level += t.added_codes[at] * residual;
        if (t.added_wide)
            level += t.added_wide[at] * residual;
        if (t.codes)
            t.codes[at] = to_code(level, shift, top);
        else
            t.wide[at] = to_wide(level, shift);
    }
}

/* A convolution, or a linear layer (an image of one pixel), with everything up to the next codes. */
static void run_layer(const Layer *layer, const uint8_t *input, const Target *target)
{
    const int32_t pixels = layer->out_height * layer->out_width, count = layer->patch, row = count * MODEL_BITS / 8;
    int16_t *const weights = scratch + layer->patches * count;

    zero(scratch, layer->patches * count); /* for the ends of patches, which nothing else writes to */
    for (int32_t start = 0; start < pixels; start += layer->patches) {
        const int32_t here = pixels - start < layer->patches ? pixels - start : layer->patches;
        for (int32_t p = 0; p < here; p++)
            gather(layer, input, start + p, scratch + p * count);
        for (int32_t c = 0; c < layer->out_channels; c += 2) {
            const int32_t second = c + 1 < layer->out_channels ? c + 1 : c; /* an odd last channel is computed twice */
            unpack(layer->weights + c * row, count, weights);
            unpack(layer->weights + second * row, count, weights + count);
            multiply(scratch, here, weights, weights + count, count, sums[0], sums[1]);
            finish(layer, target, start, here, c, sums[0]);
            if (second != c)
                finish(layer, target, start, here, second, sums[1]);
        }
    }
}
@OTHER_CODE@
int32_t model_predict(const uint8_t *image, int32_t *scores)
{
    int32_t best = 0;

@CALLS@
    for (int32_t c = 1; c < MODEL_CLASSES; c++)
        if (@SCORES@[c] > @SCORES@[best])
            best = c;
    if (scores)
        memcpy(scores, @SCORES@, MODEL_CLASSES * sizeof *scores);
    return best;
}
