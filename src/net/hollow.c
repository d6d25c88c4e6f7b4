#include "net/hollow.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool kd_hollow_is(const struct kd_source_file *f)
{
    return kd_name_ends(f->name, ".safetensors") && !strchr(f->name, '/') &&
           strncmp(f->name, "golden", 6) != 0;
}

int kd_hollow_make(struct kd_source *s, int file, const char *path, const char *work,
                   struct kd_err *err)
{
    const struct kd_source_file *f = kd_source_at(s, file);
    uint8_t size[8], *head;
    uint64_t n = 0;
    if (kd_source_stat(s, file, err))
        return -1;
    if (kd_file_exists(path) && kd_file_size(path, err) == f->bytes)
        return 0;
    if (f->bytes < 8)
        return kd_fail(err, KD_ECORRUPT, "%s: too short for a safetensors file", f->name);
    if (kd_source_read(s, file, 0, 8, size, err))
        return -1;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | size[i];
    if (n > KD_HOLLOW_HEAD_MAX || n > (uint64_t)f->bytes - 8)
        return kd_fail(err, KD_ECORRUPT, "%s: a head of %llu bytes is longer than it can be",
                       f->name, (unsigned long long)n);
    if (kd_mem_new(&head, (int64_t)n + 8, 1, "head", err))
        return -1;
    int rc = kd_source_read(s, file, 0, (int64_t)n + 8, head, err);
    if (!rc)
        rc = kd_file_write(work, head, (size_t)n + 8, err);
    kd_mem_free(head);
    if (!rc && (truncate(work, f->bytes) || rename(work, path)))
        rc = kd_fail_sys(err, "cannot make '%s' (%lld bytes, most of it a hole)", path,
                         (long long)f->bytes);
    return rc;
}
