/* Models of any legal shape with made weights, in the released layout or as EXL3: for tests,
 * measurements and dry runs of shapes that no file at hand has. Experts have the code and scale
 * statistics of released rows (MXFP4) or random codes, all of which are valid (EXL3); the rest is
 * normal around what a forward pass keeps finite. One shard a layer and one for the ends, as
 * `convert` writes them; a byte-level tokenizer (256 ranks and 256 special slots).
 *
 * The bytes depend on config, seed and form alone, not on threads; those of a layer not on which
 * other layers are made, and a rank's are the cut of the whole model's.
 *
 *     struct kd_synth *s;
 *     kd_synth_open(&s, config, "config.json", &opts, err);    // sizes are known
 *     kd_synth_write(s, &run, dst, err);                       // resumes what was killed
 *     kd_synth_close(s); */
#ifndef KD_CONVERT_SYNTH_H
#define KD_CONVERT_SYNTH_H

#include "convert/rates.h"

struct kd_synth_opts {
    int64_t first, last; /* layers of the config, counted from 0; last < 0: to the end */
    int rank, ranks;     /* one rank's cut as struct kd_k3_part has it; ranks 0 or 1: all of it */
    uint64_t seed;
    struct kd_rate_wish wish; /* all rates 0: as released */
    bool (*stopped)(void);    /* or NULL */
};

struct kd_synth;

/* The model's config is `config` with the layers and widths that are left; layers are numbered from
 * 0 again, a vision tower is left out. `what` names it in errors. The config is copied. */
int kd_synth_open(struct kd_synth **out, const struct kd_json *config, const char *what,
                  const struct kd_synth_opts *o, struct kd_err *err) KD_MUST;
void kd_synth_close(struct kd_synth *s);

struct kd_synth_facts {
    int64_t layers, tensors, shards;
    int64_t layer_bytes, end_bytes; /* of tensors: the layers', embedding, head and final norm */
    int64_t file_bytes;             /* all shards, headers included */
    struct kd_rate_sum experts;     /* EXL3; else zero */
};
void kd_synth_facts(const struct kd_synth *s, struct kd_synth_facts *f);

/* Into dst (made if missing). A folder where the same was begun is gone on with; one that holds a
 * model, or something else begun, is refused. KD_ECANCEL when stopped. */
int kd_synth_write(const struct kd_synth *s, const struct kd_run *run, const char *dst,
                   struct kd_err *err) KD_MUST;

/* What a folder's synth.json says of it: false where none says anything of use. */
struct kd_synth_made {
    int64_t first, last, of; /* layers */
    int64_t rank, ranks, seed;
};
bool kd_synth_made_of(const char *dir, struct kd_synth_made *m);

#endif
