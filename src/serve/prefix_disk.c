/* Files of the prefix cache. Layout: docs/formats/prefix-cache.md. */
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/prefix_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, SAVES_MAX = 64, NAME_MAX_BYTES = 64 };
static const char magic[8] = "KDPREFX";

/* All little-endian, as every machine this runs on has it. */
struct header {
    char magic[8];
    uint32_t version, header_bytes;
    char model[64], owner[64];
    int64_t count, experts_used;
    double expert_mass;
    int64_t state_bytes;
    uint64_t payload_hash; /* over the ids, then over each run of the state, each seeded by the one
                              before */
    uint64_t header_hash;  /* over all before it */
};

struct file {
    uint64_t hash;
    int64_t count, bytes;
    int64_t used; /* order of last use */
    bool ours;    /* this model's, this format's */
    struct file *next;
};

struct job {
    struct kd_prefix_entry *e;
    int64_t ticket;
    struct job *next;
};
struct jobs {
    struct job *first, **end;
    int64_t count;
};

struct kd_prefix_disk {
    const struct kd_k3_model *m;
    char model[65], dir[3900];
    int64_t budget, min_tokens;
    void (*loaded)(void *ctx);
    void *ctx;
    int dir_lock;
    pthread_t thread;
    bool started, stop;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct jobs loads, saves;
    struct kd_prefix_entry *done; /* read, not yet polled */
    int64_t tickets, through, clock;
    struct file *files;
    struct kd_prefix_figures fig;
};

static void path_of(const struct kd_prefix_disk *d, const struct file *f, char out[4096])
{
    snprintf(out, 4096, "%s/%016" PRIx64 "-%" PRId64 ".kdprefix", d->dir, f->hash, f->count);
}

static void jobs_add(struct jobs *q, struct job *j)
{
    j->next = NULL;
    *(q->first ? q->end : &q->first) = j;
    q->end = &j->next;
    q->count++;
}

static struct job *jobs_take(struct jobs *q)
{
    struct job *j = q->first;
    if (j) {
        q->first = j->next;
        q->count--;
    }
    return j;
}

static struct file *file_of(struct kd_prefix_disk *d, uint64_t hash, int64_t count)
{
    struct file *f = d->files;
    while (f && (f->hash != hash || f->count != count))
        f = f->next;
    return f;
}

/* Under the lock. */
static void forget(struct kd_prefix_disk *d, struct file *f, bool remove_it)
{
    struct file **at = &d->files;
    char path[4096];
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    d->fig.disk_bytes -= f->bytes;
    d->fig.disk_entries--;
    path_of(d, f, path);
    if (remove_it && unlink(path) && errno != ENOENT)
        kd_log(KD_LOG_WARN, "serve", "msg=\"cannot remove a cached prefix\" path=%s", path);
    kd_mem_free(f);
}

static void make_room(struct kd_prefix_disk *d, int64_t bytes)
{
    while (d->files && d->fig.disk_bytes + bytes > d->budget) {
        struct file *old = d->files;
        for (struct file *f = old->next; f; f = f->next)
            old = f->used < old->used ? f : old;
        forget(d, old, true);
    }
}

static int add_file(struct kd_prefix_disk *d, uint64_t hash, int64_t count, int64_t bytes,
                    int64_t used, bool ours)
{
    struct file *f = file_of(d, hash, count);
    if (f)
        forget(d, f, false);
    if (kd_mem_zero(&f, 1, sizeof *f, "cached file", NULL))
        return -1;
    *f = (struct file){hash, count, bytes, used, ours, d->files};
    d->files = f;
    d->fig.disk_bytes += bytes;
    d->fig.disk_entries++;
    return 0;
}

/* Why a header is of no use here, or NULL. */
static const char *header_fault(const struct kd_prefix_disk *d, const struct header *h)
{
    if (memcmp(h->magic, magic, sizeof magic))
        return "not a cached prefix";
    if (h->version != VERSION || h->header_bytes != sizeof *h)
        return "another version of the format";
    if (kd_xxh64(h, offsetof(struct header, header_hash), 0) != h->header_hash)
        return "damaged header";
    if (memcmp(h->model, d->model, sizeof h->model))
        return "of another model";
    if (h->count <= 0 || h->count % KD_K3_PAGE || h->count > kd_k3_config(d->m)->context)
        return "impossible length";
    return NULL;
}

static int read_all(FILE *f, void *data, int64_t bytes, struct kd_err *err)
{
    if (fread(data, 1, (size_t)bytes, f) != (size_t)bytes)
        return kd_fail(err, KD_ECORRUPT, "a cached prefix is cut short");
    return 0;
}

/* Every file of ours in the folder, oldest first by its time of last use. */
static void scan(struct kd_prefix_disk *d)
{
    DIR *dir = opendir(d->dir);
    struct dirent *de;
    while (dir && (de = readdir(dir))) { // NOLINT(concurrency-mt-unsafe): one stream, one thread
        uint64_t hash;
        int64_t count;
        char path[4096], name[NAME_MAX_BYTES];
        struct stat st;
        struct header h;
        if (sscanf(de->d_name, "%16" SCNx64 "-%" SCNd64 ".", &hash, &count) != 2)
            continue;
        snprintf(name, sizeof name, "%016" PRIx64 "-%" PRId64 ".kdprefix", hash, count);
        snprintf(path, sizeof path, "%s/%s", d->dir, name);
        if (strcmp(name, de->d_name) || stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        FILE *f = fopen(path, "rbe");
        bool ours =
            f && !read_all(f, &h, sizeof h, NULL) && !header_fault(d, &h) && h.count == count;
        if (f)
            fclose(f);
        d->fig.disk_refused += !ours;
        if (add_file(d, hash, count, st.st_size, (int64_t)st.st_mtime, ours))
            break;
        d->clock = st.st_mtime > d->clock ? st.st_mtime : d->clock;
    }
    if (dir)
        closedir(dir);
    make_room(d, 0);
}

struct sink {
    struct kd_outfile *out;
    uint64_t hash;
};

static int hash_run(void *ctx, const void *data, int64_t bytes, struct kd_err *err)
{
    struct sink *s = ctx;
    (void)err;
    s->hash = kd_xxh64(data, (size_t)bytes, s->hash);
    return 0;
}

static int write_run(void *ctx, const void *data, int64_t bytes, struct kd_err *err)
{
    struct sink *s = ctx;
    return kd_out_write(s->out, data, bytes, err);
}

static int write_entry(const struct kd_prefix_disk *d, const struct kd_prefix_entry *e,
                       const char *path, struct kd_err *err)
{
    struct kd_outfile out;
    int64_t ids = e->count * (int64_t)sizeof *e->ids;
    struct header h = {.version = VERSION,
                       .header_bytes = sizeof h,
                       .count = e->count,
                       .experts_used = e->key.experts_used,
                       .expert_mass = e->key.expert_mass,
                       .state_bytes = kd_k3_seq_bytes(e->seq)};
    struct sink s = {&out, kd_xxh64(e->ids, (size_t)ids, 0)};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.model, d->model, sizeof h.model);
    memcpy(h.owner, e->key.owner, sizeof h.owner);
    if (kd_k3_seq_write(e->seq, hash_run, &s, err))
        return -1;
    h.payload_hash = s.hash;
    h.header_hash = kd_xxh64(&h, offsetof(struct header, header_hash), 0);
    if (kd_out_open(&out, path, err))
        return -1;
    if (fchmod(out.fd, 0600)) {
        kd_fail_sys(err, "cannot close '%s' to others", path);
        kd_out_abort(&out);
        return -1;
    }
    if (kd_out_write(&out, &h, sizeof h, err) || kd_out_write(&out, e->ids, ids, err) ||
        kd_k3_seq_write(e->seq, write_run, &s, err)) {
        kd_out_abort(&out);
        return -1;
    }
    return kd_out_commit(&out, err);
}

static void save(struct kd_prefix_disk *d, struct kd_prefix_entry *e)
{
    struct file f = {.hash = e->hash, .count = e->count};
    char path[4096];
    struct kd_err err;
    int64_t bytes = (int64_t)sizeof(struct header) + e->count * (int64_t)sizeof *e->ids +
                    kd_k3_seq_bytes(e->seq);
    pthread_mutex_lock(&d->lock);
    bool skip = bytes > d->budget || file_of(d, e->hash, e->count);
    if (!skip)
        make_room(d, bytes);
    pthread_mutex_unlock(&d->lock);
    if (skip)
        return;
    path_of(d, &f, path);
    int rc = write_entry(d, e, path, &err);
    pthread_mutex_lock(&d->lock);
    if (!rc && !add_file(d, e->hash, e->count, bytes, ++d->clock, true))
        d->fig.disk_written++;
    pthread_mutex_unlock(&d->lock);
    if (rc)
        kd_log(KD_LOG_WARN, "serve", "msg=\"a prefix was not written: %s\"", err.msg);
}

struct source {
    FILE *f;
    uint64_t hash;
};

static int read_run(void *ctx, void *data, int64_t bytes, struct kd_err *err)
{
    struct source *s = ctx;
    if (read_all(s->f, data, bytes, err))
        return -1;
    s->hash = kd_xxh64(data, (size_t)bytes, s->hash);
    return 0;
}

/* Fills e->seq from the file. The file's ids and owner must be those asked for. */
static int read_entry(const struct kd_prefix_disk *d, struct kd_prefix_entry *e, FILE *f,
                      struct kd_err *err)
{
    struct header h;
    struct source s = {.f = f};
    if (read_all(f, &h, sizeof h, err))
        return -1;
    const char *fault = header_fault(d, &h);
    if (fault)
        return kd_fail(err, KD_ECORRUPT, "%s", fault);
    if (h.count != e->count || h.experts_used != e->key.experts_used ||
        h.expert_mass != e->key.expert_mass || memcmp(h.owner, e->key.owner, sizeof h.owner))
        return kd_fail(err, KD_ECORRUPT, "not what its name says");
    for (int64_t at = 0; at < h.count; at += KD_K3_PAGE) {
        int32_t block[KD_K3_PAGE];
        if (read_all(f, block, sizeof block, err))
            return -1;
        if (memcmp(block, e->ids + at, sizeof block))
            return kd_fail(err, KD_ECORRUPT, "of other tokens");
    }
    s.hash = kd_xxh64(e->ids, (size_t)h.count * sizeof *e->ids, 0);
    if (kd_k3_seq_read(&e->seq, d->m, h.count, read_run, &s, err))
        return -1;
    if (kd_k3_seq_bytes(e->seq) != h.state_bytes || s.hash != h.payload_hash)
        return kd_fail(err, KD_ECORRUPT, "checksum differs");
    return 0;
}

static void load(struct kd_prefix_disk *d, struct kd_prefix_entry *e)
{
    struct file name = {.hash = e->hash, .count = e->count};
    char path[4096];
    struct kd_err err;
    path_of(d, &name, path);
    FILE *in = fopen(path, "rbe");
    int rc = in ? read_entry(d, e, in, &err) : kd_fail_sys(&err, "cannot open");
    if (in)
        fclose(in);
    pthread_mutex_lock(&d->lock);
    struct file *f = file_of(d, e->hash, e->count);
    if (f && !rc) {
        f->used = ++d->clock;
        d->fig.disk_hits++;
    } else if (f && err.code != KD_ENOMEM) {
        d->fig.disk_refused++;
        forget(d, f, true);
    }
    pthread_mutex_unlock(&d->lock);
    if (rc)
        kd_log(KD_LOG_WARN, "serve", "msg=\"cached prefix refused: %s\" path=%s", err.msg, path);
    else if (utimensat(AT_FDCWD, path, NULL, 0))
        kd_log(KD_LOG_DEBUG, "serve", "msg=\"time of use not kept\" path=%s", path);
    if (rc && e->seq) {
        kd_k3_seq_close(e->seq);
        e->seq = NULL;
    }
}

/* One job; the lock is held at call and return. */
static void run_job(struct kd_prefix_disk *d, struct job *j, bool is_load)
{
    pthread_mutex_unlock(&d->lock);
    if (is_load)
        load(d, j->e);
    else
        save(d, j->e);
    bool keep = is_load && j->e->seq;
    if (!keep)
        kd_prefix_entry_drop(j->e);
    pthread_mutex_lock(&d->lock);
    if (keep) {
        j->e->next = d->done;
        d->done = j->e;
    }
    if (is_load) {
        d->through = j->ticket;
        pthread_mutex_unlock(&d->lock);
        d->loaded(d->ctx);
        pthread_mutex_lock(&d->lock);
    }
    kd_mem_free(j);
}

static void *disk_thread(void *ctx)
{
    struct kd_prefix_disk *d = ctx;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct job *j = jobs_take(&d->loads);
        if (j) {
            run_job(d, j, true);
            continue;
        }
        j = jobs_take(&d->saves);
        if (j) {
            run_job(d, j, false);
            continue;
        }
        if (d->stop)
            break;
        pthread_cond_wait(&d->work, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int kd_prefix_disk_open(struct kd_prefix_disk **out, const struct kd_k3_model *m,
                        const char *fingerprint, const struct kd_prefix_options *o,
                        struct kd_err *err)
{
    struct kd_prefix_disk *d;
    *out = NULL;
    if (strlen(o->dir) >= sizeof d->dir)
        return kd_fail(err, KD_EINVAL, "the cache folder's path is too long");
    if (kd_dir_make(o->dir, err) || kd_mem_zero(&d, 1, sizeof *d, "disk cache", err))
        return -1;
    d->m = m;
    memcpy(d->model, fingerprint, sizeof d->model);
    memcpy(d->dir, o->dir, strlen(o->dir) + 1);
    d->budget = o->disk_bytes;
    d->min_tokens = o->disk_min_tokens;
    d->loaded = o->loaded;
    d->ctx = o->ctx;
    d->dir_lock = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    if (kd_dir_lock(o->dir, &d->dir_lock, err)) {
        kd_prefix_disk_close(d);
        return kd_wrap(err, "cache folder '%s'", o->dir);
    }
    scan(d);
    if (pthread_create(&d->thread, NULL, disk_thread, d)) {
        kd_prefix_disk_close(d);
        return kd_fail(err, KD_ENOMEM, "no thread for the disk cache");
    }
    d->started = true;
    *out = d;
    return 0;
}

void kd_prefix_disk_close(struct kd_prefix_disk *d)
{
    if (!d)
        return;
    if (d->started) {
        pthread_mutex_lock(&d->lock);
        d->stop = true;
        pthread_cond_signal(&d->work);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    while (d->done) {
        struct kd_prefix_entry *e = d->done;
        d->done = e->next;
        kd_prefix_entry_drop(e);
    }
    while (d->files) {
        struct file *f = d->files;
        d->files = f->next;
        kd_mem_free(f);
    }
    if (d->dir_lock >= 0)
        close(d->dir_lock);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    kd_mem_free(d);
}

bool kd_prefix_disk_has(struct kd_prefix_disk *d, uint64_t hash, int64_t count)
{
    pthread_mutex_lock(&d->lock);
    const struct file *f = file_of(d, hash, count);
    bool has = f && f->ours;
    pthread_mutex_unlock(&d->lock);
    return has;
}

static int64_t post(struct kd_prefix_disk *d, struct jobs *q, struct kd_prefix_entry *e)
{
    struct job *j;
    if (kd_mem_zero(&j, 1, sizeof *j, "disk job", NULL))
        return 0;
    j->e = e;
    pthread_mutex_lock(&d->lock);
    int64_t ticket = j->ticket = q == &d->loads ? ++d->tickets : -1;
    bool full = q == &d->saves && q->count >= SAVES_MAX;
    if (!full)
        jobs_add(q, j);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    if (full)
        kd_mem_free(j);
    return full ? 0 : ticket;
}

void kd_prefix_disk_save(struct kd_prefix_disk *d, struct kd_prefix_entry *e)
{
    if (e->count < d->min_tokens)
        return;
    atomic_fetch_add(&e->refs, 1);
    if (!post(d, &d->saves, e))
        kd_prefix_entry_drop(e);
}

int64_t kd_prefix_disk_load(struct kd_prefix_disk *d, struct kd_prefix_entry *want)
{
    int64_t ticket = post(d, &d->loads, want);
    if (!ticket)
        kd_prefix_entry_drop(want);
    return ticket;
}

struct kd_prefix_entry *kd_prefix_disk_poll(struct kd_prefix_disk *d, int64_t *through)
{
    pthread_mutex_lock(&d->lock);
    struct kd_prefix_entry *e = d->done;
    d->done = NULL;
    *through = d->through;
    pthread_mutex_unlock(&d->lock);
    return e;
}

void kd_prefix_disk_figures(struct kd_prefix_disk *d, struct kd_prefix_figures *f)
{
    pthread_mutex_lock(&d->lock);
    f->disk_bytes = d->fig.disk_bytes;
    f->disk_entries = d->fig.disk_entries;
    f->disk_hits = d->fig.disk_hits;
    f->disk_written = d->fig.disk_written;
    f->disk_refused = d->fig.disk_refused;
    pthread_mutex_unlock(&d->lock);
}
