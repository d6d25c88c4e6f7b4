/* Machines: presets, descriptions in JSON (docs/plan.md has the format), and "name:count" of them.
 * Every number carries where it comes from, or "estimate". */
#ifndef KD_PLAN_MACHINE_H
#define KD_PLAN_MACHINE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_MACHINE_TIERS = 4, KD_SOURCE_BYTES = 120, KD_MACHINE_COUNT_MAX = 1024 };

/* A number and its source: a publication with its date, "measured here", or "estimate". */
struct kd_sourced {
    double v;
    char source[KD_SOURCE_BYTES];
};

enum kd_mem_kind {
    KD_MEM_HBM,     /* a GPU's own memory */
    KD_MEM_UNIFIED, /* one memory for GPU and CPU; the host's share is in `reserve` */
    KD_MEM_GRACE,   /* CPU memory that the GPU reads over NVLink-C2C */
    KD_MEM_RAM,     /* CPU memory */
    KD_MEM_NVME,
    KD_MEM_KINDS
};
const char *kd_mem_name(enum kd_mem_kind k); /* "hbm", "unified", ...: also in JSON */

struct kd_machine_tier {
    enum kd_mem_kind kind;
    struct kd_sourced gib;     /* that a process can have */
    struct kd_sourced gb_s;    /* sustained reads by whoever computes on it */
    struct kd_sourced reserve; /* GiB kept for the system, working memory and a margin */
};

/* One device; `count` of them share a model. Tiers go from fast to slow. */
struct kd_machine {
    char key[64], title[96];
    int count;
    bool supported;
    char why_not[160];
    int tiers;
    struct kd_machine_tier tier[KD_MACHINE_TIERS];
    struct kd_sourced tflops;        /* dense 16-bit products, as prefill reaches them */
    struct kd_sourced fp32_tflops;   /* peak, for calibration in the exact class */
    struct kd_sourced tiles_s;       /* trellis search at 2 to 3 bits */
    struct kd_sourced link_gb_s;     /* to the other devices; 0: there is no way */
    struct kd_sourced collective_us; /* one small sum over all devices */
    struct kd_sourced watts, price_usd;
    char note[200];
};

/* "spark:8", "gb300", or the path of a JSON file, also with ":N" behind it. The error lists the
 * presets. */
int kd_machine_find(struct kd_machine *m, const char *text, struct kd_err *err) KD_MUST;
/* A description; unknown keys are errors that list the known ones. */
int kd_machine_parse(struct kd_machine *m, const char *text, size_t bytes, const char *what,
                     struct kd_err *err) KD_MUST;
/* The description of a machine, as kd_machine_parse takes it. */
void kd_machine_write(struct kd_buf *out, const struct kd_machine *m);
/* The i-th preset's key, or NULL. */
const char *kd_machine_preset(int i);
/* GiB of all tiers but NVMe, less what is reserved, of one device. */
double kd_machine_room_gib(const struct kd_machine *m);

/* Used by machine.c. */
struct kd_preset_num {
    double v;
    const char *source;
};
struct kd_preset_tier {
    enum kd_mem_kind kind;
    struct kd_preset_num gib, gb_s, reserve;
};
struct kd_preset {
    const char *key, *title, *why_not, *note;
    struct kd_preset_tier tier[KD_MACHINE_TIERS];
    struct kd_preset_num tflops, fp32_tflops, tiles_s, link_gb_s, collective_us, watts, price_usd;
};
extern const struct kd_preset kd_presets[]; /* ends with key NULL */

/* What an API asks, for the break-even, and electricity. */
extern const struct kd_preset_num kd_api_usd_in, kd_api_usd_out, kd_usd_kwh;

#endif
