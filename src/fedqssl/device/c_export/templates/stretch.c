
/* The largest integer whose square is at most x, which is below 2^56. */
static int64_t root(int64_t x)
{
    int64_t found = 0;

    for (int64_t bit = INT64_C(1) << 27; bit > 0; bit >>= 1)
        if ((found + bit) * (found + bit) <= x)
            found += bit;
    return found;
}

/* The image with the contrast that the model was trained with: 127.5 + spread * (x - mean) / max(std, least), rounded half
 * to even; mean and standard deviation are of all its values, at most 2^20.
 *
 * Times count, the deviation of x is an integer, and so is the square of max(std, least). If whole is the root of that
 * square and rest what is left of it, then m * root <= a, with a = m * whole + over, is over * (a + m * whole) >= m^2 * rest:
 * everything is exact. */
static void stretch(const uint8_t *image, int32_t count, int32_t spread, int32_t least, uint8_t *output)
{
    uint8_t *const codes = (uint8_t *)sums; /* of the 256 values; no layer needs its sums now */
    int64_t total = 0, squares = 0;

    for (int32_t i = 0; i < count; i++) {
        total += image[i];
        squares += (int32_t)image[i] * image[i];
    }
    const int64_t smallest = (int64_t)least * count, found = count * squares - total * total;
    const int64_t square = found > smallest * smallest ? found : smallest * smallest;
    const int64_t whole = root(square), rest = square - whole * whole;
    for (int32_t x = 0; x < 256; x++) {
        const int64_t deviation = count * (int64_t)x - total;
        const int64_t a = spread * (deviation < 0 ? -deviation : deviation);
        int64_t m = a / whole; /* and down to the number of whole roots in a */
        while ((a - m * whole) * (a + m * whole) < m * m * rest)
            m--;
        int64_t code = deviation < 0 ? 127 - m : 128 + m;
        if ((a - m * whole) * (a + m * whole) == m * m * rest) /* half-way between two codes */
            code = 2 * (deviation < 0 ? (128 - m) / 2 : (128 + m) / 2);
        codes[x] = to_code(code, 0, 255);
    }
    for (int32_t i = 0; i < count; i++)
        output[i] = codes[image[i]];
}
