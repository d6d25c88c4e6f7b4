#include "kern/arm/vf_neon.h"

#include "kern/mm_body.h"

#include "kern/block_body.h"
#include "kern/tn_body.h"

#define KD_DOT mm_dot
#include "kern/elem_body.h"

void kd_kern_set_neon(struct kd_kern *k)
{
    set_mm(k);
    k->mm_block = mm_blocks;
    set_tn(k);
    set_elem(k);
}
