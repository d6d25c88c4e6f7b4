#include "base/pieces.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The number at name[at..], 1 to KD_PIECES_MAX; its digits in *n. */
static int64_t number(const char *name, size_t at, size_t *n)
{
    int64_t v = 0;
    for (*n = 0; is_digit(name[at + *n]) && *n < 6; ++*n)
        v = v * 10 + (name[at + *n] - '0');
    return *n && !is_digit(name[at + *n]) && v >= 1 && v <= KD_PIECES_MAX ? v : 0;
}

/* "A<middle>B" at name[at..]: piece A of B. */
static bool pair(struct kd_piece *p, const char *name, size_t at, const char *middle, size_t *end)
{
    size_t n, m = strlen(middle);
    p->no_at = at;
    p->no = number(name, at, &p->no_digits);
    if (!p->no || strncmp(name + at + p->no_digits, middle, m))
        return false;
    p->count = number(name, at + p->no_digits + m, &n);
    *end = at + p->no_digits + m + n;
    return p->count >= p->no;
}

/* split's own letters: a to z, or aa to zz. */
static bool letters(struct kd_piece *p, const char *at)
{
    size_t n = strlen(at);
    if (n < 1 || n > 2 || strspn(at, "abcdefghijklmnopqrstuvwxyz") != n)
        return false;
    p->no = n == 1 ? at[0] - 'a' + 1 : (at[0] - 'a') * 26 + (at[1] - 'a') + 1;
    p->count = 0;
    p->no_digits = n;
    return true;
}

bool kd_piece_parse(struct kd_piece *p, const char *name)
{
    size_t end, bytes = strlen(name);
    *p = (struct kd_piece){.count = 0};
    const char *at = strstr(name, ".part");
    if (at && at > name) {
        size_t from = (size_t)(at - name);
        bool dash = at[5] == '-';
        p->chopped = true;
        p->base_bytes = from;
        return pair(p, name, from + 5 + dash, dash ? "-of-" : "of", &end) && end == bytes;
    }
    at = strstr(name, "-split-");
    if (at && at > name) {
        p->chopped = true;
        p->base_bytes = (size_t)(at - name);
        p->no_at = p->base_bytes + 7;
        return letters(p, at + 7);
    }
    at = strstr(name, "-of-");
    size_t digits = 0;
    while (at && digits < (size_t)(at - name) && is_digit(at[-1 - (long)digits]))
        digits++;
    return digits && pair(p, name, (size_t)(at - name) - digits, "-of-", &end) && name[end] == '.';
}

bool kd_piece_sister(char *out, size_t size, const char *name, const struct kd_piece *p, int64_t no)
{
    int64_t most = p->count ? p->count : p->no_digits == 1 ? 26 : 26 * 26;
    if (no < 1 || no > most)
        return false;
    char letter[3] = {(char)('a' + (no - 1) / 26), (char)('a' + (no - 1) % 26), 0};
    int n = p->count
                ? snprintf(out, size, "%.*s%0*lld%s", (int)p->no_at, name, (int)p->no_digits,
                           (long long)no, name + p->no_at + p->no_digits)
                : snprintf(out, size, "%.*s%s", (int)p->no_at, name, letter + (p->no_digits == 1));
    return n > 0 && (size_t)n < size;
}

/* The path of piece `no`; false after the last one. */
static bool piece_at(char *out, size_t size, const char *path, const struct kd_piece *p, int64_t no)
{
    return kd_piece_sister(out, size, path, p, no) && (p->count || kd_file_exists(out));
}

static int measure(const char *path, const struct kd_piece *p, int64_t *total, int64_t *copied,
                   struct kd_err *err)
{
    char at[4096];
    int64_t page = sysconf(_SC_PAGESIZE), memory = sysconf(_SC_PHYS_PAGES);
    *total = *copied = 0;
    for (int64_t no = 1; piece_at(at, sizeof at, path, p, no); no++) {
        int64_t bytes = kd_file_size(at, err);
        if (bytes < 0 && p->count)
            return kd_wrap(err, "piece %lld of %lld", (long long)no, (long long)p->count);
        if (bytes < 0)
            return -1;
        *copied += *total % page ? bytes : 0;
        if (__builtin_add_overflow(*total, bytes, total))
            return kd_fail(err, KD_ECORRUPT, "'%s': its pieces are too long", path);
    }
    if (*copied / page > memory / 2)
        return kd_fail(
            err, KD_ENOMEM,
            "'%s': %lld bytes of its pieces do not begin on a page of the whole and would "
            "have to be copied into memory; join the pieces first (kondense fetch)",
            path, (long long)*copied);
    return 0;
}

static int read_at(int fd, uint8_t *to, int64_t bytes, const char *path, struct kd_err *err)
{
    for (int64_t at = 0; at < bytes;) {
        ssize_t n = pread(fd, to + at, (size_t)(bytes - at), at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? kd_fail_sys(err, "cannot read '%s'", path)
                     : kd_fail(err, KD_EIO, "'%s' became shorter", path);
        at += n;
    }
    return 0;
}

/* One piece at `start` of the map: mapped where it begins on a page, else copied, together with
 * what stands before it on its first page. */
static int put(uint8_t *map, int64_t start, int64_t bytes, int fd, const char *path,
               struct kd_err *err)
{
    int64_t page = sysconf(_SC_PAGESIZE), before = start % page;
    uint8_t *to = map + start - before;
    if (!before)
        return mmap(to, (size_t)bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED
                   ? kd_fail_sys(err, "cannot map '%s'", path)
                   : 0;
    uint8_t *keep;
    if (kd_mem_new(&keep, before, 1, "a piece's first page", err))
        return -1;
    memcpy(keep, to, (size_t)before);
    /* Shared, so that kd_map_forget loses nothing. */
    int rc = mmap(to, (size_t)(before + bytes), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED
                 ? kd_fail_sys(err, "no memory for '%s'", path)
                 : 0;
    if (!rc) {
        memcpy(to, keep, (size_t)before);
        rc = read_at(fd, to + before, bytes, path, err);
    }
    if (!rc && mprotect(to, (size_t)(before + bytes), PROT_READ))
        rc = kd_fail_sys(err, "cannot protect the pages of '%s'", path);
    kd_mem_free(keep);
    return rc;
}

int kd_pieces_map(struct kd_map *m, const char *path, char *whole, size_t size, struct kd_err *err)
{
    struct kd_piece p;
    char at[4096];
    int64_t total, copied, start = 0;
    memset(m, 0, sizeof *m);
    const char *slash = strrchr(path, '/');
    size_t dir = slash ? (size_t)(slash + 1 - path) : 0;
    bool good = kd_piece_parse(&p, path + dir) && p.chopped;
    p.base_bytes += dir;
    p.no_at += dir;
    if (!good || p.base_bytes >= size)
        return kd_fail(err, KD_EINVAL, "'%s' is not named like a piece", path);
    snprintf(whole, size, "%.*s", (int)p.base_bytes, path);
    if (measure(path, &p, &total, &copied, err))
        return -1;
    if (!total)
        return 0;
    void *map =
        mmap(NULL, (size_t)total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return kd_fail_sys(err, "cannot map '%s' (%lld bytes)", whole, (long long)total);
    m->data = map;
    m->size_bytes = total;
    for (int64_t no = 1; start < total && piece_at(at, sizeof at, path, &p, no); no++) {
        struct stat st;
        int fd = open(at, O_RDONLY | O_CLOEXEC), rc = 0;
        if (fd < 0 || fstat(fd, &st))
            rc = kd_fail_sys(err, "cannot open '%s'", at);
        else if (st.st_size > total - start)
            rc = kd_fail(err, KD_EIO, "'%s' became longer", at);
        else if (st.st_size)
            rc = put(map, start, st.st_size, fd, at, err);
        if (fd >= 0)
            close(fd);
        if (rc) {
            kd_map_release(m);
            return -1;
        }
        start += st.st_size;
    }
    if (start == total)
        return 0;
    kd_map_release(m);
    return kd_fail(err, KD_EIO, "'%s': a piece became shorter", whole);
}
