/* A unit of work from a damaged disk: never read out of bounds, whatever the bytes. */
#include "base/hash.h"
#include "farm/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Touches everything that a conversion would read. */
static void use(struct kd_unit *u)
{
    volatile unsigned sum = 0;
    for (int i = 0; i < u->count; i++) {
        struct kd_exl3_tensor t = kd_unit_tensor(u, i);
        for (int64_t k = 0; k < t.codes_bytes; k += 61)
            sum += t.codes[k];
        for (int64_t k = 0; k < t.k; k++)
            sum += t.suh[k];
        for (int64_t k = 0; k < t.n; k++)
            sum += t.svh[k];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_unit u;
    struct kd_err err;
    char path[64];
    int fd = memfd_create("unit", 0);
    if (fd < 0)
        return 0;
    uint8_t *copy = malloc(bytes + 1);
    if (copy && bytes >= 40) {
        /* The hash is made right, so that the checks behind it are reached. */
        memcpy(copy, data, bytes);
        uint64_t hash = kd_xxh64(copy + 40, bytes - 40, 0);
        int64_t size = (int64_t)bytes;
        memcpy(copy + 16, &hash, 8);
        memcpy(copy + 24, &size, 8);
        if (write(fd, copy, bytes) == (ssize_t)bytes) {
            uint64_t digest;
            memcpy(&digest, copy + 8, 8);
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (!kd_unit_open(&u, path, digest, &err)) {
                use(&u);
                kd_unit_close(&u);
            }
        }
    }
    free(copy);
    close(fd);
    return 0;
}
