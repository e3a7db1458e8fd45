/* Instructions per image: under qemu's -icount shift=0 an instruction takes 1 ns, and SysTick counts 25 MHz. */
#include "model.h"

#include <stdio.h>

#define CONTROL (*(volatile uint32_t *)0xE000E010)
#define RELOAD (*(volatile uint32_t *)0xE000E014)
#define CURRENT (*(volatile uint32_t *)0xE000E018)

static uint8_t image[MODEL_IMAGE_BYTES];

int main(void)
{
    for (long i = 0; i < MODEL_IMAGE_BYTES; i++)
        image[i] = (uint8_t)(i * 37);
    RELOAD = 0xFFFFFF;
    CURRENT = 0;
    CONTROL = 5;
    while (CURRENT == 0) /* it is loaded at the first tick */
        ;
    const uint32_t before = CURRENT;
    model_predict(image, 0);
    const uint32_t after = CURRENT;
    printf("%lu instructions\n", (unsigned long)((before - after) & 0xFFFFFF) * 40);
    return 0;
}
