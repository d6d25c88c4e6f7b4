#include "kern/trellis_scratch.h"

#include <sched.h>
#include <stdatomic.h>

enum { EMPTY, BUSY, READY };

static uint16_t tables[3][65536];
static atomic_int states[3];

const uint16_t *kd_codebook_table(enum kd_codebook cb)
{
    int was = EMPTY;

    if (atomic_load_explicit(&states[cb], memory_order_acquire) == READY)
        return tables[cb];
    if (atomic_compare_exchange_strong(&states[cb], &was, BUSY)) {
        for (unsigned s = 0; s < 65536; s++)
            tables[cb][s] = kd_codebook_f16(cb, s);
        atomic_store_explicit(&states[cb], READY, memory_order_release);
    } else {
        while (atomic_load_explicit(&states[cb], memory_order_acquire) != READY)
            sched_yield();
    }
    return tables[cb];
}
