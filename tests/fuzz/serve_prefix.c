/* A file of the prefix cache with any of its bytes changed and cut anywhere, its checksums made
 * right or not: refused and gone, or a state of the tokens asked for.
 *
 * The input: a byte (1: the header's checksum is made right, 2: the payload's), the file's length
 * in four bytes (0: whole), then five bytes for each change: place and value. */
#include "base/assert.h"
#include "base/hash.h"
#include "fuzz/files.h"
#include "fuzz/nano.h"
#include "serve/prefix_int.h"

#include <semaphore.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Layout: docs/formats/prefix-cache.md. */
enum { COUNT = KD_K3_PAGE, AT_PAYLOAD_HASH = 176, AT_HEADER_HASH = 184, HEADER = 192 };
static const char name[] = "0000000000000001-64.kdprefix";

static struct kd_k3_model *model;
static char fingerprint[65];
static int32_t ids[COUNT];
static uint8_t *whole, *file;
static int64_t whole_bytes;
static sem_t loads;

static int zeros(void *ctx, void *to, int64_t n, struct kd_err *err)
{
    (void)ctx;
    (void)err;
    memset(to, 0, (size_t)n);
    return 0;
}

static void loaded(void *ctx)
{
    (void)ctx;
    sem_post(&loads);
}

static struct kd_prefix_disk *open_disk(void)
{
    struct kd_prefix_options o = {
        .dir = fuzz_dir(), .disk_bytes = 1 << 30, .disk_min_tokens = 1, .loaded = loaded};
    struct kd_prefix_disk *d;
    struct kd_err err;
    KD_ASSERT(!kd_prefix_disk_open(&d, model, fingerprint, &o, &err));
    return d;
}

static struct kd_prefix_entry *entry(void)
{
    const struct kd_prefix_key key = {.owner = "owner"};
    struct kd_prefix_entry *e;
    struct kd_err err;
    KD_ASSERT(!kd_prefix_entry_new(&e, 1, &key, ids, COUNT, &err));
    return e;
}

/* A file as the cache writes it, once. */
static void begin(void)
{
    static struct kd_kern kern;
    static struct kd_run run = {.kern = &kern};
    struct kd_err err;
    struct kd_map m;
    char dir[4096], path[128];
    KD_ASSERT(!kd_kern_pick(&kern, &err) && !kd_k3_open(&model, fuzz_nano(dir), &run, NULL, &err) &&
              !kd_k3_fingerprint(model, fingerprint, &err) && !sem_init(&loads, 0, 0));
    struct kd_prefix_entry *e = entry();
    KD_ASSERT(!kd_k3_seq_read(&e->seq, model, COUNT, zeros, NULL, &err));
    struct kd_prefix_disk *d = open_disk();
    kd_prefix_disk_save(d, e);
    kd_prefix_disk_close(d);
    kd_prefix_entry_drop(e);
    snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
    KD_ASSERT(!kd_file_map(&m, path, &err) && m.size_bytes > HEADER);
    whole_bytes = m.size_bytes;
    whole = malloc((size_t)whole_bytes);
    file = malloc((size_t)whole_bytes);
    KD_ASSERT(whole && file);
    memcpy(whole, m.data, (size_t)whole_bytes);
    kd_map_release(&m);
}

struct payload {
    int64_t at, bytes;
    uint64_t hash;
};

static int hash_run(void *ctx, void *to, int64_t n, struct kd_err *err)
{
    struct payload *p = ctx;
    if (n > p->bytes - p->at)
        return kd_fail(err, KD_ECORRUPT, "short");
    memcpy(to, file + p->at, (size_t)n);
    p->hash = kd_xxh64(to, (size_t)n, p->hash);
    p->at += n;
    return 0;
}

static void make_right(int which, int64_t bytes)
{
    struct payload p = {HEADER + sizeof ids, bytes, kd_xxh64(ids, sizeof ids, 0)};
    struct kd_k3_seq *seq;
    struct kd_err err;
    if (which & 2 && bytes > p.at && !kd_k3_seq_read(&seq, model, COUNT, hash_run, &p, &err)) {
        memcpy(file + AT_PAYLOAD_HASH, &p.hash, 8);
        kd_k3_seq_close(seq);
    }
    if (which & 1 && bytes >= HEADER) {
        uint64_t hash = kd_xxh64(file, AT_HEADER_HASH, 0);
        memcpy(file + AT_HEADER_HASH, &hash, 8);
    }
}

static int64_t make_file(const uint8_t *data, size_t bytes)
{
    uint32_t n, at;
    memcpy(&n, data + 1, 4);
    int64_t length = n ? n % (whole_bytes + 1) : whole_bytes;
    memcpy(file, whole, (size_t)whole_bytes);
    for (size_t i = 5; i + 5 <= bytes; i += 5) {
        memcpy(&at, data + i, 4);
        file[at % whole_bytes] = data[i + 4];
    }
    make_right(data[0], length);
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!model)
        begin();
    if (bytes < 5)
        return 0;
    int64_t length = make_file(data, bytes), through;
    const char *path = fuzz_file(name, file, (size_t)length);
    struct kd_prefix_disk *d = open_disk();
    struct kd_prefix_figures f;
    KD_ASSERT(kd_prefix_disk_load(d, entry()));
    while (sem_wait(&loads))
        ;
    struct kd_prefix_entry *e = kd_prefix_disk_poll(d, &through);
    kd_prefix_disk_figures(d, &f);
    KD_ASSERT(through == 1 && f.disk_hits == (e != NULL));
    if (e) {
        KD_ASSERT(length == whole_bytes && kd_k3_seq_bytes(e->seq) > 0);
        KD_ASSERT(data[0] & 3 || !memcmp(file, whole, (size_t)whole_bytes));
        KD_ASSERT(!memcmp(file + HEADER, ids, sizeof ids));
    } else {
        KD_ASSERT(f.disk_refused > 0 && !kd_file_exists(path));
    }
    kd_prefix_entry_drop(e);
    kd_prefix_disk_close(d);
    return 0;
}
