/* Inputs as files, for parsers that take a path: one folder in memory where there is such, gone at
 * exit. An input may hold several files, one zero byte between them. */
#ifndef KD_FUZZ_FILES_H
#define KD_FUZZ_FILES_H

#include "base/assert.h"
#include "base/file.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fuzz_folder[64];

static void fuzz_folder_remove(void)
{
    struct kd_err err;
    KD_ASSERT(!kd_dir_remove(fuzz_folder, &err));
}

static inline const char *fuzz_dir(void)
{
    if (*fuzz_folder)
        return fuzz_folder;
    snprintf(fuzz_folder, sizeof fuzz_folder, "%s/kd_fuzz_XXXXXX",
             kd_dir_exists("/dev/shm") ? "/dev/shm" : "/tmp");
    KD_ASSERT(mkdtemp(fuzz_folder) && !atexit(fuzz_folder_remove));
    return fuzz_folder;
}

/* Its path, which the next call writes over. */
static inline const char *fuzz_file(const char *name, const void *data, size_t bytes)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    KD_ASSERT(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes && !close(fd));
    return path;
}

/* The input up to its next zero byte becomes a file; what is left of the input. */
static inline size_t fuzz_next_file(const char *name, const uint8_t **data, size_t bytes)
{
    const uint8_t *end = bytes ? memchr(*data, 0, bytes) : NULL;
    size_t n = end ? (size_t)(end - *data) : bytes;
    fuzz_file(name, *data, n);
    *data += end ? n + 1 : n;
    return bytes - n - (end != NULL);
}

#endif
