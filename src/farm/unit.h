/* A finished unit of work on disk: the quantized tensors of one trunk linear or of one expert, with
 * their figures, whole or not there at all. Units of the layer at hand live in the work folder, are
 * mapped for the quantized forward pass, and go when the layer's shard is sealed. Little-endian.
 *
 * A unit is tied to its job by `digest` (settings, source, rates): a unit of another job is
 * refused. */
#ifndef KD_FARM_UNIT_H
#define KD_FARM_UNIT_H

#include "base/file.h"
#include "codec/expert.h"
#include "fmt/exl3_file.h"

enum { KD_UNIT_TENSORS_MAX = 3 };

struct kd_unit_figures {
    double mse, proxy, rel_fro;
    float scale;
    uint32_t rate16;
    uint32_t cholesky_tries;
    uint32_t fallback; /* plain tiles for lack of a usable Hessian */
};

struct kd_unit_info { /* of experts; zero for trunk linears */
    int64_t routed_rows;
    uint32_t few_rows;          /* under the fallback count */
    uint32_t all_token_hessian; /* its own Hessian had too few routed tokens */
    uint32_t plain_won;         /* recipe auto chose plain for this layer */
    char hess_digest[68];
};

struct kd_unit {
    struct kd_map map;
    int count;
    struct kd_mat mat[KD_UNIT_TENSORS_MAX]; /* views into the map */
    struct kd_unit_figures figures[KD_UNIT_TENSORS_MAX];
    struct kd_unit_info info;
};

/* The bytes of a unit, which a worker sends and kd_unit_write writes. */
int kd_unit_bytes(struct kd_buf *out, uint64_t digest, const struct kd_quant_out *const *q,
                  int count, const struct kd_unit_info *info, struct kd_err *err) KD_MUST;
int kd_unit_write(const char *path, uint64_t digest, const struct kd_quant_out *const *q, int count,
                  const struct kd_unit_info *info, struct kd_err *err) KD_MUST;
/* Checks magic, digest, sizes and the hash of all bytes. */
int kd_unit_open(struct kd_unit *u, const char *path, uint64_t digest, struct kd_err *err) KD_MUST;
/* The same over bytes in memory (of even address), which outlive u; `path` is for errors. */
int kd_unit_view(struct kd_unit *u, const void *bytes, int64_t size, const char *path,
                 uint64_t digest, struct kd_err *err) KD_MUST;
/* Bytes of the unit that these tensors make: rows and cols of each, and its rate. */
int64_t kd_unit_size(const int64_t (*shape)[2], const struct kd_rate *rate, int count);
void kd_unit_close(struct kd_unit *u);
/* What kd_exl3_put takes. */
struct kd_exl3_tensor kd_unit_tensor(const struct kd_unit *u, int i);

#endif
