/* A small layer for the farm's tests: random latents, routing and experts. */
#ifndef KD_TEST_FARM_UTIL_H
#define KD_TEST_FARM_UTIL_H

#include "base/rand.h"
#include "farm/task.h"

#include <stdlib.h>

enum { FARM_LATENT = 128, FARM_INTER = 128, FARM_T = 64, FARM_TOPK = 2, FARM_EXPERTS = 3 };

static struct kd_kern farm_kern;

struct farm_layer {
    struct kd_hess h;
    struct kd_layer_inputs in;
    uint16_t *z, *w;
    int32_t *ids;
    float *wts;
    struct kd_farm_task task[FARM_EXPERTS];
};

static inline void farm_layer_make(struct farm_layer *l)
{
    struct kd_err err;
    struct kd_run run = {.kern = &farm_kern};
    int64_t each = FARM_LATENT * FARM_INTER;
    *l = (struct farm_layer){.z = malloc(2 * FARM_T * FARM_LATENT),
                             .w = malloc((size_t)(2 * 3 * FARM_EXPERTS * each)),
                             .ids = malloc(4 * FARM_T * FARM_TOPK),
                             .wts = malloc(4 * FARM_T * FARM_TOPK)};
    float row[FARM_LATENT];
    for (uint64_t i = 0; i < FARM_T * FARM_LATENT; i++)
        l->z[i] = kd_f32_bf16((float)(kd_rand_unit(21, i) - 0.5));
    for (uint64_t i = 0; i < FARM_T * FARM_TOPK; i++) {
        l->ids[i] = (int32_t)(i % FARM_EXPERTS);
        l->wts[i] = 0.5f;
    }
    for (uint64_t i = 0; i < (uint64_t)(3 * FARM_EXPERTS * each); i++)
        l->w[i] = kd_f32_bf16((float)(kd_rand_unit(22, i) - 0.5) * 0.2f);
    if (kd_hess_open(&l->h, FARM_LATENT, &err))
        abort();
    for (int t = 0; t < FARM_T; t++) {
        for (int i = 0; i < FARM_LATENT; i++)
            row[i] = kd_bf16_f32(l->z[t * FARM_LATENT + i]);
        if (kd_hess_add(&run, &l->h, row, FARM_LATENT, 1, &err))
            abort();
    }
    kd_hess_close(&l->h);
    l->in = (struct kd_layer_inputs){.T = FARM_T,
                                     .latent = FARM_LATENT,
                                     .z = l->z,
                                     .h_in = &l->h,
                                     .topk = FARM_TOPK,
                                     .ids = l->ids,
                                     .w = l->wts,
                                     .situ_beta = 4,
                                     .situ_linear = 25,
                                     .blend_rows = 64,
                                     .fallback_rows = 16,
                                     .block_rows = 16};
    static const int64_t shape[3][2] = {
        {FARM_INTER, FARM_LATENT}, {FARM_INTER, FARM_LATENT}, {FARM_LATENT, FARM_INTER}};
    for (int e = 0; e < FARM_EXPERTS; e++) {
        struct kd_mat *m[3] = {&l->task[e].w1, &l->task[e].w3, &l->task[e].w2};
        l->task[e].expert = e;
        l->task[e].digest = 5;
        for (int i = 0; i < 3; i++) {
            *m[i] = (struct kd_mat){.type = KD_MAT_BF16,
                                    .rows = shape[i][0],
                                    .cols = shape[i][1],
                                    .data = l->w + (3 * e + i) * each};
            m[i]->ld = m[i]->cols;
            l->task[e].spec[i] = (struct kd_quant_spec){.rate = kd_rate_from16(32),
                                                        .cb = KD_CB_MUL1,
                                                        .recipe = kd_recipe_of(KD_RECIPE_DEFAULT),
                                                        .seed = 100 + (uint64_t)(3 * e + i),
                                                        .input_seed = 7};
        }
    }
}

/* The first matrix as a tensor of the trunk, which reads the latents. */
static inline struct kd_farm_task farm_tensor(const struct farm_layer *l)
{
    return (struct kd_farm_task){.trunk = true,
                                 .hess = &l->h,
                                 .w1 = l->task[0].w1,
                                 .spec = {l->task[0].spec[0]},
                                 .digest = 5};
}

static inline void farm_layer_drop(struct farm_layer *l)
{
    kd_hess_release(&l->h);
    free(l->z);
    free(l->w);
    free(l->ids);
    free(l->wts);
}

#endif
