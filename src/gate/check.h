/* Two models held side by side over the same rows of text: the figures, and how they are got.
 * Definitions of all figures: docs/quality-metrics.md.
 *
 *     struct kd_check c;
 *     struct kd_check_plan plan = {.dst = "out", .src = "k3", .text = "wiki.txt", .cols = 512};
 *     if (kd_check_run(&c, &run, &plan, err)) ...
 *     kd_check_release(&c);
 */
#ifndef KD_GATE_CHECK_H
#define KD_GATE_CHECK_H

#include "gate/battery.h"
#include "gate/kld.h"
#include "gate/router.h"
#include "gate/sizes.h"
#include "gate/stats.h"

enum { KD_BANDS = 5, KD_KLD_BINS = 24 };

struct kd_band {
    int64_t first; /* position in the row; the band ends where the next begins */
    int64_t tokens;
    double kld, top1;
};

struct kd_check_layer {
    bool moe;
    struct kd_agreement agree;
    double share;  /* of the source's top-k kept */
    double stream; /* |p_dst - p_src| / |p_src| over the sampled positions */
};

struct kd_check {
    char src_name[128], dst_name[128];
    bool has_text; /* all but sizes and battery below is measured */
    char text_sha256[65];
    int64_t rows, cols, docs, tokens, stream_samples;

    double kld_mean, kld_median, kld_p95, kld_p99, kld_max;
    struct kd_interval kld_range, top1_range;
    bool by_documents; /* clusters of the bootstrap: documents, else rows */
    int64_t clusters;
    int64_t
        kld_bin[KD_KLD_BINS]; /* bin 0: under 2^-20; bin b: from 2^(b-21); the last has no end */
    double top1, ppl_src, ppl_dst;
    double router_mean, router_min;
    int64_t router_min_layer, layer_count;
    struct kd_check_layer *layer;
    int64_t control_tokens;
    double control_kld, control_top1, plain_kld;
    struct kd_band band[KD_BANDS];

    struct kd_sizes dst;
    double bits_experts, bits_trunk;           /* K: codes alone; 0: has none */
    double bits_experts_real, bits_trunk_real; /* all bytes of those tensors */
    double bits_file; /* all bytes of the files over the source's weights */
    int64_t src_weights, src_file_bytes;

    bool has_battery;
    struct kd_battery battery;
};

struct kd_pass;
struct kd_check_plan {
    const char *src; /* NULL with ref_in, or the model that the reference must be of */
    const char *dst;
    const char *text; /* may be NULL with ref_in */
    const char *ref_in, *ref_out;
    const char *work; /* folder for the streams; NULL: memory */
    /* With ref_in: dst's streams through all its layers, taken while it was made (gate/pass.h). */
    const struct kd_pass *made;
    int64_t rows, cols;       /* rows 0: all there are; cols 0: 512, or the reference's */
    const volatile int *stop; /* looked at between blocks; may be NULL */
};
/* Fills *c with all but the battery. Call kd_check_release after it, failed or not. */
int kd_check_run(struct kd_check *c, const struct kd_run *run, const struct kd_check_plan *plan,
                 struct kd_err *err) KD_MUST;
/* Bits and bytes alone (a battery without text). */
int kd_check_sizes(struct kd_check *c, const struct kd_ckpt *src, const struct kd_ckpt *dst,
                   struct kd_err *err) KD_MUST;
int kd_check_sizes_of(struct kd_check *c, const char *src, const char *dst,
                      struct kd_err *err) KD_MUST;
void kd_check_release(struct kd_check *c);
/* The last part of a model's path. */
void kd_check_name(char *out, size_t size, const char *path);

/* What kd_check_run makes its figures from: positions, their token's document and whether it is a
 * control position. */
int kd_check_figures(struct kd_check *c, const struct kd_pos *pos, const int32_t *doc,
                     const uint8_t *control, struct kd_err *err) KD_MUST;
double kd_kld_bin_floor(int bin); /* lower edge */

#endif
