#include "farm/share.h"

#include "base/hash.h"
#include "base/mem.h"
#include "farm/wire.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 4 << 20 };

/* Plain files only; another's folder in it is left alone. */
static void empty(const char *dir, const char *sub)
{
    char path[4096], file[4096];
    struct kd_err err;
    struct dirent *e;
    if (kd_path_join(path, sizeof path, dir, sub, &err))
        return;
    DIR *d = opendir(path);
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.' && !kd_path_join(file, sizeof file, path, e->d_name, &err))
            unlink(file);
    if (d)
        closedir(d);
}

int kd_share_open(const char *dir, struct kd_err *err)
{
    static const char *const subs[] = {"b", "in"};
    char path[4096];
    for (int i = 0; i < 2; i++) {
        if (kd_path_join(path, sizeof path, dir, subs[i], err) || kd_dir_make(path, err))
            return -1;
        empty(dir, subs[i]);
    }
    return 0;
}

bool kd_share_seen(const char *dir)
{
    char path[4096];
    struct kd_err err;
    return !kd_path_join(path, sizeof path, dir, "in", &err) && kd_dir_exists(path) &&
           !access(path, W_OK | X_OK);
}

void kd_share_sweep(const char *dir)
{
    empty(dir, "b");
}

int kd_share_blob(const char *dir, const char *sha256, char *out, struct kd_err *err)
{
    char name[80];
    if (!kd_wire_is_digest(sha256))
        return kd_fail(err, KD_EINVAL, "no digest");
    snprintf(name, sizeof name, "b/%s", sha256);
    return kd_path_join(out, 4096, dir, name, err);
}

int kd_share_unit(const char *dir, const char *sha256, const char *worker, char *out,
                  struct kd_err *err)
{
    char name[160];
    if (!kd_wire_is_digest(sha256) || kd_name_check(worker, err))
        return kd_fail(err, KD_EINVAL, "no name of a unit");
    snprintf(name, sizeof name, "in/%s.%.63s", sha256, worker);
    return kd_path_join(out, 4096, dir, name, err);
}

static int copy(int fd, int64_t bytes, struct kd_sha256 *h, char *piece, struct kd_buf *out,
                struct kd_outfile *file, struct kd_err *err)
{
    while (bytes > 0) {
        ssize_t n = read(fd, piece, bytes < CHUNK ? (size_t)bytes : CHUNK);
        if (n <= 0)
            return kd_fail(err, KD_ECORRUPT, "shorter than it was");
        kd_sha256_add(h, piece, (size_t)n);
        if (out)
            kd_buf_add(out, piece, (size_t)n);
        else if (kd_out_write(file, piece, n, err))
            return -1;
        bytes -= n;
    }
    return out ? kd_buf_ok(out, "shared file", err) : 0;
}

int kd_share_read(const char *path, const char *sha256, int64_t bytes, struct kd_buf *out,
                  struct kd_outfile *file, struct kd_err *err)
{
    struct kd_sha256 h;
    struct stat st;
    char hex[65], *piece;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return kd_fail(err, KD_ECORRUPT, "not there");
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size != bytes) {
        close(fd);
        return kd_fail(err, KD_ECORRUPT, "not of its size");
    }
    int rc = kd_mem_new(&piece, CHUNK, 1, "a piece of a file", err);
    if (!rc && !(rc = kd_sha256_init(&h, err))) {
        rc = copy(fd, bytes, &h, piece, out, file, err);
        kd_sha256_hex(&h, hex);
        if (!rc && strcmp(hex, sha256) != 0)
            rc = kd_fail(err, KD_ECORRUPT, "not of its digest");
    }
    kd_mem_free(piece);
    close(fd);
    if (rc && out)
        kd_buf_clear(out);
    return rc ? -1 : 0;
}
