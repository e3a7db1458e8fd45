
/* Averages over windows, rounded to codes; a window lies inside the image. */
static void average(const Pool *pool, const uint8_t *input, uint8_t *output)
{
    for (int32_t oy = 0; oy < pool->out_height; oy++)
        for (int32_t ox = 0; ox < pool->out_width; ox++)
            for (int32_t c = 0; c < pool->channels; c++) {
                const int32_t top = oy * pool->stride_height, left = ox * pool->stride_width;
                int32_t sum = 0;
                for (int32_t y = top; y < top + pool->window_height; y++)
                    for (int32_t x = left; x < left + pool->window_width; x++)
                        sum += input[(y * pool->in_width + x) * pool->channels + c];
                *output++ = to_code(sum * pool->multiplier + pool->offset, pool->shift, pool->top);
            }
}
