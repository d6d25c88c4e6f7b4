/* Any bytes as kondense.json, into which a verdict is written: refused and left alone, or JSON
 * whose other members are as they were, and a second time changes nothing. A source is named by it
 * or is not. */
#include "base/assert.h"
#include "fuzz/files.h"
#include "gate/ref.h"
#include "gate/verdict.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Members but the verdict are the same in both. */
static void same_but_verdict(const struct kd_json *a, const struct kd_json *b)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    while (kd_json_next(a, &iter, &key, &v)) {
        struct kd_buf x, y;
        struct kd_err err;
        if (!strcmp(key, "verdict"))
            continue;
        kd_buf_init(&x, 1 << 26);
        kd_buf_init(&y, 1 << 26);
        KD_ASSERT(!kd_json_dump(&x, v, &err) && !kd_json_dump(&y, kd_json_get(b, key), &err));
        KD_ASSERT(x.size_bytes == y.size_bytes && !memcmp(x.data, y.data, x.size_bytes));
        kd_buf_release(&x);
        kd_buf_release(&y);
    }
}

static void write_twice(const char *path, const struct kd_json *before, const uint8_t *data,
                        size_t bytes)
{
    struct kd_verdict v = {0};
    struct kd_check c = {0};
    struct kd_json *after;
    struct kd_buf once, twice;
    struct kd_err err;
    KD_ASSERT(!kd_verdict_parse(&v, "kld=0.1,top1=0.9", &err));
    kd_verdict_judge(&v, &c);
    int rc = kd_verdict_write(&v, &c, fuzz_dir(), &err);
    kd_buf_init(&once, 1 << 26);
    if (rc) { /* and the file is as it was */
        KD_ASSERT(err.code == KD_ECORRUPT && !kd_file_read(&once, path, 1 << 26, &err) &&
                  once.size_bytes == bytes && (!bytes || !memcmp(once.data, data, bytes)));
        kd_buf_release(&once);
        return;
    }
    kd_buf_init(&twice, 1 << 26);
    KD_ASSERT(!kd_file_read(&once, path, 1 << 26, &err) &&
              !kd_verdict_write(&v, &c, fuzz_dir(), &err) &&
              !kd_file_read(&twice, path, 1 << 26, &err));
    KD_ASSERT(once.size_bytes == twice.size_bytes &&
              !memcmp(once.data, twice.data, once.size_bytes));
    if (kd_json_kind(before) == KD_JSON_OBJECT) {
        KD_ASSERT(!kd_json_parse(&after, once.data, once.size_bytes, "after", &err));
        KD_ASSERT(kd_json_get(after, "verdict"));
        same_but_verdict(before, after);
        kd_json_free(after);
    }
    kd_buf_release(&once);
    kd_buf_release(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_file("kondense.json", data, bytes);
    struct kd_json *before = NULL;
    struct kd_err err;
    char id[65];
    if (!kd_source_id_receipt(fuzz_dir(), id, &err))
        KD_ASSERT(!*id || strlen(id) == 64);
    if (kd_json_parse(&before, (const char *)data, bytes, "before", &err))
        before = NULL;
    write_twice(path, before, data, bytes);
    kd_json_free(before);
    return 0;
}
