/* The trellis search for AVX-512 without arithmetic in half precision. */
#include "kern/x86/trellis_avx512.h"
#include "kern/exl3_sets.h"

#define HALF 0
#include "kern/trellis_body.h"

void kd_kern_set_exl3_avx512(struct kd_kern *k)
{
    k->trellis_search = search_tiles;
    kd_exl3_set_products_avx512(k);
}
