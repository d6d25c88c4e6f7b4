/* One model in one form on one machine: what goes where, whether it fits, how fast at best and how
 * fast to expect. */
#ifndef KD_PLAN_ANSWER_H
#define KD_PLAN_ANSWER_H

#include "plan/bytes.h"
#include "plan/machine.h"
#include "plan/roofline.h"

/* What the model has to do. */
struct kd_plan_use {
    double context; /* tokens of each sequence that there must be room for */
    double at;      /* tokens in the cache when speeds are told */
    double sequences;
    int64_t cache_width; /* bytes of a cached value: 4, 2, 1 */
    bool cut_cache;      /* the latent cache is dealt over the devices */
    double api_usd_out;  /* for a million tokens */
    double usd_kwh;
};

enum kd_plan_verdict {
    KD_PLAN_FITS,
    KD_PLAN_FROM_DISK, /* experts that memory does not hold are read from NVMe, token by token */
    KD_PLAN_TOO_BIG,
    KD_PLAN_NOT_SUPPORTED
};

/* GiB of one device's tier. */
struct kd_plan_place {
    double reserve, cache, trunk, experts, free;
};

struct kd_plan_fit {
    enum kd_plan_verdict verdict;
    struct kd_plan_bytes bytes;
    double device_gib;  /* weights of the fullest device */
    double cache_gib;   /* caches and states of all sequences, on one device */
    double short_gib;   /* that memory lacks on each device; < 0: free */
    int devices_needed; /* of this kind, so that memory holds it all; 0: more than allowed */
    struct kd_plan_place place[KD_MACHINE_TIERS];
    bool whole;          /* experts are dealt out whole */
    bool tiered;         /* some experts are not in the fastest memory */
    double resident;     /* share of the experts in the fastest memory */
    double hit[KD_HITS]; /* of expert reads, by curve; 1 when not tiered */
    struct kd_roof roof[KD_HITS];
    struct kd_roof_step step[KD_HITS];
    double overlapped[KD_HITS]; /* tok/s with both memories at once */
    double full[2];             /* ceilings with the whole context in the cache, low and high */
    double band[2];             /* tok/s to expect, low and high */
    struct kd_roof_chunk prefill;
    double prefill_chunk;
    double load_s;                            /* 0: no drive is described */
    double watts, price_usd, break_even_days; /* at the band's high end; < 0: never */
    double usd_per_mtok_power;                /* electricity of a million tokens, there */
};

int kd_plan_fit(struct kd_plan_fit *f, const struct kd_plan_model *m,
                const struct kd_plan_target *t, const struct kd_machine *machine,
                const struct kd_plan_use *use, struct kd_err *err) KD_MUST;
const char *kd_plan_verdict_text(enum kd_plan_verdict v);
/* The highest average rate of the experts, in hundredths of a bit, with which everything is in
 * memory; 0: not even 1 bit, more than 8 counts as 8. */
int kd_plan_best_rate(double *bpw, const struct kd_plan_model *m, const struct kd_machine *machine,
                      const struct kd_plan_use *use, struct kd_err *err) KD_MUST;

#endif
