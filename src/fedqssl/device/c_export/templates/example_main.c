/* How to use the model, and a check that this compiler and processor compute what fedqssl computed.
 *
 *     example             classifies a test pattern and compares the scores with those of fedqssl
 *     example FILE        classifies images of MODEL_IMAGE_BYTES raw bytes each; prints the class and the scores of each
 */
#include "model.h"

#include <stdio.h>

static uint8_t image[MODEL_IMAGE_BYTES];
static int32_t scores[MODEL_CLASSES];

/* Scores of the test pattern, as fedqssl computed them when it wrote this folder. */
static const int32_t expected[MODEL_CLASSES] = {
@EXPECTED@};

static void draw_pattern(void)
{
    uint32_t state = 1;
    for (long i = 0; i < MODEL_IMAGE_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        image[i] = (uint8_t)(state >> 24);
    }
}

static int check(void)
{
    int wrong = 0;
    draw_pattern();
    const int32_t found = model_predict(image, scores);
    for (int i = 0; i < MODEL_CLASSES; i++)
        wrong += scores[i] != expected[i];
    printf("test pattern: class %ld (%s), %ld bytes of RAM\n", (long)found, model_class_names[found], MODEL_RAM_BYTES);
    puts(wrong ? "WRONG: the scores differ from those of fedqssl" : "ok: the scores are those of fedqssl");
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return check();
    FILE *const file = fopen(argv[1], "rb");
    if (!file) {
        fprintf(stderr, "%s cannot be opened\n", argv[1]);
        return 2;
    }
    while (fread(image, 1, sizeof image, file) == sizeof image) {
        printf("%ld", (long)model_predict(image, scores));
        for (int i = 0; i < MODEL_CLASSES; i++)
            printf(" %ld", (long)scores[i]);
        printf("\n");
    }
    fclose(file);
    return 0;
}
