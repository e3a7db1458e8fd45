
/* The largest code of every window; what lies outside the image does not count. */
static void maximum(const Pool *pool, const uint8_t *input, uint8_t *output)
{
    for (int32_t oy = 0; oy < pool->out_height; oy++)
        for (int32_t ox = 0; ox < pool->out_width; ox++)
            for (int32_t c = 0; c < pool->channels; c++) {
                const int32_t top = oy * pool->stride_height - pool->pad_height;
                const int32_t left = ox * pool->stride_width - pool->pad_width;
                uint8_t most = 0;
                for (int32_t y = top < 0 ? 0 : top; y < top + pool->window_height && y < pool->in_height; y++)
                    for (int32_t x = left < 0 ? 0 : left; x < left + pool->window_width && x < pool->in_width; x++) {
                        const uint8_t code = input[(y * pool->in_width + x) * pool->channels + c];
                        most = code > most ? code : most;
                    }
                *output++ = most;
            }
}
