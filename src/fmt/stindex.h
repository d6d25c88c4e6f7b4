/* model.safetensors.index.json, plain or gzipped: which shard holds which tensor. Read as a stream
 * (60 MB for K3). Shard names are checked to be plain file names before anything opens them. */
#ifndef KD_FMT_STINDEX_H
#define KD_FMT_STINDEX_H

#include "base/jscan.h"
#include "fmt/names.h"

/* Bytes: four times K3's index as EXL3; also what a gzip bomb is cut at. */
enum { KD_SHARDS_MAX = 100000, KD_STINDEX_BYTES_MAX = 512 << 20 };

struct kd_stindex {
    struct kd_names names;  /* of tensors */
    struct kd_names shards; /* in the order the index first names them */
    int32_t *shard;         /* of a tensor, by id of names */
    int64_t total_bytes;    /* metadata.total_size, or -1 */
};

int kd_stindex_load(struct kd_stindex *ix, const char *path, struct kd_err *err) KD_MUST;
int kd_stindex_parse(struct kd_stindex *ix, const void *text, size_t bytes, const char *what,
                     struct kd_err *err) KD_MUST;
void kd_stindex_release(struct kd_stindex *ix);

#endif
