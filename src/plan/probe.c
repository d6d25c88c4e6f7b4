#include "plan/probe.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/show.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double gib = 1073741824.0;
static const double each_s = 0.25;

enum { PIECE = 1 << 20, TILES = 4, ROWS = 1536, COLS = 1792, TOKENS = 256, DISK_READ = 8 << 20 };
static const int64_t pool_max = 256 << 20, disk_max = 512 << 20, disk_make = 128 << 20;

/* Work for the pool: a buffer, inputs and outputs. */
struct work {
    const struct kd_run *run;
    uint8_t *data;
    int64_t bytes;
    float *x, *y;
    uint16_t *sign, *states;
    uint8_t *scale;
    void **scratch;
    uint64_t sum;
    struct kd_mat m;
    int64_t stride, next, tokens;
};

static void system_memory(struct kd_probe *p)
{
    struct kd_buf b;
    struct kd_err err;
    p->ram_gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / gib;
    p->ram_free_gib = p->ram_gib;
    kd_buf_init(&b, 1 << 20);
    if (!kd_file_read(&b, "/proc/meminfo", 1 << 20, &err) && b.data) {
        const char *at = strstr(b.data, "MemAvailable:");
        if (at)
            p->ram_free_gib = (double)strtoll(at + 13, NULL, 10) * 1024 / gib;
    }
    kd_buf_release(&b);
}

static void cpu_name(struct kd_probe *p)
{
    struct kd_buf b;
    struct kd_err err;
    snprintf(p->cpu, sizeof p->cpu, "unknown CPU");
    kd_buf_init(&b, 8 << 20);
    if (!kd_file_read(&b, "/proc/cpuinfo", 8 << 20, &err) && b.data) {
        const char *at = strstr(b.data, "model name");
        at = at ? strchr(at, ':') : NULL;
        if (at) {
            char line[96];
            snprintf(line, sizeof line, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
            kd_show_text(p->cpu, sizeof p->cpu, line);
        }
    }
    kd_buf_release(&b);
}

/* Best of `work` over runs until each_s has passed: units a second. */
static double best_rate(struct work *w, int (*work)(struct work *, struct kd_err *), double units,
                        struct kd_err *err)
{
    double best = 0, spent = 0;
    for (int i = 0; i < 3 || spent < each_s; i++) {
        double start = kd_clock_s();
        if (work(w, err))
            return -1;
        double took = kd_clock_s() - start;
        spent += took;
        if (i && units / took > best)
            best = units / took;
    }
    return best;
}

static int read_all(struct work *w, struct kd_err *err)
{
    (void)err;
    w->sum ^= kd_pool_read(w->run->pool, w->data, w->bytes);
    return 0;
}

static int multiply(struct work *w, struct kd_err *err)
{
    struct kd_mat m = w->m;
    if ((w->next + 1) * w->stride > w->bytes)
        w->next = 0;
    m.data = w->data + w->next++ * w->stride;
    return kd_mat_mul(w->run, &m, w->x, COLS, w->tokens, w->y, ROWS, err);
}

static void search_item(void *ctx, int64_t i, int worker)
{
    struct work *w = ctx;
    (void)i;
    w->run->kern->trellis_search(w->x, TILES, kd_rate_from16(32), KD_CB_MUL1, 128,
                                 w->states + (int64_t)worker * TILES * KD_TILE_WEIGHTS,
                                 w->scratch[worker]);
}

static int search(struct work *w, struct kd_err *err)
{
    (void)err;
    kd_pool_run(w->run->pool, 4 * (int64_t)kd_pool_threads(w->run->pool), search_item, w);
    return 0;
}

static void update_item(void *ctx, int64_t i, int worker)
{
    struct work *w = ctx;
    (void)worker;
    w->run->kern->gemm_tn(w->x, COLS, w->x + 96, COLS, TOKENS, 96, 96, w->y + i * 96 * 96, 96);
}

static int update(struct work *w, struct kd_err *err)
{
    (void)err;
    kd_pool_run(w->run->pool, 16, update_item, w);
    return 0;
}

static void set_type(struct work *w, int type)
{
    w->m = (struct kd_mat){.rows = ROWS, .cols = COLS, .ld = COLS, .type = KD_MAT_BF16};
    w->next = 0;
    if (type == 1) {
        w->m.type = KD_MAT_MXFP4;
        w->m.ld = COLS / 2;
        w->m.scale = w->scale;
        w->m.ld_scale = COLS / 32;
    } else if (type == 2) {
        w->m.type = KD_MAT_EXL3;
        w->m.ld = ROWS / 16;
        w->m.rows_padded = ROWS;
        w->m.cols_padded = COLS;
        w->m.suh = w->m.svh = w->sign;
        w->m.rate = kd_rate_from16(32);
        w->m.cb = KD_CB_MUL1;
    }
    w->stride = (kd_mat_bytes(&w->m) + 63) / 64 * 64;
}

static int kernels(struct kd_probe *p, struct work *w, struct kd_err *err)
{
    double weights = (double)ROWS * COLS;
    for (int type = 0; type < 3; type++) {
        set_type(w, type);
        w->tokens = 1;
        p->decode_gweights[type] = best_rate(w, multiply, weights * 1e-9, err);
        w->tokens = TOKENS;
        p->mul_gmacs[type] = best_rate(w, multiply, weights * TOKENS * 1e-9, err);
        if (p->decode_gweights[type] < 0 || p->mul_gmacs[type] < 0)
            return -1;
    }
    p->tiles_s = best_rate(w, search, 4.0 * kd_pool_threads(w->run->pool) * TILES, err);
    p->fma_gflops = best_rate(w, update, 16 * 2.0 * TOKENS * 96 * 96 * 1e-9, err);
    return 0;
}

static int work_open(struct work *w, const struct kd_run *run, double free_gib, int *made,
                     struct kd_err *err)
{
    int threads = kd_pool_threads(run->pool);
    double part = free_gib / 8 * gib;
    w->run = run;
    w->bytes = part < (double)pool_max ? (int64_t)part / PIECE * PIECE : pool_max;
    if (w->bytes < (int64_t)16 << 20)
        return kd_fail(err, KD_ENOMEM, "too little free memory to measure anything");
    if (kd_mem_new(&w->data, w->bytes, 1, "buffer to read", err) ||
        kd_mem_new(&w->x, (int64_t)TOKENS * COLS, sizeof *w->x, "inputs", err) ||
        kd_mem_zero(&w->y, (int64_t)TOKENS * ROWS, sizeof *w->y, "outputs", err) ||
        kd_mem_new(&w->sign, COLS, sizeof *w->sign, "signs", err) ||
        kd_mem_new(&w->scale, (int64_t)ROWS * COLS / 32, 1, "scales", err) ||
        kd_mem_new(&w->states, (int64_t)threads * TILES * KD_TILE_WEIGHTS, sizeof *w->states,
                   "states", err) ||
        kd_mem_zero(&w->scratch, threads, sizeof *w->scratch, "scratch", err))
        return -1;
    for (; *made < threads; ++*made)
        if (kd_mem_new(&w->scratch[*made], 1, (int64_t)kd_trellis_scratch_bytes(), "search", err))
            return -1;
    for (int64_t i = 0; i + 2 <= w->bytes; i += 2) {
        uint16_t v = (uint16_t)((kd_rand_u64(31, (uint64_t)i) & 0x807f) | 0x3c00);
        memcpy(w->data + i, &v, 2);
    }
    memset(w->scale, 120, (size_t)ROWS * COLS / 32);
    for (int64_t i = 0; i < COLS; i++)
        w->sign[i] = i & 1 ? 0x3c00 : 0xbc00;
    for (int64_t i = 0; i < (int64_t)TOKENS * COLS; i++)
        w->x[i] = (float)(kd_rand_unit(32, (uint64_t)i) * 3.4 - 1.7);
    return 0;
}

static void work_close(struct work *w, int made)
{
    for (int i = 0; i < made; i++)
        kd_mem_free(w->scratch[i]);
    kd_mem_free(w->scratch);
    kd_mem_free(w->states);
    kd_mem_free(w->scale);
    kd_mem_free(w->sign);
    kd_mem_free(w->y);
    kd_mem_free(w->x);
    kd_mem_free(w->data);
}

/* The largest plain file of a folder; 0 bytes when there is none. */
static int64_t largest(const char *dir, char *path, size_t size)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    struct stat st;
    char name[4096];
    int64_t most = 0;
    while (d && (e = readdir(d))) {
        if (kd_path_join(name, sizeof name, dir, e->d_name, NULL) || stat(name, &st) ||
            !S_ISREG(st.st_mode) || (int64_t)st.st_size <= most)
            continue;
        most = (int64_t)st.st_size;
        snprintf(path, size, "%s", name);
    }
    if (d)
        closedir(d);
    return most;
}

struct disk {
    int fd;
    uint8_t *buffer; /* [threads][DISK_READ] */
    int64_t bytes;
    bool failed;
};

static void disk_item(void *ctx, int64_t i, int worker)
{
    struct disk *d = ctx;
    if (pread(d->fd, d->buffer + (int64_t)worker * DISK_READ, DISK_READ, i * DISK_READ) <= 0)
        d->failed = true;
}

/* Reads past the page cache, so that the drive is measured and not memory. */
static void disk_read(struct kd_probe *p, const struct kd_run *run, int fd, int64_t bytes)
{
    struct disk d = {.fd = fd, .bytes = bytes < disk_max ? bytes : disk_max};
    int64_t items = d.bytes / DISK_READ;
    int flags = fcntl(fd, F_GETFL);
    bool direct = flags >= 0 && !fcntl(fd, F_SETFL, flags | O_DIRECT);
    void *block = NULL;
    if (!direct)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (!items || posix_memalign(&block, 4096, (size_t)kd_pool_threads(run->pool) * DISK_READ)) {
        snprintf(p->disk_why, sizeof p->disk_why, "nothing of 8 MiB or more to read there");
        return;
    }
    d.buffer = block;
    double start = kd_clock_s();
    kd_pool_run(run->pool, items, disk_item, &d);
    double took = kd_clock_s() - start;
    free(block);
    if (d.failed)
        snprintf(p->disk_why, sizeof p->disk_why, "reading failed");
    else
        p->disk_gb_s = (double)(items * DISK_READ) / took * 1e-9;
}

/* A file of our own where the folder has none large enough. Returns its descriptor, no name left.
 */
static int made_file(const char *dir, struct kd_probe *p)
{
    char name[4096];
    uint8_t *block;
    if (snprintf(name, sizeof name, "%s/.kondense-probe-XXXXXX", dir) >= (int)sizeof name ||
        kd_mem_zero(&block, PIECE, 1, "file to read", NULL))
        return -1;
    int fd = mkstemp(name);
    if (fd < 0) {
        snprintf(p->disk_why, sizeof p->disk_why, "no file can be made there");
        kd_mem_free(block);
        return -1;
    }
    unlink(name);
    bool good = true;
    for (int64_t at = 0; good && at < disk_make; at += PIECE) {
        for (int64_t i = 0; i < PIECE; i += 8) {
            uint64_t v = kd_rand_u64(33, (uint64_t)(at + i));
            memcpy(block + i, &v, 8);
        }
        good = pwrite(fd, block, PIECE, at) == PIECE;
    }
    kd_mem_free(block);
    if (good && !fsync(fd))
        return fd;
    snprintf(p->disk_why, sizeof p->disk_why, "a file of 128 MiB could not be written there");
    close(fd);
    return -1;
}

static void disk(struct kd_probe *p, const struct kd_run *run, const char *dir)
{
    char path[4096];
    if (!dir) {
        snprintf(p->disk_why, sizeof p->disk_why, "no folder given");
        return;
    }
    kd_show_text(p->disk_path, sizeof p->disk_path, dir);
    p->disk_free_gib = (double)kd_disk_free_bytes(dir) / gib;
    int64_t bytes = largest(dir, path, sizeof path);
    int fd;
    if (bytes >= 4 * DISK_READ) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            snprintf(p->disk_why, sizeof p->disk_why, "its largest file cannot be read");
    } else {
        fd = made_file(dir, p);
        bytes = disk_make;
    }
    if (fd < 0)
        return;
    disk_read(p, run, fd, bytes);
    close(fd);
}

int kd_probe_make(struct kd_probe *p, const struct kd_run *run, const char *path,
                  struct kd_err *err)
{
    struct work w = {.run = run};
    int made = 0;
    double start = kd_clock_s();
    memset(p, 0, sizeof *p);
    p->threads = kd_pool_threads(run->pool);
    p->isa = run->kern->name;
    if (getloadavg(&p->load, 1) != 1)
        p->load = 0;
    cpu_name(p);
    system_memory(p);
    disk(p, run, path);
    kd_probe_gpu(&p->gpu);
    int rc = work_open(&w, run, p->ram_free_gib, &made, err);
    if (!rc) {
        p->ram_gb_s = best_rate(&w, read_all, (double)w.bytes * 1e-9, err);
        rc = kernels(p, &w, err);
    }
    volatile uint64_t keep = w.sum;
    (void)keep;
    work_close(&w, made);
    p->seconds = kd_clock_s() - start;
    return rc;
}

static void set(struct kd_sourced *n, double v, const char *source)
{
    n->v = v;
    snprintf(n->source, sizeof n->source, "%s", source);
}

static void add_tier(struct kd_machine *m, enum kd_mem_kind kind, double size, double gb_s,
                     double reserve, const char *why)
{
    struct kd_machine_tier *t = &m->tier[m->tiers++];
    t->kind = kind;
    set(&t->gib, size, "measured here");
    set(&t->gb_s, gb_s, "measured here");
    set(&t->reserve, reserve, why);
}

void kd_probe_machine(struct kd_machine *m, const struct kd_probe *p)
{
    /* What a thread decodes at 2 bits may be less than what memory gives. */
    double decode = p->decode_gweights[2] * 2 / 8 * 1.0048;
    bool slow = decode < p->ram_gb_s;
    memset(m, 0, sizeof *m);
    snprintf(m->key, sizeof m->key, "this");
    snprintf(m->title, sizeof m->title, "this machine: %.60s, %d threads", p->cpu, p->threads);
    m->count = 1;
    m->supported = true;
    if (p->gpu.there)
        add_tier(m, KD_MEM_HBM, p->gpu.gib, p->gpu.gb_s, p->gpu.gib - p->gpu.free_gib + 1,
                 "in use now, and 1 for work, estimate");
    double used = p->ram_gib - p->ram_free_gib;
    add_tier(m, KD_MEM_RAM, p->ram_gib, slow ? decode : p->ram_gb_s,
             used + 1 < p->ram_gib ? used + 1 : used, "in use now, and 1 for work, estimate");
    if (slow)
        snprintf(m->tier[m->tiers - 1].gb_s.source, KD_SOURCE_BYTES,
                 "measured here: products at 2 bits; a plain reader gets %.1f GB/s", p->ram_gb_s);
    if (p->disk_gb_s > 0 && p->disk_free_gib > 1) {
        double speed = p->disk_gb_s < m->tier[m->tiers - 1].gb_s.v ? p->disk_gb_s
                                                                   : m->tier[m->tiers - 1].gb_s.v;
        add_tier(m, KD_MEM_NVME, p->disk_free_gib, speed, 0, "free space only");
    }
    set(&m->tflops, 2 * p->mul_gmacs[2] * 1e-3, "measured here: products of 256 tokens at 2 bits");
    set(&m->fp32_tflops, p->fma_gflops * 1e-3, "measured here: rank updates");
    set(&m->tiles_s, p->tiles_s, "measured here, 2 bits");
    set(&m->link_gb_s, 0, "not asked");
    set(&m->collective_us, 0, "not asked");
    set(&m->watts, 0, "not asked");
    set(&m->price_usd, 0, "not asked");
    if (p->gpu.there)
        snprintf(m->note, sizeof m->note,
                 "the GPU's memory is counted; products and searches are those of the CPU");
}
