/* SHA-256 (libcrypto) and XXH3-64 (xxHash), plus the two small integer hashes that seeds are made
 * of. Thread-safe; one kd_sha256 belongs to one thread. */
#ifndef KD_BASE_HASH_H
#define KD_BASE_HASH_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct kd_sha256 {
    void *ctx;
};
int kd_sha256_init(struct kd_sha256 *h, struct kd_err *err) KD_MUST;
void kd_sha256_add(struct kd_sha256 *h, const void *data, size_t bytes);
/* 64 lower-case hex digits and a NUL; releases the state. */
void kd_sha256_hex(struct kd_sha256 *h, char out[65]);
/* One call for one block. */
int kd_sha256_of(const void *data, size_t bytes, char out[65], struct kd_err *err) KD_MUST;
/* The digest of a file, read once. */
int kd_sha256_file(const char *path, char out[65], struct kd_err *err) KD_MUST;

uint64_t kd_xxh64(const void *data, size_t bytes, uint64_t seed); /* XXH3, 64 bits */
uint64_t kd_fnv64(const char *text);                              /* FNV-1a of a C string */

#endif
