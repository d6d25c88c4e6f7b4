#include "convert/rebuild.h"

#include "base/hash.h"
#include "base/log.h"
#include "farm/unit.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    char dst[2048], work[2100];
    uint64_t digest;
    struct kd_rebuild *out;
};

static int each(const char *dir,
                int (*fn)(struct place *p, const char *dir, const char *name, struct kd_err *err),
                struct place *p, struct kd_err *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int rc = 0;
    if (!d)
        return kd_fail_sys(err, "cannot list '%s'", dir);
    while (!rc && (e = readdir(d)))
        if (e->d_name[0] != '.')
            rc = fn(p, dir, e->d_name, err);
    closedir(d);
    return rc;
}

static int remove_file(const char *dir, const char *name, struct kd_err *err)
{
    char path[4096];
    if (kd_path_join(path, sizeof path, dir, name, err))
        return -1;
    return unlink(path) && errno != ENOENT ? kd_fail_sys(err, "cannot remove '%s'", path) : 0;
}

static int look_at_unit(struct place *p, const char *dir, const char *name, struct kd_err *err)
{
    char path[4096];
    struct kd_unit u;
    struct kd_err why;
    const char *end = strstr(name, ".unit");
    if (!end || end[5])
        return 0;
    if (kd_path_join(path, sizeof path, dir, name, err))
        return -1;
    if (!kd_unit_open(&u, path, p->digest, &why)) {
        kd_unit_close(&u);
        p->out->units++;
        return 0;
    }
    if (why.code != KD_ECORRUPT) {
        *err = why;
        return -1;
    }
    kd_log(KD_LOG_WARN, "farm", "msg=\"removed\" why=\"%s\"", why.msg);
    p->out->damaged++;
    return remove_file(dir, name, err);
}

/* The number of a layer's folder, or -1. */
static int64_t folder_layer(const char *name)
{
    size_t n = strspn(name, "0123456789");
    return n >= 3 && !name[n] ? strtoll(name, NULL, 10) : -1;
}

static int look_at_work(struct place *p, const char *dir, const char *name, struct kd_err *err)
{
    char path[4096];
    if (folder_layer(name) < 0)
        return 0;
    if (kd_path_join(path, sizeof path, dir, name, err))
        return -1;
    return kd_dir_exists(path) ? each(path, look_at_unit, p, err) : 0;
}

/* The number of a sealed shard counted from 0, which is its layer's while there are layers; or -1.
 */
static int64_t shard_of(const char *name)
{
    char tail[64];
    long long n;
    if (sscanf(name, "model-%lld-of-%60s", &n, tail) != 2 || !strstr(tail, ".safetensors"))
        return -1;
    return n - 1;
}

static int count_shard(struct place *p, const char *dir, const char *name, struct kd_err *err)
{
    (void)dir;
    (void)err;
    p->out->shards += shard_of(name) >= 0;
    return 0;
}

static int drop_shard(struct place *p, const char *dir, const char *name, struct kd_err *err)
{
    int64_t n = shard_of(name);
    if (n < p->out->from_layer)
        return 0;
    p->out->dropped++;
    return remove_file(dir, name, err);
}

static int drop_work(struct place *p, const char *dir, const char *name, struct kd_err *err)
{
    char path[4096];
    long long n = -1;
    if (folder_layer(name) >= p->out->from_layer) {
        return kd_path_join(path, sizeof path, dir, name, err) || kd_dir_remove(path, err) ? -1 : 0;
    }
    if (sscanf(name, "stream.%lld", &n) == 1 && n > p->out->from_layer)
        return remove_file(dir, name, err);
    return 0;
}

static int drop_ledger(const struct place *p, struct kd_err *err)
{
    return remove_file(p->work, "ledger.db", err) || remove_file(p->work, "ledger.db-wal", err) ||
                   remove_file(p->work, "ledger.db-shm", err)
               ? -1
               : 0;
}

/* The newest stream at or before the layer. */
static int64_t newest_stream(const struct place *p, int64_t layer)
{
    char path[4200];
    for (; layer >= 0; layer--) {
        snprintf(path, sizeof path, "%s/stream.%03lld", p->work, (long long)layer);
        if (kd_file_exists(path))
            return layer;
    }
    return -1;
}

static int go_back(struct place *p, int64_t layer, struct kd_err *err)
{
    p->out->from_layer = newest_stream(p, layer);
    if (p->out->from_layer < 0)
        return kd_fail(err, KD_EUSAGE, "no stream at or before layer %lld is left: convert anew",
                       (long long)layer);
    /* Shards first: one that is there counts as done, with or without its work files. */
    return each(p->dst, drop_shard, p, err) || each(p->work, drop_work, p, err) ? -1 : 0;
}

int kd_convert_rebuild(const char *dst, int64_t from_layer, struct kd_rebuild *out,
                       struct kd_err *err)
{
    struct place p = {.out = out};
    char path[4096];
    struct kd_buf b;
    int lock = -1;
    *out = (struct kd_rebuild){.from_layer = -1};
    if (snprintf(p.dst, sizeof p.dst, "%s", dst) >= (int)sizeof p.dst)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", dst);
    snprintf(p.work, sizeof p.work, "%s/.work", dst);
    if (kd_path_join(path, sizeof path, p.work, "settings.json", err))
        return -1;
    if (!kd_file_exists(path))
        return kd_fail(err, KD_EUSAGE, "'%s' holds no unfinished conversion", dst);
    kd_buf_init(&b, 1 << 26);
    int rc = kd_dir_lock(p.work, &lock, err) || kd_file_read(&b, path, 1 << 26, err);
    if (!rc)
        p.digest = kd_xxh64(b.data, b.size_bytes, 1); /* as kd_job_open has it */
    kd_buf_release(&b);
    if (!rc && from_layer >= 0)
        rc = go_back(&p, from_layer, err);
    if (!rc)
        rc = each(p.dst, count_shard, &p, err) || each(p.work, look_at_work, &p, err) ||
             drop_ledger(&p, err);
    if (lock >= 0)
        close(lock);
    return rc ? -1 : 0;
}
