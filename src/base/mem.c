#include "base/mem.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_llong fail_in;
static atomic_llong live, live_peak, anon_peak;

/* The block's size is kept in the 64 bytes before it, so that live bytes can be counted. */
enum { HEAD = 64 };
/* Before a block of this size goes, what is resident is noted: a peak is always before a release.
 * Where no more is handed out than at some note before, one now and then does, because asking takes
 * ten microseconds and a server's step frees a dozen such blocks. Not so before a block that by
 * itself would be missed: it may have been handed out at the last note and touched only since. */
enum { NOTED_BYTES = 256 << 10, MISSED_BYTES = 16 << 20, LARGE_PAGE = 2 << 20 };
static const double note_again_s = 0.05;
static atomic_llong noted_live;
static _Atomic double noted_s;

int kd_mul64(int64_t a, int64_t b, int64_t *out)
{
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, out))
        return -1;
    return 0;
}

static void raise(atomic_llong *peak, long long value)
{
    long long old = atomic_load(peak);
    while (value > old && !atomic_compare_exchange_weak(peak, &old, value))
        ;
}

/* Large blocks in large pages where the system has some: made at their first touch, 4 KiB pages
 * cost several times what is then done to them. Within the block, so that no more is ever resident.
 */
static void in_large_pages(char *block, size_t bytes)
{
    size_t lost = -(uintptr_t)block & (LARGE_PAGE - 1);
    char *first = block + lost;
    if (bytes >= MISSED_BYTES)
        (void)madvise(first, (bytes - lost) & ~(size_t)(LARGE_PAGE - 1), MADV_HUGEPAGE);
}

static int take(void *out, int64_t count, int64_t size, const char *what, int zero,
                struct kd_err *err)
{
    int64_t bytes;
    void **slot = out;
    *slot = NULL;
    if (kd_mul64(count, size, &bytes) || bytes > INT64_MAX - 2 * HEAD)
        return kd_fail(err, KD_EINVAL, "%s: %lld items of %lld bytes do not fit in memory", what,
                       (long long)count, (long long)size);
    if (!bytes)
        return 0;
    if (atomic_load(&fail_in) > 0 && atomic_fetch_sub(&fail_in, 1) == 1) {
        errno = ENOMEM;
        return kd_fail_sys(err, "%s: %lld bytes", what, (long long)bytes);
    }
    size_t want = ((size_t)bytes + HEAD + 63) & ~(size_t)63;
    char *block = aligned_alloc(64, want);
    if (!block)
        return kd_fail_sys(err, "%s: %lld bytes", what, (long long)bytes);
    in_large_pages(block, want);
    if (zero)
        memset(block + HEAD, 0, want - HEAD);
    memcpy(block, &bytes, sizeof bytes);
    raise(&live_peak, atomic_fetch_add(&live, bytes) + bytes);
    *slot = block + HEAD;
    return 0;
}

int kd_mem_new(void *out, int64_t count, int64_t size, const char *what, struct kd_err *err)
{
    return take(out, count, size, what, 0, err);
}

int kd_mem_zero(void *out, int64_t count, int64_t size, const char *what, struct kd_err *err)
{
    return take(out, count, size, what, 1, err);
}

/* RssAnon as /proc/self/statm has it, in bytes; 0 where the system does not tell. Much cheaper than
 * status, and without an allocation. */
static int64_t anon_now(void)
{
    char text[128];
    long long size, resident, shared;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%lld %lld %lld", &size, &resident, &shared) != 3)
        return 0;
    return (resident - shared) * sysconf(_SC_PAGESIZE);
}

static void note(int64_t bytes)
{
    long long now = atomic_load(&live);
    /* Far below the most that was handed out, nothing new can be seen. */
    if (now <= atomic_load(&live_peak) / 2)
        return;
    double s = kd_clock_s();
    if (bytes < MISSED_BYTES && now <= atomic_load(&noted_live) &&
        s - atomic_load(&noted_s) < note_again_s)
        return;
    atomic_store(&noted_s, s);
    raise(&noted_live, now);
    raise(&anon_peak, anon_now());
}

void kd_mem_free(void *block)
{
    if (!block)
        return;
    int64_t bytes;
    char *head = (char *)block - HEAD;
    memcpy(&bytes, head, sizeof bytes);
    if (bytes >= NOTED_BYTES)
        note(bytes);
    atomic_fetch_sub(&live, bytes);
    free(head);
}

static int64_t proc_kib(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    char line[160];
    long long kib = 0;
    size_t key_bytes = strlen(key);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, key_bytes) && sscanf(line + key_bytes, ": %lld", &kib) == 1)
            break;
    fclose(f);
    return kib;
}

int64_t kd_mem_anon_bytes(void)
{
    return anon_now();
}

int64_t kd_mem_peak_bytes(void)
{
    raise(&anon_peak, anon_now());
    return atomic_load(&anon_peak);
}

int64_t kd_mem_resident_peak_bytes(void)
{
    return proc_kib("/proc/self/status", "VmHWM") * 1024;
}

/* The number in a file; -1 where there is none, as in a limit that says "max". */
static int64_t number_in(const char *path)
{
    FILE *f = fopen(path, "r");
    long long n = -1;
    if (!f)
        return -1;
    if (fscanf(f, "%lld", &n) != 1)
        n = -1;
    fclose(f);
    return n;
}

int64_t kd_mem_available_bytes(void)
{
    int64_t free = proc_kib("/proc/meminfo", "MemAvailable") * 1024;
    /* A container's limit; pages of files count as used there, which leaves less than there is. */
    int64_t most = number_in("/sys/fs/cgroup/memory.max"),
            used = number_in("/sys/fs/cgroup/memory.current");
    if (most < 0 || used < 0)
        return free;
    int64_t left = most > used ? most - used : 0;
    return left < free ? left : free;
}

void kd_mem_keep_little(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, NOTED_BYTES);
    mallopt(M_TRIM_THRESHOLD, 4 * NOTED_BYTES);
#endif
}

void kd_mem_fail_nth(int64_t n)
{
    atomic_store(&fail_in, n);
}

int64_t kd_mem_live_bytes(void)
{
    return atomic_load(&live);
}

int64_t kd_mem_live_peak_bytes(void)
{
    return atomic_load(&live_peak);
}
