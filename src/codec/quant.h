/* Quantizing one linear to EXL3: memory in, memory out, no files. EXL3 specification section 4 and
 * Decisions 5 to 10. Deterministic: the bytes depend on the arguments alone.
 *
 *     struct kd_quant_out q;
 *     kd_quant_tensor(&run, &w, &hess, &spec, &q, err);   // hess may be NULL: plain tiles
 *     ...  kd_quant_release(&q);
 */
#ifndef KD_CODEC_QUANT_H
#define KD_CODEC_QUANT_H

#include "codec/hess.h"
#include "kern/mat.h"

/* What a recipe is made of (Decision 9). */
struct kd_recipe {
    bool feedback;   /* LDLQ with L; false: L = 0 */
    bool matched;    /* L in the basis with the full suh, per tensor; false: with the signs only */
    float row_power; /* t of r = RMS^(1-t/2) * H_ii^(-t/4); 0: row RMS */
    bool refit;      /* scales refit after encoding */
    float damping;   /* times mean(diag H) */
    bool full_scale_search; /* 4.7 in full; false: Decision 7 for small tensors */
    int seam;               /* 128: full search */
};
enum kd_recipe_name { KD_RECIPE_DEFAULT, KD_RECIPE_UPSTREAM, KD_RECIPE_PLAIN, KD_RECIPE_AUTO };
struct kd_recipe kd_recipe_of(enum kd_recipe_name name); /* AUTO gives default */
const char *kd_recipe_text(enum kd_recipe_name name);

struct kd_quant_spec {
    struct kd_rate rate;
    enum kd_codebook cb;
    struct kd_recipe recipe;
    uint64_t seed;       /* of the signs: a function of (run seed, layer, expert, tensor) */
    uint64_t input_seed; /* of su's signs; tensors sharing an input share it */
    float scale_hint;    /* > 0: skip the scale search (a search shared by a layer's experts) */
};

struct kd_quant_out {
    int64_t k, n; /* padded */
    int64_t rows, cols;
    struct kd_rate rate;
    enum kd_codebook cb;
    uint8_t *codes; /* (k/16)*(n/16) tiles */
    int64_t codes_bytes;
    uint16_t *suh, *svh;
    /* figures for the receipt */
    float scale;    /* g found */
    double mse;     /* mean squared error of the tiles in the rotated, scaled basis */
    double proxy;   /* tr(E^T H E) / tr(W^T H W), undamped H, original basis; -1 without H */
    double rel_fro; /* |W - Wq|_F / |W|_F, original basis */
    int cholesky_tries;
    bool fallback; /* no usable H: plain tiles */
};
int kd_quant_tensor(const struct kd_run *run, const struct kd_mat *w, const struct kd_hess *h,
                    const struct kd_quant_spec *spec, struct kd_quant_out *out,
                    struct kd_err *err) KD_MUST;
void kd_quant_release(struct kd_quant_out *q);
/* A view for kd_mat_mul; lives as long as q. */
struct kd_mat kd_quant_mat(const struct kd_quant_out *q);

#endif
