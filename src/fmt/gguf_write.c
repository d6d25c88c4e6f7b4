#include "base/mem.h"
#include "base/show.h"
#include "fmt/gguf.h"

#include <string.h>

void kd_gguf_plan_init(struct kd_gguf_plan *p)
{
    memset(p, 0, sizeof *p);
    p->version = 3;
    p->alignment = 32;
    kd_buf_init(&p->kv, KD_GGUF_HEAD_MAX);
    kd_buf_init(&p->info, KD_GGUF_HEAD_MAX);
    kd_names_init(&p->keys);
    kd_names_init(&p->names);
}

void kd_gguf_plan_release(struct kd_gguf_plan *p)
{
    kd_buf_release(&p->kv);
    kd_buf_release(&p->info);
    kd_names_release(&p->keys);
    kd_names_release(&p->names);
}

static void put_u32(struct kd_buf *b, uint32_t v)
{
    uint8_t out[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    kd_buf_add(b, out, 4);
}

static void put_u64(struct kd_buf *b, uint64_t v)
{
    put_u32(b, (uint32_t)v);
    put_u32(b, (uint32_t)(v >> 32));
}

void kd_gguf_put_str(struct kd_buf *out, const char *text, int64_t bytes)
{
    put_u64(out, (uint64_t)bytes);
    kd_buf_add(out, text, (size_t)bytes);
}

/* Only the first failure is kept. */
static void failed(struct kd_gguf_plan *p, const char *key, const char *why)
{
    if (p->failed.code == KD_OK)
        kd_fail(&p->failed, KD_EINVAL, "key '%s' %s", key, why);
}

/* false: the key cannot be added. */
static bool begin(struct kd_gguf_plan *p, const char *key)
{
    int64_t id;
    bool fresh;
    size_t n = strlen(key);
    if (p->failed.code != KD_OK)
        return false;
    if (!n || n > KD_GGUF_KEY_MAX)
        failed(p, key, "is empty or too long");
    else if (p->tensor_count)
        failed(p, key, "comes after a tensor");
    else if (!kd_names_add(&p->keys, key, n, &id, &fresh, &p->failed) && !fresh)
        failed(p, key, "is there twice");
    if (p->failed.code != KD_OK)
        return false;
    p->kv_count++;
    return true;
}

static bool begin_typed(struct kd_gguf_plan *p, const char *key, enum kd_gguf_value type)
{
    if (!begin(p, key))
        return false;
    kd_gguf_put_str(&p->kv, key, (int64_t)strlen(key));
    put_u32(&p->kv, type);
    return true;
}

static void set_alignment(struct kd_gguf_plan *p, const char *key, int64_t value)
{
    if (strcmp(key, "general.alignment") != 0)
        return;
    if (value < 8 || value > KD_GGUF_ALIGN_MAX || (value & (value - 1)))
        failed(p, key, "is not a power of two from 8 up");
    else
        p->alignment = value;
}

void kd_gguf_plan_copy_as(struct kd_gguf_plan *p, const char *key, const struct kd_gguf_kv *kv)
{
    int64_t value;
    if (!begin(p, key))
        return;
    kd_gguf_put_str(&p->kv, key, (int64_t)strlen(key));
    /* What follows the key: type and value. */
    int64_t skip = 8 + (int64_t)strlen(kv->key);
    kd_buf_add(&p->kv, kv->raw + skip, (size_t)(kv->raw_bytes - skip));
    if (kv->type == KD_GV_U32 && !kd_gguf_item(kv, 0, &value))
        set_alignment(p, key, value);
}

void kd_gguf_plan_copy(struct kd_gguf_plan *p, const struct kd_gguf_kv *kv)
{
    kd_gguf_plan_copy_as(p, kv->key, kv);
}

void kd_gguf_plan_str(struct kd_gguf_plan *p, const char *key, const char *text, int64_t bytes)
{
    if (begin_typed(p, key, KD_GV_STR))
        kd_gguf_put_str(&p->kv, text, bytes);
}

void kd_gguf_plan_int(struct kd_gguf_plan *p, const char *key, enum kd_gguf_value type,
                      int64_t value)
{
    static const struct {
        uint8_t bytes;
        int64_t min, max;
    } range[KD_GV_COUNT] = {
        [KD_GV_U8] = {1, 0, UINT8_MAX},
        [KD_GV_I8] = {1, INT8_MIN, INT8_MAX},
        [KD_GV_U16] = {2, 0, UINT16_MAX},
        [KD_GV_I16] = {2, INT16_MIN, INT16_MAX},
        [KD_GV_U32] = {4, 0, UINT32_MAX},
        [KD_GV_I32] = {4, INT32_MIN, INT32_MAX},
        [KD_GV_BOOL] = {1, 0, 1},
        [KD_GV_U64] = {8, 0, INT64_MAX},
        [KD_GV_I64] = {8, INT64_MIN, INT64_MAX},
    };
    if (!range[type].bytes || value < range[type].min || value > range[type].max) {
        failed(p, key, "does not fit its type");
        return;
    }
    if (!begin_typed(p, key, type))
        return;
    uint8_t out[8];
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)value >> (8 * i));
    kd_buf_add(&p->kv, out, range[type].bytes);
    set_alignment(p, key, value);
}

void kd_gguf_plan_f32(struct kd_gguf_plan *p, const char *key, float value)
{
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    if (begin_typed(p, key, KD_GV_F32))
        put_u32(&p->kv, u);
}

void kd_gguf_plan_array(struct kd_gguf_plan *p, const char *key, enum kd_gguf_value item,
                        int64_t count, const void *value, int64_t bytes)
{
    if (!begin_typed(p, key, KD_GV_ARRAY))
        return;
    put_u32(&p->kv, item);
    put_u64(&p->kv, (uint64_t)count);
    kd_buf_add(&p->kv, value, (size_t)bytes);
}

int kd_gguf_plan_tensor(struct kd_gguf_plan *p, const char *name, int64_t type, int rank,
                        const int64_t *ne, int64_t *offset, struct kd_err *err)
{
    int64_t bytes, id, end;
    bool fresh;
    size_t n = strlen(name);
    if (p->failed.code != KD_OK)
        return kd_fail(err, p->failed.code, "%s", p->failed.msg);
    if (!n || n > KD_GGUF_NAME_MAX)
        return kd_fail(err, KD_EINVAL, "tensor '%s': its name has not 1 to %d bytes", name,
                       KD_GGUF_NAME_MAX);
    if (kd_gguf_bytes(type, rank, ne, &bytes, err))
        return kd_wrap(err, "tensor '%s'", name);
    if (kd_names_add(&p->names, name, n, &id, &fresh, err))
        return -1;
    if (!fresh || p->tensor_count == KD_GGUF_TENSORS_MAX)
        return kd_fail(err, KD_EINVAL, "tensor '%s' %s", name, fresh ? "is one too many" : "twice");
    if (__builtin_add_overflow(p->data_bytes, bytes, &end) || end > INT64_MAX - KD_GGUF_ALIGN_MAX)
        return kd_fail(err, KD_EINVAL, "tensor '%s': the file would be too large", name);
    kd_gguf_put_str(&p->info, name, (int64_t)n);
    put_u32(&p->info, (uint32_t)rank);
    for (int i = 0; i < rank; i++)
        put_u64(&p->info, (uint64_t)ne[i]);
    put_u32(&p->info, (uint32_t)type);
    put_u64(&p->info, (uint64_t)p->data_bytes);
    if (offset)
        *offset = p->data_bytes;
    p->data_bytes = (end + p->alignment - 1) & -p->alignment;
    p->tensor_count++;
    return kd_buf_ok(&p->info, "GGUF head", err);
}

static int64_t raw_head_bytes(const struct kd_gguf_plan *p)
{
    return 24 + (int64_t)p->kv.size_bytes + (int64_t)p->info.size_bytes;
}

int kd_gguf_plan_head(const struct kd_gguf_plan *p, struct kd_buf *out, struct kd_err *err)
{
    if (p->failed.code != KD_OK)
        return kd_fail(err, p->failed.code, "%s", p->failed.msg);
    if (kd_buf_ok(&p->kv, "GGUF head", err) || kd_buf_ok(&p->info, "GGUF head", err))
        return -1;
    if (raw_head_bytes(p) > KD_GGUF_HEAD_MAX)
        return kd_fail(err, KD_EINVAL, "a head of %lld bytes, over %d",
                       (long long)raw_head_bytes(p), KD_GGUF_HEAD_MAX);
    kd_buf_str(out, "GGUF");
    put_u32(out, (uint32_t)p->version);
    put_u64(out, (uint64_t)p->tensor_count);
    put_u64(out, (uint64_t)p->kv_count);
    kd_buf_add(out, p->kv.data, p->kv.size_bytes);
    kd_buf_add(out, p->info.data, p->info.size_bytes);
    while ((int64_t)out->size_bytes & (p->alignment - 1) && !out->failed)
        kd_buf_char(out, 0);
    return kd_buf_ok(out, "GGUF head", err);
}

int64_t kd_gguf_plan_file_bytes(const struct kd_gguf_plan *p)
{
    return ((raw_head_bytes(p) + p->alignment - 1) & -p->alignment) + p->data_bytes;
}
