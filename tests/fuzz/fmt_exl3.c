/* Any bytes as the one shard of an EXL3 checkpoint: each tensor whose name begins a group is
 * refused, or its parts have the sizes that its rate says and lie in the file. */
#include "base/assert.h"
#include "fmt/exl3_file.h"
#include "fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void touch(const void *data, int64_t bytes)
{
    volatile unsigned s = 0;
    for (int64_t i = 0; i < bytes; i++)
        s += ((const uint8_t *)data)[i];
}

static void group(const struct kd_ckpt *ck, const char *key)
{
    struct kd_exl3_tensor t;
    struct kd_err err;
    bool found;
    if (kd_exl3_find(ck, key, &t, &found, &err)) {
        KD_ASSERT(err.msg[0] && (err.code == KD_ECORRUPT || err.code == KD_ENOTSUP ||
                                 err.code == KD_EINVAL || err.code == KD_EIO));
        return;
    }
    if (!found)
        return;
    KD_ASSERT(t.k == kd_exl3_pad(t.k) && t.n == kd_exl3_pad(t.n));
    KD_ASSERT(t.codes_bytes == t.k / 16 * (t.n / 16) * kd_rate_tile_bytes(t.rate));
    /* A half rate of others has no mask of its own. */
    int64_t less = kd_exl3_bytes(t.k, t.n, t.rate, t.cb) - t.bytes;
    KD_ASSERT(!less || (less == 4 && kd_rate_to16(t.rate) % 16 == 8));
    touch(t.codes, t.codes_bytes);
    touch(t.suh, 2 * t.k);
    touch(t.svh, 2 * t.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_ckpt *ck;
    struct kd_err err;
    if (kd_ckpt_open(&ck, fuzz_file("model.safetensors", data, bytes), false, &err))
        return 0;
    for (int64_t i = 0; i < kd_ckpt_count(ck); i++) {
        const char *name = kd_ckpt_at(ck, i)->name, *dot = strrchr(name, '.');
        char key[2048];
        if (dot && (size_t)(dot - name) < sizeof key) {
            snprintf(key, sizeof key, "%.*s", (int)(dot - name), name);
            group(ck, key);
        }
    }
    kd_ckpt_close(ck);
    return 0;
}
