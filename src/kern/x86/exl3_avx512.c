/* EXL3 products for AVX-512. */
#define MULTISHIFT 0
#include "kern/x86/exl3_avx512_body.h"

void kd_exl3_set_products_avx512(struct kd_kern *k)
{
    set_products(k);
}
