/* EXL3 products for AVX-512 on CPUs that have AVX512-FP16: Intel's since Sapphire Rapids. */
#define MULTISHIFT 1
#include "kern/x86/exl3_avx512_body.h"

void kd_exl3_set_products_avx512fp16(struct kd_kern *k)
{
    set_products(k);
}
