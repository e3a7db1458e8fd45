/* A low-bit image classifier in plain C99, written by fedqssl @VERSION@. README.md describes it.
 *
 * Integer arithmetic (averages: float), no memory allocation, no library but <stdint.h>, <stddef.h> and <string.h>.
 */
#ifndef FEDQSSL_MODEL_H
#define FEDQSSL_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MODEL_HEIGHT @SIZE@
#define MODEL_WIDTH @SIZE@
#define MODEL_CHANNELS @CHANNELS@ /* @CHANNEL_ORDER@ */
#define MODEL_IMAGE_BYTES (MODEL_HEIGHT * MODEL_WIDTH * MODEL_CHANNELS)
#define MODEL_CLASSES @CLASSES@
#define MODEL_BITS @BITS@              /* of a weight and of an activation */
#define MODEL_SCORE_BITS @SCORE_BITS@       /* a score is a logit times 2^MODEL_SCORE_BITS, rounded */
#define MODEL_RAM_BYTES @RAM_BYTES@L   /* static memory of model.c; the image is yours and not included */
#define MODEL_TABLE_BYTES @TABLE_BYTES@L /* constants of model.c; its code comes on top */

/* Names of the classes, UTF-8. */
extern const char *const model_class_names[MODEL_CLASSES];

/* The class of an image, 0 to MODEL_CLASSES - 1.
 *
 * image:  MODEL_IMAGE_BYTES bytes, row by row from the top, the channels of a pixel side by side, 0 to 255.
 * scores: MODEL_CLASSES scores are written there; may be NULL.
 *
 * Memory is static, so calls must not overlap: not from two threads, not from an interrupt.
 */
int32_t model_predict(const uint8_t *image, int32_t *scores);

#ifdef __cplusplus
}
#endif

#endif
