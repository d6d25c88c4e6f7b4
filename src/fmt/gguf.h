/* GGUF: heads of files read, sets of split files opened, heads of new files laid out. Layout and
 * limits: docs/formats/gguf.md. Little-endian, versions 2 and 3.
 *
 * Reading a head is a pure function over a buffer, so that it serves local maps, remote ranges and
 * fuzzers alike. Key-values keep their types and their bytes, so that a copy of a head is the head.
 *
 *     struct kd_gguf g;
 *     int64_t need;
 *     if (kd_gguf_parse(&g, head, bytes, file_bytes, "K3-00001-of-00014.gguf", &need, err)) ...
 *     if (need) ... fetch the file's first `need` bytes (or twice as many) and parse again
 *     const struct kd_gguf_tensor *t = kd_gguf_find(&g, "blk.1.ffn_gate_exps.weight");
 *
 * Everything is immutable once parsed or opened, and then thread-safe. */
#ifndef KD_FMT_GGUF_H
#define KD_FMT_GGUF_H

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "fmt/names.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KD_GGUF_KEY_MAX = 65535,
    KD_GGUF_NAME_MAX = 63, /* of a tensor, as the reference reader's buffer has it */
    KD_GGUF_STRING_MAX = 64 << 20,
    KD_GGUF_KV_MAX = 65536,
    KD_GGUF_TENSORS_MAX = 1000000,
    KD_GGUF_HEAD_MAX = 256 << 20,
    KD_GGUF_ALIGN_MAX = 1 << 20,
    KD_GGUF_RANK_MAX = 4,
    KD_GGUF_PARTS_MAX = 65535
};

/* Tensor types. */
enum kd_gguf_type {
    KD_GT_F32 = 0,
    KD_GT_F16 = 1,
    KD_GT_Q4_0 = 2,
    KD_GT_Q4_1 = 3,
    KD_GT_Q5_0 = 6,
    KD_GT_Q5_1 = 7,
    KD_GT_Q8_0 = 8,
    KD_GT_Q8_1 = 9,
    KD_GT_Q2_K = 10,
    KD_GT_Q3_K = 11,
    KD_GT_Q4_K = 12,
    KD_GT_Q5_K = 13,
    KD_GT_Q6_K = 14,
    KD_GT_Q8_K = 15,
    KD_GT_IQ2_XXS = 16,
    KD_GT_IQ2_XS = 17,
    KD_GT_IQ3_XXS = 18,
    KD_GT_IQ1_S = 19,
    KD_GT_IQ4_NL = 20,
    KD_GT_IQ3_S = 21,
    KD_GT_IQ2_S = 22,
    KD_GT_IQ4_XS = 23,
    KD_GT_I8 = 24,
    KD_GT_I16 = 25,
    KD_GT_I32 = 26,
    KD_GT_I64 = 27,
    KD_GT_F64 = 28,
    KD_GT_IQ1_M = 29,
    KD_GT_BF16 = 30,
    KD_GT_TQ1_0 = 34,
    KD_GT_TQ2_0 = 35,
    KD_GT_MXFP4 = 39,
    KD_GT_NVFP4 = 40,
    KD_GT_Q1_0 = 41,
    KD_GT_Q2_0 = 42,
    KD_GT_MAX = 43 /* ids are below this */
};

struct kd_gguf_type_info {
    const char *name; /* "Q8_0" */
    int64_t elems;    /* values of one block */
    int64_t bytes;    /* of one block */
    int file_type;    /* general.file_type of a model mostly of this type, or -1 */
};
/* NULL for an id that has no meaning (or had one and was removed). */
const struct kd_gguf_type_info *kd_gguf_type_info(int64_t id);
/* By name in either case, "q8_0"; -1: none. */
int kd_gguf_type_named(const char *name);
/* Bytes of a tensor of these extents; -1 with the reason (product, or ne[0] not whole blocks). */
int kd_gguf_bytes(int64_t type, int rank, const int64_t *ne, int64_t *bytes,
                  struct kd_err *err) KD_MUST;

/* Types of values. */
enum kd_gguf_value {
    KD_GV_U8,
    KD_GV_I8,
    KD_GV_U16,
    KD_GV_I16,
    KD_GV_U32,
    KD_GV_I32,
    KD_GV_F32,
    KD_GV_BOOL,
    KD_GV_STR,
    KD_GV_ARRAY,
    KD_GV_U64,
    KD_GV_I64,
    KD_GV_F64,
    KD_GV_COUNT
};
const char *kd_gguf_value_name(enum kd_gguf_value type); /* "u8", "string" */

struct kd_gguf_kv {
    const char *key;         /* NUL-terminated, without control characters; owned by the head */
    enum kd_gguf_value type; /* KD_GV_ARRAY: of `item`, `count` of them */
    enum kd_gguf_value item; /* = type when it is no array */
    int64_t count;           /* 1 when it is no array */
    const uint8_t *value;    /* in the buffer: the text of a string, the bytes of a number, an
                                array's elements (strings there with their lengths) */
    int64_t value_bytes;
    const uint8_t *raw; /* the pair as the file has it */
    int64_t raw_bytes;
};

struct kd_gguf_tensor {
    const char *name; /* NUL-terminated, without control characters; owned by the head */
    int type;         /* an id that kd_gguf_type_info knows */
    int rank;         /* as written, 1..4 */
    int64_t ne[KD_GGUF_RANK_MAX]; /* innermost first; missing extents are 1 */
    int64_t offset;               /* from the data section's start */
    int64_t bytes;                /* unpadded */
};

/* One parsed head. */
struct kd_gguf {
    int version;
    int64_t alignment;
    struct kd_gguf_kv *kv; /* in the file's order */
    int64_t kv_count;
    struct kd_gguf_tensor *tensors; /* in the file's order, which is that of the data */
    int64_t tensor_count;
    int64_t head_bytes;  /* before the padding that ends at data_offset */
    int64_t data_offset; /* of the data section in the file */
    int64_t data_bytes;  /* to the end of the last tensor, unpadded */
    struct kd_names keys, names;
};

/* Parses and checks a head. head holds the file's first `bytes` bytes and must outlive g.
 * file_bytes: size of the whole file, or -1 when nobody knows (then tensors are not held against
 * it). When the head is longer than `bytes`, returns 0 with *need set to how many bytes it needs at
 * least and g empty; need may be NULL: then that is an error. `what` names the file in errors. */
int kd_gguf_parse(struct kd_gguf *g, const void *head, int64_t bytes, int64_t file_bytes,
                  const char *what, int64_t *need, struct kd_err *err) KD_MUST;
void kd_gguf_release(struct kd_gguf *g); /* fine on a zeroed one */
const struct kd_gguf_kv *kd_gguf_key(const struct kd_gguf *g, const char *key); /* NULL: none */
const struct kd_gguf_tensor *kd_gguf_find(const struct kd_gguf *g, const char *name);

/* Typed values with bounds; any width of integer is taken. The _or forms give `other` when the key
 * is not there. Errors name the key. */
int kd_gguf_int(const struct kd_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                struct kd_err *err) KD_MUST;
int kd_gguf_int_or(const struct kd_gguf *g, const char *key, int64_t min, int64_t max,
                   int64_t other, int64_t *out, struct kd_err *err) KD_MUST;
int kd_gguf_num(const struct kd_gguf *g, const char *key, double *out, struct kd_err *err) KD_MUST;
int kd_gguf_num_or(const struct kd_gguf *g, const char *key, double other, double *out,
                   struct kd_err *err) KD_MUST;
int kd_gguf_bool_or(const struct kd_gguf *g, const char *key, bool other, bool *out,
                    struct kd_err *err) KD_MUST;
/* The bytes of a string value; not NUL-terminated. *text = NULL when the key is not there. */
int kd_gguf_str_or(const struct kd_gguf *g, const char *key, const char **text, int64_t *bytes,
                   struct kd_err *err) KD_MUST;
/* Element i of an array of integers or bools (or the value itself when it is no array and i is 0).
 * -1 when it is of another kind, i is outside, or a u64 is over INT64_MAX. */
int kd_gguf_item(const struct kd_gguf_kv *kv, int64_t i, int64_t *out) KD_MUST;
/* Walks an array of strings: *at = 0 first; false at the end. */
bool kd_gguf_next_str(const struct kd_gguf_kv *kv, int64_t *at, const char **text, int64_t *bytes);

/* Split files: PREFIX-00001-of-00014.gguf. false when path is not named so; else number (from 1),
 * count and the length of PREFIX (folder included). */
bool kd_gguf_split_parse(const char *path, int64_t *number, int64_t *count, size_t *prefix_bytes);
int kd_gguf_split_path(char *out, size_t size, const char *prefix, size_t prefix_bytes,
                       int64_t number, int64_t count, struct kd_err *err) KD_MUST;

/* The rules of a set, over heads that somebody holds (opened here, or fetched from afar): every
 * part's number and count, the total of tensors, no name twice. heads[0] is the first part. */
int kd_gguf_set_check(const struct kd_gguf *const *heads, int64_t parts,
                      struct kd_err *err) KD_MUST;

/* A local file or split set, mapped. A file that was chopped bytewise (base/pieces.h) is one map.
 */
struct kd_gguf_part {
    char *path; /* of a chopped one: what it was before, where no file is */
    struct kd_map map;
    struct kd_gguf head;
};
struct kd_gguf_set {
    struct kd_gguf_part *parts; /* keys are those of parts[0].head */
    int64_t part_count;
};
/* path: a file (any member of a set, any piece of a chopped one), or a folder with exactly one file
 * or set in it. */
int kd_gguf_open(struct kd_gguf_set *s, const char *path, struct kd_err *err) KD_MUST;
void kd_gguf_close(struct kd_gguf_set *s); /* fine on a zeroed one */
/* Whether kd_gguf_open is the way to open this path: a file named *.gguf, a piece of one, or one
 * with GGUF's magic, or a folder with such a file in it that is no safetensors checkpoint. */
bool kd_gguf_is(const char *path);

/* A head to be written: key-values and tensors in the order they are added. Offsets are given out
 * as tensors are added, so the whole layout is known before the first byte of data.
 *
 *     kd_gguf_plan_init(&p);
 *     kd_gguf_plan_str(&p, "general.architecture", "kimi-k3", 7);  kd_gguf_plan_copy(&p, kv);
 *     kd_gguf_plan_tensor(&p, name, type, rank, ne, &offset, err);                  (repeat)
 *     kd_gguf_plan_head(&p, &head, err);   head.size_bytes is where the data section starts
 *
 * A plan of a parsed head's key-values and tensors gives that head, byte for byte. Adding
 * key-values cannot fail by itself: what went wrong (key twice, limits, memory) is told by
 * plan_tensor or plan_head. */
struct kd_gguf_plan {
    int version;            /* 3 */
    int64_t alignment;      /* 32, or what general.alignment says */
    struct kd_buf kv, info; /* bytes so far */
    int64_t kv_count, tensor_count;
    int64_t data_bytes; /* padded */
    struct kd_names keys, names;
    struct kd_err failed; /* first failure of a key-value; code KD_OK when none */
};
void kd_gguf_plan_init(struct kd_gguf_plan *p);
void kd_gguf_plan_release(struct kd_gguf_plan *p);
void kd_gguf_plan_copy(struct kd_gguf_plan *p, const struct kd_gguf_kv *kv); /* its raw bytes */
/* Under another key (may be the same), same type and value. */
void kd_gguf_plan_copy_as(struct kd_gguf_plan *p, const char *key, const struct kd_gguf_kv *kv);
void kd_gguf_plan_str(struct kd_gguf_plan *p, const char *key, const char *text, int64_t bytes);
/* An integer type or KD_GV_BOOL; a value outside the type is a failure. */
void kd_gguf_plan_int(struct kd_gguf_plan *p, const char *key, enum kd_gguf_value type,
                      int64_t value);
void kd_gguf_plan_f32(struct kd_gguf_plan *p, const char *key, float value);
/* An array; value: its elements' bytes, strings each with their u64 length. */
void kd_gguf_plan_array(struct kd_gguf_plan *p, const char *key, enum kd_gguf_value item,
                        int64_t count, const void *value, int64_t bytes);
/* Appends an array element of strings to a caller's buffer. */
void kd_gguf_put_str(struct kd_buf *out, const char *text, int64_t bytes);
/* *offset (may be NULL): from the data section's start. */
int kd_gguf_plan_tensor(struct kd_gguf_plan *p, const char *name, int64_t type, int rank,
                        const int64_t *ne, int64_t *offset, struct kd_err *err) KD_MUST;
/* The head with its padding, appended to `out` (which must be empty). */
int kd_gguf_plan_head(const struct kd_gguf_plan *p, struct kd_buf *out, struct kd_err *err) KD_MUST;
/* Size of the finished file, the last tensor's padding included. */
int64_t kd_gguf_plan_file_bytes(const struct kd_gguf_plan *p);

#endif
