/* One conversion: its settings, its work folder and the residual streams carried from layer to
 * layer.
 *
 * Work folder DST/.work:
 *   settings.json          what decides the bytes; a resume with other settings is refused
 *   stream.LLL             residual stream before layer LLL, all calibration tokens, and a hash of
 * them; those of block starts are the banks LLL/NAME.unit          finished units of the layer at
 * hand figures.SSSSS          figures of the quantized tensors of a sealed shard scratch.NAME what
 * only the layer at hand needs; made anew by a resume
 *   recipe.LLL             recipe auto: what the layer's experts took and why
 *   ledger.db              who encodes what (farm/ledger.h); soft state, made anew where it is lost
 *   farm.json              where the ledger is, for kondense farm
 *   bad/                   units of workers that were refused
 *
 * A layer is done when its shard has its final name. Kill it anywhere: what has a final name is
 * whole, everything else is made again, and the output does not show it. */
#ifndef KD_CONVERT_JOB_H
#define KD_CONVERT_JOB_H

#include "base/file.h"
#include "codec/expert.h"
#include "convert/rates.h"
#include "farm/farm.h"
#include "model/k3.h"
#include "text/corpus.h"

/* Tensors of a stage that a device works on side by side. */
enum { KD_JOB_BESIDE = 4 };

struct kd_convert_settings {
    struct kd_rate_wish wish;
    enum kd_recipe_name recipe;
    bool weight_routed;
    uint64_t seed;
    float eps_latent; /* 0: default */
    float damping;    /* < 0: the recipe's */
    bool stream_bf16; /* precision of the carried streams; part of the recipe */
    bool calib_fast;  /* class of the calibration (gpu/encoder.h), as the run's encoder has it */
};

struct kd_job {
    const struct kd_run *run;
    const struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    const struct kd_corpus *text;
    const char *source_final; /* what the receipt says of the source, or NULL: as in the settings */
    struct kd_convert_settings set;
    struct kd_recipe recipe;
    struct kd_rates rates;
    char dst[2048], work[2048 + 16];
    int lock;
    uint64_t digest;         /* of the settings */
    int64_t T, block_T;      /* calibration tokens; tokens a block (whole rows) */
    int64_t T_hess;          /* tokens the experts' Hessians see (recipe auto holds some back) */
    struct kd_store *source; /* experts of the source */
    int64_t trunk_bytes;     /* of a device that makes the rows of layers' trunks; 0: none does */
    struct kd_farm *farm;    /* encodes experts; opened by kd_job_farm */
    int lanes;               /* experts side by side (kd_farm_opts); 0: one */
    /* window of the stream: one block */
    struct kd_k3_stream win;
    struct kd_k3_seg *segs; /* one per row of a block */
    struct kd_k3_state *states;
    struct kd_unit_figures *figures; /* of the layer being sealed, one per tensor of the shard */
    bool (*stopped)(void);
    int64_t tiles_total, tiles_done;
    bool finished;          /* all of it was there when it was opened; nothing is left to do */
    bool swept;             /* finished, and its work folder was still there */
    struct kd_trial *trial; /* what is being measured (convert/trial.h), or NULL */
    bool by_layer;          /* only the shards of the layer at hand are there (convert/window.h) */
    bool stream_known[KD_K3_LAYERS_MAX + 1]; /* made or checked by this process */
    /* All rows of tokens in memory, no file: a job that nobody resumes. The streams, or NULL. */
    bool in_memory;
    uint8_t *stream[KD_K3_LAYERS_MAX + 1];
};

/* Tokens of one block: whole rows, about 2,048 tokens. Part of the recipe. */
int64_t kd_job_block_tokens(const struct kd_corpus *text);
/* Takes the lock, checks or writes the settings, plans rates. `resume`: an unfinished conversion
 * may be there, or a finished one of the same settings (job.finished). source_json: the "source"
 * and "calibration" part of the settings. */
int kd_job_open(struct kd_job *j, const struct kd_run *run, const struct kd_ckpt *ck,
                const struct kd_k3_cfg *cfg, const struct kd_corpus *text,
                const struct kd_convert_settings *set, const char *source_json, const char *dst,
                bool resume, struct kd_err *err) KD_MUST;
/* The same as far as it is known before anything is written: what would be refused is refused,
 * rates are planned, job.finished and .swept are told. source_json: kd_job_source_known. No layer
 * can be made of it; kd_job_close ends it. */
int kd_job_foresee(struct kd_job *j, const struct kd_run *run, const struct kd_ckpt *ck,
                   const struct kd_k3_cfg *cfg, const struct kd_corpus *text,
                   const struct kd_convert_settings *set, const char *source_json, const char *dst,
                   bool resume, struct kd_err *err) KD_MUST;
void kd_job_close(struct kd_job *j);
/* Who encodes the experts. A job that this is not called for is a farm of one. `with`: what the
 * caller wishes of it (home, rules, only_workers, sample_every); ledger, run and digest are the
 * job's. */
int kd_job_farm(struct kd_job *j, const struct kd_farm_opts *with, struct kd_err *err) KD_MUST;
/* One layer; kd_job_ends runs head and globals, writes the small files and the receipt. */
int kd_job_start(struct kd_job *j, struct kd_err *err) KD_MUST; /* the embedding */
int kd_job_layer(struct kd_job *j, int64_t layer, struct kd_err *err) KD_MUST;
int kd_job_ends(struct kd_job *j, struct kd_err *err) KD_MUST;
/* Experts side by side, each with its part of the pool's threads: `wish`, or when 0 as many as keep
 * threads or devices busy and there is memory for. 1 to KD_FARM_LANES, on the CPU at most the
 * threads. Asked once the rates are planned. */
int kd_job_lanes(const struct kd_job *j, int64_t wish);
/* Anonymous memory that these rates, made together, will need at most, in bytes: what is there now
 * included, so it is asked once all are open and none has begun. */
int64_t kd_job_peak_bytes(const struct kd_job *jobs, int count);
/* j->trunk_bytes, where the largest layer fits on the run's device beside a Hessian; after the
 * rates. Done by kd_job_open. */
int kd_job_find_trunk(struct kd_job *j, struct kd_err *err) KD_MUST;
/* Device memory that these rates' tensors will need at most, on one device, with all lanes at work;
 * with less, lanes wait for each other. 0 without devices. */
int64_t kd_job_device_bytes(const struct kd_job *jobs, int count);
/* The largest tensor's alone: with less the conversion cannot be. */
int64_t kd_job_device_least(const struct kd_job *jobs, int count);
/* Free disk that the rest needs. */
int64_t kd_job_disk_bytes(const struct kd_job *j);
/* "sources": names, sizes and SHA-256 of the shards and config; reads every byte once, and asks
 * `stopped` between shards. `digests` (or NULL): those of the shards, by their number, known
 * without reading; "" for one that is not known yet and stands as null until the receipt. */
int kd_job_source_json(struct kd_buf *out, const struct kd_ckpt *ck, const struct kd_corpus *text,
                       const char (*digests)[65], bool (*stopped)(void),
                       struct kd_err *err) KD_MUST;
/* The same without reading a shard: null for what is not known, for kd_job_foresee. */
int kd_job_source_known(struct kd_buf *out, const struct kd_ckpt *ck, const struct kd_corpus *text,
                        struct kd_err *err) KD_MUST;

/* Used among this folder's files. */
/* The most that a layer's rows take beside the streams (layer_work.h: y, then z, ids, wts and u).
 */
int64_t kd_job_scratch_bytes(const struct kd_job *j);
/* Rows held back that recipe auto looks at together. */
int64_t kd_job_held_rows(const struct kd_job *j);
int kd_job_path(const struct kd_job *j, char *out, size_t size, struct kd_err *err, const char *fmt,
                ...) __attribute__((format(printf, 5, 6))) KD_MUST;
bool kd_job_shard_done(const struct kd_job *j, int32_t shard);
int64_t kd_job_blocks(const struct kd_job *j);
/* Tokens [first, first + T) of block b. */
void kd_job_block(const struct kd_job *j, int64_t b, int64_t *first, int64_t *T);
/* KD_ECANCEL when a stop is wished. */
int kd_job_stop_check(const struct kd_job *j, struct kd_err *err) KD_MUST;
/* An error when one of the rows' activations is not finite: a weight that is NaN or infinite shows
 * here, also where it is in a tensor that stays as stored. `what` names them. */
int kd_job_finite(const struct kd_job *j, const char *what, const float *x, int64_t width,
                  int64_t rows, struct kd_err *err) KD_MUST;
/* An error that names the tensor: a NaN or infinite value in what is kept as stored or in lm_head,
 * or a scale of MXFP4 that is NaN. Reads those tensors once: of one shard of the plan, or of all
 * (-1). */
int kd_job_sound(const struct kd_job *j, int64_t shard, struct kd_err *err) KD_MUST;
/* Units of a shard that an earlier run left: each is read; a damaged one is set aside under another
 * name, said in the log, and so made again. */
int kd_job_mend(const struct kd_job *j, int32_t shard, struct kd_err *err) KD_MUST;
/* Rows of a stream file, fp32 in memory, the settings' precision on disk. */
int64_t kd_job_stream_bytes(const struct kd_job *j);
void kd_job_rows_get(const struct kd_job *j, const struct kd_rwmap *file, int64_t first, int64_t T,
                     float *out);
void kd_job_rows_put(const struct kd_job *j, struct kd_rwmap *file, int64_t first, int64_t T,
                     const float *in);
/* An old stream is held against its hash once. A made one gets its hash and name by _commit. */
int kd_job_stream_open(struct kd_job *j, int64_t layer, bool make, struct kd_rwmap *m,
                       struct kd_err *err) KD_MUST;
int kd_job_stream_commit(struct kd_job *j, int64_t layer, struct kd_rwmap *m,
                         struct kd_err *err) KD_MUST;
/* A stream that has served. */
int kd_job_stream_drop(struct kd_job *j, int64_t layer, struct kd_err *err) KD_MUST;
/* Writes a shard from units and stored tensors, with its figures; then units go. */
int kd_job_seal(struct kd_job *j, int32_t shard, struct kd_err *err) KD_MUST;
int kd_job_unit_path(const struct kd_job *j, const struct kd_out_tensor *t, char *out, size_t size,
                     struct kd_err *err) KD_MUST;
/* kondense.json, quantization_config.json, index, tokenizer files, config.json (last). */
int kd_job_write_small(struct kd_job *j, struct kd_err *err) KD_MUST;
/* Parts of it that need a job's dst, rates and text alone. `config`: the source's; gets the block
 * about quantization. */
int kd_job_write_index(const struct kd_job *j, struct kd_err *err) KD_MUST;
int kd_job_write_quant_config(const struct kd_job *j, struct kd_err *err) KD_MUST;
int kd_job_write_config(const struct kd_job *j, struct kd_json *config, struct kd_err *err) KD_MUST;

#endif
