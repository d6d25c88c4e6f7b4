#include "base/hash.h"

#include "base/file.h"

#include <openssl/evp.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

int kd_sha256_init(struct kd_sha256 *h, struct kd_err *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    h->ctx = ctx;
    if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        h->ctx = NULL;
        return kd_fail(err, KD_ENOMEM, "cannot set up SHA-256");
    }
    return 0;
}

void kd_sha256_add(struct kd_sha256 *h, const void *data, size_t bytes)
{
    if (bytes)
        EVP_DigestUpdate(h->ctx, data, bytes);
}

void kd_sha256_hex(struct kd_sha256 *h, char out[65])
{
    static const char digit[] = "0123456789abcdef";
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_DigestFinal_ex(h->ctx, raw, &n);
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
    for (unsigned i = 0; i < 32; i++) {
        out[2 * i] = digit[raw[i] >> 4];
        out[2 * i + 1] = digit[raw[i] & 15];
    }
    out[64] = 0;
}

int kd_sha256_of(const void *data, size_t bytes, char out[65], struct kd_err *err)
{
    struct kd_sha256 h;
    if (kd_sha256_init(&h, err))
        return -1;
    kd_sha256_add(&h, data, bytes);
    kd_sha256_hex(&h, out);
    return 0;
}

int kd_sha256_file(const char *path, char out[65], struct kd_err *err)
{
    struct kd_map m;
    if (kd_file_map(&m, path, err))
        return -1;
    int rc = kd_sha256_of(m.data, (size_t)m.size_bytes, out, err);
    kd_map_release(&m);
    return rc;
}

uint64_t kd_xxh64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t kd_fnv64(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}
