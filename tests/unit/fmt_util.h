/* Small hostile and healthy checkpoints for the tests of fmt: made in a folder of their own. */
#ifndef KD_TESTS_FMT_UTIL_H
#define KD_TESTS_FMT_UTIL_H

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fmt_dir[64];

static inline int fmt_setup(void **state)
{
    (void)state;
    snprintf(fmt_dir, sizeof fmt_dir, "/tmp/kd_fmt_XXXXXX");
    return mkdtemp(fmt_dir) ? 0 : -1;
}

static inline int fmt_teardown(void **state)
{
    struct kd_err err;
    (void)state;
    return kd_dir_remove(fmt_dir, &err);
}

static inline const char *fmt_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", fmt_dir, name);
    return path;
}

static inline void fmt_put(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(fmt_path(name), "wb"); /* hundreds of files: not each one synced */
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f))
        fail_msg("cannot write %s", name);
}

static inline void fmt_text(const char *name, const char *text)
{
    fmt_put(name, text, strlen(text));
}

/* length, header, `data` bytes counting up */
static inline size_t fmt_image(uint8_t *out, const char *header, size_t data)
{
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < data; i++)
        out[8 + n + i] = (uint8_t)i;
    return 8 + n + data;
}

static inline void fmt_shard(const char *name, const char *header, size_t data)
{
    static uint8_t image[1 << 16];
    fmt_put(name, image, fmt_image(image, header, data));
}

#endif
