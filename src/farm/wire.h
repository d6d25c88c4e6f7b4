// clang-format off
/* What coordinator and worker say to each other: JSON over HTTPS, and blobs named by their SHA-256.
 * Nothing in it is a path or a command, every number has bounds, and a message is read whole or
 * refused.
 *
 *   GET  /farm/v1/about               who is there; needs no key
 *   POST /farm/v1/join                a worker with a token, or with the key it was given before
 *   POST /farm/v1/claim               jobs, and the inputs of their stage
 *   POST /farm/v1/beat                what the worker holds; answers what it lost, and whether to stop
 *   POST /farm/v1/fail                a job that could not be done
 *   POST /farm/v1/leave               polite: all that is held goes back
 *   GET  /farm/v1/b/DIGEST.N          part N of a blob
 *   PUT  /farm/v1/in/L.E.A.DIGEST.MS  the unit of attempt A at job E of layer L, which took MS
 *                                     milliseconds
 *   PUT  /farm/v1/at/L.E.A.DIGEST.MS  the same, its bytes in the shared folder (farm/share.h)
 *
 * Blobs: `z` BF16 [T][latent]; `hess` the upper triangle of the Hessian, fp32, row by row;
 * `routing` u16 ids [T][topk], then f32 weights [T][topk]; `weights` of one expert: for w1, w3, w2
 * the stored values, then (MXFP4) the scales, rows without gaps; of a tensor of the trunk, those of
 * that matrix. Little-endian. */
// clang-format on
#ifndef KD_FARM_WIRE_H
#define KD_FARM_WIRE_H

#include "base/json.h"
#include "farm/ledger.h"
#include "farm/task.h"

enum { KD_WIRE_PROTOCOL = 2, KD_WIRE_PART = 32 << 20, KD_WIRE_JOBS_MAX = 16 };
/* The answer to PUT at/... whose file does not show: send it. */
enum { KD_WIRE_UNSEEN = 409 };
/* Of weights, and of a Hessian; of a unit, which the coordinator holds whole. */
enum { KD_WIRE_BLOB_MAX = 1 << 30, KD_WIRE_UNIT_MAX = 64 << 20 };
#define KD_WIRE_CLASS "exact"
#define KD_WIRE_ROOT  "/farm/v1/"

struct kd_blob_ref {
    char sha256[65];
    int64_t bytes;
    bool shared; /* it is in the shared folder too */
};
/* A stage's inputs as they are described; the values come as blobs. Of the trunk: in.latent is the
 * width of the inputs, hess their Hessian (0 bytes: the recipe needs none), and all else is zero.
 */
struct kd_wire_layer {
    int64_t layer, experts, inter;
    bool trunk;
    struct kd_layer_inputs in; /* pointers are NULL */
    int64_t hess_rows, hess_bad_rows;
    struct kd_blob_ref z, hess, routing;
    uint64_t digest; /* of units */
};
struct kd_wire_job {
    int64_t expert, attempt;
    double lease_s;
    int64_t rows; /* of a tensor of the trunk, which has spec[0] and type[0] alone */
    struct kd_quant_spec spec[3];
    uint32_t plain_won;
    enum kd_mat_type type[3];
    struct kd_blob_ref weights;
    int64_t unit_bytes;
};
struct kd_wire_claim {
    struct kd_wire_layer layer; /* set when there are jobs */
    struct kd_wire_job job[KD_WIRE_JOBS_MAX];
    int64_t count;
    bool drain, wait_for_disk;
};

void kd_wire_claim_write(struct kd_jw *w, const struct kd_wire_claim *c);
int kd_wire_claim_read(struct kd_wire_claim *c, const char *text, size_t bytes,
                       struct kd_err *err) KD_MUST;

struct kd_wire_join {
    struct kd_worker_card card;                    /* without id */
    char token[80], id[KD_WORKER_ID_MAX], key[80]; /* token, or id and key */
    char klass[16], canary[65];
    int64_t protocol;
};
void kd_wire_join_write(struct kd_jw *w, const struct kd_wire_join *j);
int kd_wire_join_read(struct kd_wire_join *j, const char *text, size_t bytes,
                      struct kd_err *err) KD_MUST;

struct kd_wire_beat {
    struct kd_held held[KD_LEDGER_HELD_MAX];
    int64_t count;
};
void kd_wire_beat_write(struct kd_jw *w, const char *key, const struct kd_wire_beat *b, bool lost);
/* text: {"held": [[layer, expert, attempt], ...]}; key "held" or "lost". */
int kd_wire_beat_read(struct kd_wire_beat *b, const struct kd_json *root, const char *key,
                      struct kd_err *err) KD_MUST;

/* "L.E.A.DIGEST.MS" of an upload's address. */
struct kd_wire_put {
    int64_t layer, expert, attempt, ms;
    char sha256[65];
};
int kd_wire_put_read(struct kd_wire_put *p, const char *text, struct kd_err *err) KD_MUST;
/* "DIGEST.N" */
int kd_wire_blob_read(char sha256[65], int64_t *part, const char *text, struct kd_err *err) KD_MUST;
bool kd_wire_is_digest(const char *text); /* 64 lower-case hex digits */

/* A job's weights as a blob and back. `t` of _get: matrices that borrow from data. */
int kd_wire_weights_put(struct kd_buf *out, const struct kd_farm_task *t,
                        struct kd_err *err) KD_MUST;
int64_t kd_wire_weights_bytes(enum kd_mat_type type, int64_t rows, int64_t cols);
/* The same blob where it lies in one piece in the source: no copy. NULL: it does not. */
const void *kd_wire_weights_flat(const struct kd_farm_task *t, int64_t *bytes);
int kd_wire_weights_get(struct kd_farm_task *t, const struct kd_wire_layer *l,
                        const struct kd_wire_job *j, const uint8_t *data, int64_t bytes,
                        struct kd_err *err) KD_MUST;
/* The layer's two small blobs, and back. ids and w of _routing_get belong to the caller (kd_mem).
 */
int kd_wire_hess_put(struct kd_buf *out, const struct kd_hess *h, struct kd_err *err) KD_MUST;
int kd_wire_hess_get(struct kd_hess *h, const struct kd_wire_layer *l, const uint8_t *data,
                     struct kd_err *err) KD_MUST;
int kd_wire_routing_put(struct kd_buf *out, const struct kd_layer_inputs *in,
                        struct kd_err *err) KD_MUST;
int kd_wire_routing_get(int32_t **ids, float **w, const struct kd_wire_layer *l,
                        const uint8_t *data, struct kd_err *err) KD_MUST;

#endif
