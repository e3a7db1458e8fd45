
/* Averages over windows, rounded to codes; a window lies inside the image. The only floats: averages often lie half-way
 * between two codes, and are added up in the order of fedqssl's own runtime so that they round as there. No product is
 * followed by a sum, so no compiler can fuse anything. */
static void average(const Pool *pool, const uint8_t *input, uint8_t *output)
{
    for (int32_t oy = 0; oy < pool->out_height; oy++)
        for (int32_t ox = 0; ox < pool->out_width; ox++)
            for (int32_t c = 0; c < pool->channels; c++) {
                const int32_t top = oy * pool->stride_height, left = ox * pool->stride_width;
                float total = 0.0F, group = 0.0F;
                int32_t count = 0;
                for (int32_t y = top; y < top + pool->window_height; y++)
                    for (int32_t x = left; x < left + pool->window_width; x++) {
                        group += pool->values[input[(y * pool->in_width + x) * pool->channels + c]];
                        if (++count == pool->group) {
                            total += group;
                            group = 0.0F;
                            count = 0;
                        }
                    }
                float level = (((group + total) / pool->area) / pool->divisor - pool->low) * pool->inverse;
                level = level > 0.0F ? level : 0.0F;
                level = level < (float)pool->top ? level : (float)pool->top;
                int32_t code = (int32_t)level;
                const float rest = level - (float)code;
                if (rest > 0.5F || (rest == 0.5F && (code & 1)))
                    code++;
                *output++ = (uint8_t)code;
            }
}
