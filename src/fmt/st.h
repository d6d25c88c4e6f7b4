/* One safetensors file: its header checked against every rule of docs/formats/safetensors.md.
 * Immutable after opening and then thread-safe. */
#ifndef KD_FMT_ST_H
#define KD_FMT_ST_H

#include "base/file.h"
#include "base/jscan.h"
#include "fmt/ckpt.h"
#include "fmt/names.h"

enum { KD_ST_HEADER_MAX = 100000000, KD_ST_NAME_MAX = 1024 };

struct kd_st_tensor {
    struct kd_tensor t; /* name owned by the kd_st; data NULL from kd_st_parse */
    int64_t begin;      /* offset from the end of the header */
};

struct kd_st {
    struct kd_map map; /* empty from kd_st_parse */
    struct kd_names names;
    struct kd_st_tensor *tensors; /* by id of names, i.e. in the header's order */
    int64_t count;
    int64_t data_offset; /* of the first data byte in the file */
    int64_t file_bytes;
};

/* Maps and checks a file; errors start with its path. */
int kd_st_map(struct kd_st *st, const char *path, struct kd_err *err) KD_MUST;
/* Checks a header alone. head holds the file's first head_bytes bytes, which must include the whole
 * header; file_bytes is the size of the whole file. `what` names the file in errors. */
int kd_st_parse(struct kd_st *st, const void *head, int64_t head_bytes, int64_t file_bytes,
                const char *what, struct kd_err *err) KD_MUST;
void kd_st_release(struct kd_st *st);
const struct kd_tensor *kd_st_find(const struct kd_st *st, const char *name); /* NULL: not there */

/* Size of a dtype as written in files ("BF16", "F4"): bits and its enum; -1 for a name that
 * safetensors does not have. */
int kd_st_dtype(const char *name, enum kd_dtype *dtype, int *bits) KD_MUST;
/* product(shape) * bits / 8 with every overflow checked; -1 with the reason. */
int kd_st_bytes(int rank, const int64_t *shape, int bits, int64_t *bytes,
                struct kd_err *err) KD_MUST;
/* -1 for a name no tensor may have: empty, over KD_ST_NAME_MAX bytes or with control characters. */
int kd_st_name_check(const char *name, size_t bytes, struct kd_err *err) KD_MUST;
/* Reads the value that comes next and drops it; a duplicate key at any level in it is an error. */
int kd_st_skip(struct kd_jscan *s, struct kd_err *err) KD_MUST;

#endif
