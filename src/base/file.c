#include "base/file.h"

#include "base/mem.h"
#include "base/parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int kd_file_map(struct kd_map *m, const char *path, struct kd_err *err)
{
    memset(m, 0, sizeof *m);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    struct stat st;
    if (fstat(fd, &st)) {
        kd_fail_sys(err, "cannot read the size of '%s'", path);
        close(fd);
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return kd_fail(err, KD_EINVAL, "'%s' is not a plain file", path);
    }
    m->size_bytes = st.st_size;
    if (st.st_size) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            kd_fail_sys(err, "cannot map '%s' (%lld bytes)", path, (long long)st.st_size);
            close(fd);
            m->size_bytes = 0;
            return -1;
        }
        m->data = data;
    }
    close(fd);
    return 0;
}

void kd_map_release(struct kd_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, (size_t)m->size_bytes);
    memset(m, 0, sizeof *m);
}

int kd_map_close(struct kd_map *m, struct kd_err *err)
{
    if (m->size_bytes &&
        mmap((void *)(uintptr_t)m->data, (size_t)m->size_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return kd_fail_sys(err, "cannot close a map of %lld bytes", (long long)m->size_bytes);
    return 0;
}

int kd_map_refill(struct kd_map *m, const char *path, struct kd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st))
        rc = kd_fail_sys(err, "cannot read the size of '%s'", path);
    else if (st.st_size != m->size_bytes)
        rc = kd_fail(err, KD_ECORRUPT, "'%s' has %lld bytes, not %lld", path, (long long)st.st_size,
                     (long long)m->size_bytes);
    else if (m->size_bytes && mmap((void *)(uintptr_t)m->data, (size_t)m->size_bytes, PROT_READ,
                                   MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        rc = kd_fail_sys(err, "cannot map '%s' (%lld bytes)", path, (long long)m->size_bytes);
    close(fd);
    return rc;
}

void kd_map_forget(const void *data, int64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) & ~(page - 1);
    uintptr_t to = ((uintptr_t)data + (uintptr_t)bytes) & ~(page - 1);
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

int kd_file_read(struct kd_buf *out, const char *path, size_t max_bytes, struct kd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    size_t total = 0;
    for (;;) {
        char chunk[65536];
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            kd_fail_sys(err, "cannot read '%s'", path);
            close(fd);
            return -1;
        }
        if (!n)
            break;
        total += (size_t)n;
        if (total > max_bytes) {
            close(fd);
            return kd_fail(err, KD_EINVAL, "'%s' is larger than the limit of %zu bytes", path,
                           max_bytes);
        }
        kd_buf_add(out, chunk, (size_t)n);
    }
    close(fd);
    return kd_buf_ok(out, path, err);
}

int kd_file_write(const char *path, const void *data, size_t bytes, struct kd_err *err)
{
    struct kd_outfile f;
    if (kd_out_open(&f, path, err))
        return -1;
    if (kd_out_write(&f, data, (int64_t)bytes, err)) {
        kd_out_abort(&f);
        return -1;
    }
    return kd_out_commit(&f, err);
}

bool kd_file_exists(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

bool kd_dir_exists(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool kd_path_there(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

bool kd_path_same(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int64_t kd_file_size(const char *path, struct kd_err *err)
{
    struct stat st;
    if (stat(path, &st))
        return kd_fail_sys(err, "cannot read the size of '%s'", path);
    return st.st_size;
}

int kd_dir_could(const char *path, struct kd_err *err)
{
    char part[4096];
    struct stat st;
    size_t n = strlen(path);
    if (!n)
        return kd_fail(err, KD_EUSAGE, "the destination has no name: give a folder");
    if (n >= sizeof part)
        return kd_fail(err, KD_EINVAL, "path of %zu bytes is too long", n);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        char keep = part[i];
        part[i] = 0;
        if (stat(part, &st))
            return errno == ENOENT ? 0 : kd_fail_sys(err, "cannot make the folder '%s'", path);
        if (!S_ISDIR(st.st_mode))
            return kd_fail(err, KD_EIO, "'%s' is there and is not a folder", part);
        part[i] = keep;
    }
    return 0;
}

int kd_dir_make(const char *path, struct kd_err *err)
{
    char part[4096];
    size_t n = strlen(path);
    if (kd_dir_could(path, err))
        return -1;
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        char keep = part[i];
        part[i] = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return kd_fail_sys(err, "cannot make the folder '%s'", part);
        part[i] = keep;
    }
    if (!kd_dir_exists(path))
        return kd_fail(err, KD_EIO, "'%s' is there and is not a folder", path);
    return 0;
}

static int remove_at(int parent, const char *name, struct kd_err *err)
{
    if (!unlinkat(parent, name, 0) || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return kd_fail_sys(err, "cannot remove '%s'", name);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        kd_fail_sys(err, "cannot open the folder '%s'", name);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    int rc = 0;
    struct dirent *e;
    while (!rc && (e = readdir(dir)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            rc = remove_at(fd, e->d_name, err); /* the stream owns it, it stays open */
    closedir(dir);
    if (!rc && unlinkat(parent, name, AT_REMOVEDIR) && errno != ENOENT)
        rc = kd_fail_sys(err, "cannot remove the folder '%s'", name);
    return rc;
}

int kd_dir_remove(const char *path, struct kd_err *err)
{
    return remove_at(AT_FDCWD, path, err);
}

/* Removes NAME.tmpXXXXXX; of every name when `of` is NULL. */
static int sweep(DIR *dir, const char *path, const char *of, struct kd_err *err)
{
    char name[4096];
    int rc = 0;
    struct dirent *e;
    while (!rc && (e = readdir(dir))) {
        const char *tmp = strstr(e->d_name, ".tmp");
        if (of)
            tmp = strncmp(e->d_name, of, strlen(of)) ? NULL : e->d_name + strlen(of);
        if (tmp && !strncmp(tmp, ".tmp", 4) && strlen(tmp) == 10) {
            rc = kd_path_join(name, sizeof name, path, e->d_name, err);
            if (!rc && unlink(name))
                rc = kd_fail_sys(err, "cannot remove '%s'", name);
        }
    }
    return rc;
}

int kd_dir_sweep(const char *path, struct kd_err *err)
{
    DIR *dir = opendir(path);
    if (!dir)
        return kd_fail_sys(err, "cannot list '%s'", path);
    int rc = sweep(dir, path, NULL, err);
    closedir(dir);
    return rc;
}

int kd_path_join(char *out, size_t size, const char *a, const char *b, struct kd_err *err)
{
    size_t n = strlen(a);
    const char *slash = n && a[n - 1] != '/' ? "/" : "";
    int used = snprintf(out, size, "%s%s%s", a, slash, b);
    if (used < 0 || (size_t)used >= size)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", a);
    return 0;
}

int64_t kd_disk_free_bytes(const char *path)
{
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    struct statvfs v;
    while (statvfs(part, &v)) {
        char *slash = strrchr(part, '/');
        if (!slash)
            return statvfs(".", &v) ? 0 : (int64_t)v.f_bavail * (int64_t)v.f_frsize;
        if (slash == part)
            return statvfs("/", &v) ? 0 : (int64_t)v.f_bavail * (int64_t)v.f_frsize;
        *slash = 0;
    }
    return (int64_t)v.f_bavail * (int64_t)v.f_frsize;
}

int kd_name_check(const char *name, struct kd_err *err)
{
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return kd_fail(err, KD_ECORRUPT, "file name '%.80s' is not allowed", name);
    for (const char *c = name; *c; c++)
        if (*c == '/' || *c == '\\' || (unsigned char)*c < 32 || *c == 127)
            return kd_fail(err, KD_ECORRUPT,
                           "file name with a path separator or control byte is not allowed");
    return 0;
}

/* The folder that holds `path`. */
static void parent_of(char dir[4096], const char *path)
{
    snprintf(dir, 4096, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash)
        snprintf(dir, 4096, ".");
    else if (slash == dir)
        dir[1] = 0;
    else
        *slash = 0;
}

int kd_out_sweep(const char *path, struct kd_err *err)
{
    char parent[4096];
    parent_of(parent, path);
    DIR *dir = opendir(parent);
    if (!dir) /* writing there says what is wrong */
        return 0;
    const char *slash = strrchr(path, '/');
    int rc = sweep(dir, parent, slash ? slash + 1 : path, err);
    closedir(dir);
    return rc;
}

static int sync_parent(const char *path, struct kd_err *err)
{
    char dir[4096];
    parent_of(dir, path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open the folder '%s'", dir);
    /* Some file systems have no fsync for folders; then there is nothing more to do. */
    int bad = fsync(fd) && errno != EINVAL && errno != ENOTSUP;
    if (bad)
        kd_fail_sys(err, "cannot sync the folder '%s'", dir);
    close(fd);
    return bad ? -1 : 0;
}

/* A rename over a device, a pipe or a folder of that name would put a file in its place. */
static int check_place(const char *path, struct kd_err *err)
{
    struct stat st;
    if (strlen(path) >= sizeof((struct kd_outfile *)0)->path)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", path);
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return kd_fail(err, KD_EIO, "cannot write '%s': it is there and is not a plain file", path);
    return 0;
}

int kd_out_could(const char *path, struct kd_err *err)
{
    char dir[4096];
    if (check_place(path, err))
        return -1;
    parent_of(dir, path);
    return access(dir, W_OK | X_OK) ? kd_fail_sys(err, "cannot write '%s'", path) : 0;
}

int kd_out_open(struct kd_outfile *f, const char *path, struct kd_err *err)
{
    memset(f, 0, sizeof *f);
    f->fd = -1;
    if (check_place(path, err))
        return -1;
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(f->tmp, sizeof f->tmp, "%s.tmpXXXXXX", path);
    f->fd = mkostemp(f->tmp, O_CLOEXEC);
    if (f->fd < 0)
        return kd_fail_sys(err, "cannot write '%s'", path);
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(f->fd, 0666 & ~mask)) {
        kd_fail_sys(err, "cannot set the mode of '%s'", f->tmp);
        kd_out_abort(f);
        return -1;
    }
    return 0;
}

static int write_all(struct kd_outfile *f, const void *data, int64_t bytes, struct kd_err *err)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(f->fd, at, bytes > (1 << 30) ? 1u << 30 : (size_t)bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kd_fail_sys(err, "cannot write '%s' (%lld bytes written so far)", f->path,
                               (long long)f->written_bytes);
        at += n;
        bytes -= n;
        f->written_bytes += n;
    }
    return 0;
}

int kd_out_write(struct kd_outfile *f, const void *data, int64_t bytes, struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_WRITE), rc = write_all(f, data, bytes, err);
    kd_part_leave(was);
    return rc;
}

static int sync_and_name(struct kd_outfile *f, struct kd_err *err)
{
    if (fsync(f->fd)) {
        kd_fail_sys(err, "cannot sync '%s'", f->path);
        kd_out_abort(f);
        return -1;
    }
    if (close(f->fd)) {
        f->fd = -1;
        kd_fail_sys(err, "cannot close '%s'", f->path);
        unlink(f->tmp);
        return -1;
    }
    f->fd = -1;
    if (rename(f->tmp, f->path)) {
        kd_fail_sys(err, "cannot rename to '%s'", f->path);
        unlink(f->tmp);
        return -1;
    }
    return sync_parent(f->path, err);
}

int kd_out_commit(struct kd_outfile *f, struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_WRITE), rc = sync_and_name(f, err);
    kd_part_leave(was);
    return rc;
}

void kd_out_abort(struct kd_outfile *f)
{
    if (f->fd < 0 || !f->tmp[0])
        return;
    close(f->fd);
    unlink(f->tmp);
    f->fd = -1;
    f->tmp[0] = 0;
}

static int rw_map(struct kd_rwmap *m, int fd, const char *path, struct kd_err *err)
{
    m->data = NULL;
    if (!m->size_bytes)
        return 0;
    void *data = mmap(NULL, (size_t)m->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return kd_fail_sys(err, "cannot map '%s' (%lld bytes)", path, (long long)m->size_bytes);
    m->data = data;
    return 0;
}

int kd_rw_open(struct kd_rwmap *m, const char *path, int64_t bytes, struct kd_err *err)
{
    memset(m, 0, sizeof *m);
    if (strlen(path) + 5 > sizeof m->path)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", path);
    snprintf(m->path, sizeof m->path, "%s.tmp", path);
    int fd = open(m->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return kd_fail_sys(err, "cannot write '%s'", m->path);
    m->temporary = true;
    m->size_bytes = bytes;
    int rc = bytes ? posix_fallocate(fd, 0, bytes) : 0;
    if (rc) {
        errno = rc;
        rc = kd_fail_sys(err, "cannot reserve %lld bytes for '%s'", (long long)bytes, m->path);
    } else {
        rc = rw_map(m, fd, m->path, err);
    }
    close(fd);
    if (rc)
        kd_rw_close(m);
    return rc;
}

int kd_rw_reopen(struct kd_rwmap *m, const char *path, int64_t bytes, struct kd_err *err)
{
    memset(m, 0, sizeof *m);
    snprintf(m->path, sizeof m->path, "%s", path);
    int64_t have = kd_file_size(path, err);
    if (have < 0)
        return -1;
    if (have != bytes)
        return kd_fail(err, KD_ECORRUPT, "'%s' has %lld bytes, %lld expected", path,
                       (long long)have, (long long)bytes);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    m->size_bytes = bytes;
    int rc = rw_map(m, fd, path, err);
    close(fd);
    return rc;
}

int kd_rw_memory(struct kd_rwmap *m, int64_t bytes, struct kd_err *err)
{
    memset(m, 0, sizeof *m);
    m->size_bytes = bytes;
    m->memory = true;
    return kd_mem_new(&m->data, bytes, 1, "work rows", err);
}

void kd_rw_lend(struct kd_rwmap *m, uint8_t *data, int64_t bytes)
{
    memset(m, 0, sizeof *m);
    m->data = data;
    m->size_bytes = bytes;
    m->lent = true;
}

static int sync_and_name_map(struct kd_rwmap *m, struct kd_err *err)
{
    char path[sizeof m->path];
    if (m->data && msync(m->data, (size_t)m->size_bytes, MS_SYNC))
        return kd_fail_sys(err, "cannot sync '%s'", m->path);
    if (!m->temporary)
        return 0;
    snprintf(path, sizeof path, "%.*s", (int)strlen(m->path) - 4, m->path);
    if (rename(m->path, path))
        return kd_fail_sys(err, "cannot rename to '%s'", path);
    memcpy(m->path, path, sizeof path);
    m->temporary = false;
    return sync_parent(path, err);
}

int kd_rw_commit(struct kd_rwmap *m, struct kd_err *err)
{
    int was = kd_part_enter(KD_PART_WRITE), rc = sync_and_name_map(m, err);
    kd_part_leave(was);
    return rc;
}

void kd_rw_close(struct kd_rwmap *m)
{
    if (m->memory)
        kd_mem_free(m->data);
    else if (m->data && !m->lent)
        munmap(m->data, (size_t)m->size_bytes);
    if (m->temporary)
        unlink(m->path);
    memset(m, 0, sizeof *m);
}

static int in_use(const char *dir, struct kd_err *err)
{
    return kd_fail(err, KD_EINVAL, "'%s' is in use by another kondense process", dir);
}

int kd_dir_unused(const char *dir, struct kd_err *err)
{
    char path[4096];
    if (kd_path_join(path, sizeof path, dir, ".lock", err))
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return held ? in_use(dir, err) : 0;
}

int kd_dir_lock(const char *dir, int *fd, struct kd_err *err)
{
    char path[4096];
    *fd = -1;
    if (kd_path_join(path, sizeof path, dir, ".lock", err))
        return -1;
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0)
        return kd_fail_sys(err, "cannot open '%s'", path);
    if (flock(lock, LOCK_EX | LOCK_NB)) {
        int held = errno == EWOULDBLOCK;
        if (!held)
            kd_fail_sys(err, "cannot lock '%s'", path);
        close(lock);
        if (held)
            return in_use(dir, err);
        return -1;
    }
    *fd = lock;
    return 0;
}

bool kd_name_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n > m && !strcmp(name + n - m, tail);
}
