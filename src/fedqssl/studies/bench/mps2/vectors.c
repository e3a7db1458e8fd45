/* The vector table of an mps2 board: newlib's start-up code does everything else. */
#include <stdint.h>

extern uint32_t __stack;
void _start(void);

__attribute__((section(".vectors"), used)) static const struct {
    const uint32_t *stack;
    void (*reset)(void);
} vectors = {&__stack, _start};
