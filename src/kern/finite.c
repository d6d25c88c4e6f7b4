#include "kern/finite.h"

#include <stdatomic.h>

enum { PIECE = 1 << 16 }; /* floats, some 10 us */

struct finite {
    const float *x;
    int64_t ld, n, rows, each;
    atomic_int bad;
};

static void finite_item(void *ctx, int64_t i, int worker)
{
    struct finite *f = ctx;
    int64_t first = i * f->each, end = first + f->each < f->rows ? first + f->each : f->rows;
    (void)worker;
    for (int64_t r = first; r < end; r++)
        if (!kd_finite(f->x + r * f->ld, f->n))
            atomic_store(&f->bad, 1);
}

bool kd_finite_rows(const struct kd_run *run, const float *x, int64_t ld, int64_t n, int64_t rows)
{
    struct finite f = {.x = x, .ld = ld, .n = n, .rows = rows};
    f.each = n > 0 && n < PIECE ? PIECE / n : 1;
    kd_pool_run(run->pool, (rows + f.each - 1) / f.each, finite_item, &f);
    return !atomic_load(&f.bad);
}
