#include "serve/said.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/jtree.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUCKETS = 4096, MESSAGE_BYTES_MAX = 512 << 20, VERSION = 1, GROWN = 4 };
enum { KEY_BYTES = 64, SUM_BYTES = sizeof(uint64_t) };
static const char magic[8] = "KDSAID";

/* The file: this, then a record for each answer. Little-endian, as every machine this runs on. */
struct header {
    char magic[8];
    uint32_t version, header_bytes;
    char model[64];
    uint64_t hash; /* of all before it */
};
struct record {
    char key[KEY_BYTES];
    int64_t count; /* then so many ids, then the hash of both */
};

struct entry {
    struct entry *next; /* of its bucket */
    struct entry *older, *newer;
    int64_t count;
    char key[65];
    int32_t id[];
};

struct kd_said {
    pthread_mutex_t lock;
    struct entry *bucket[BUCKETS];
    struct entry *newest, *oldest;
    int64_t bytes, max_bytes;
    int fd; /* of the file, or -1 */
    int64_t file_bytes;
    char path[4096], model[65];
};

int kd_said_open(struct kd_said **out, int64_t max_bytes, struct kd_err *err)
{
    struct kd_said *s;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "answers", err))
        return -1;
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
    s->fd = -1;
    *out = s;
    return 0;
}

/* A message: every part with its length before it, so that no two make the same bytes. */

static void add(struct kd_said_message *m, const char *text, size_t bytes)
{
    kd_buf_printf(&m->b, "%zu:", bytes);
    kd_buf_add(&m->b, text, bytes);
}

void kd_said_begin(struct kd_said_message *m, const char *owner, bool thinking)
{
    kd_buf_init(&m->b, MESSAGE_BYTES_MAX);
    add(m, owner, strlen(owner));
    add(m, thinking ? "t" : "r", 1);
}

void kd_said_text(struct kd_said_message *m, const char *text, size_t bytes)
{
    add(m, text, bytes);
}

void kd_said_call(struct kd_said_message *m, const char *id, const char *name, const char *args,
                  size_t bytes)
{
    struct kd_jtree t;
    struct kd_buf compact;
    add(m, id, strlen(id));
    add(m, name, strlen(name));
    if (kd_jtree_parse(&t, args, bytes, NULL)) {
        add(m, args, bytes);
        return;
    }
    kd_buf_init(&compact, MESSAGE_BYTES_MAX);
    if (kd_jtree_dump(&compact, &t, kd_jtree_root(&t), KD_JSTYLE_COMPACT, NULL) || compact.failed)
        m->b.failed = true;
    else
        add(m, compact.data, compact.size_bytes);
    kd_buf_release(&compact);
    kd_jtree_release(&t);
}

int kd_said_key(struct kd_said_message *m, char key[65])
{
    int rc = m->b.failed || kd_sha256_of(m->b.data, m->b.size_bytes, key, NULL) ? -1 : 0;
    kd_buf_release(&m->b);
    return rc;
}

/* The table. */

static struct entry **bucket_of(struct kd_said *s, const char key[65])
{
    unsigned h = 0;
    for (int i = 0; i < 8; i++)
        h = h * 16 + (unsigned)(key[i] <= '9' ? key[i] - '0' : key[i] - 'a' + 10);
    return &s->bucket[h % BUCKETS];
}

/* Where the pointer to it lies, or NULL. */
static struct entry **find(struct kd_said *s, const char key[65])
{
    for (struct entry **e = bucket_of(s, key); *e; e = &(*e)->next)
        if (!strcmp((*e)->key, key))
            return e;
    return NULL;
}

static int64_t size_of(int64_t count)
{
    return (int64_t)sizeof(struct entry) + count * (int64_t)sizeof(int32_t);
}

static void unlink_age(struct kd_said *s, struct entry *e)
{
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
}

static void make_newest(struct kd_said *s, struct entry *e)
{
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static void drop(struct kd_said *s, struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    unlink_age(s, e);
    s->bytes -= size_of(e->count);
    kd_mem_free(e);
}

void kd_said_close(struct kd_said *s)
{
    if (!s)
        return;
    while (s->oldest)
        drop(s, find(s, s->oldest->key));
    if (s->fd >= 0)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    kd_mem_free(s);
}

/* Under the lock. The new entry, or NULL. */
static struct entry *put(struct kd_said *s, const char key[KEY_BYTES], const void *ids,
                         int64_t count)
{
    struct entry *e;
    if (count < 1 || count > s->max_bytes / (int64_t)sizeof(int32_t) ||
        size_of(count) > s->max_bytes || kd_mem_zero(&e, 1, size_of(count), "answer", NULL))
        return NULL;
    e->count = count;
    memcpy(e->key, key, KEY_BYTES);
    memcpy(e->id, ids, (size_t)count * sizeof *e->id);
    struct entry **old = find(s, e->key);
    if (old)
        drop(s, old);
    e->next = *bucket_of(s, e->key);
    *bucket_of(s, e->key) = e;
    make_newest(s, e);
    s->bytes += size_of(count);
    while (s->bytes > s->max_bytes)
        drop(s, find(s, s->oldest->key));
    return e;
}

/* The file. */

static int64_t record_bytes(int64_t count)
{
    return (int64_t)sizeof(struct record) + count * (int64_t)sizeof(int32_t) + SUM_BYTES;
}

static void add_record(struct kd_buf *out, const struct entry *e)
{
    struct record r = {.count = e->count};
    size_t from = out->size_bytes;
    memcpy(r.key, e->key, sizeof r.key);
    kd_buf_add(out, &r, sizeof r);
    kd_buf_add(out, e->id, (size_t)e->count * sizeof *e->id);
    if (out->failed)
        return;
    uint64_t sum = kd_xxh64(out->data + from, out->size_bytes - from, 0);
    kd_buf_add(out, &sum, sizeof sum);
}

static struct header header_of(const char *model)
{
    struct header h = {.version = VERSION, .header_bytes = sizeof h};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.model, model, strnlen(model, sizeof h.model));
    h.hash = kd_xxh64(&h, offsetof(struct header, hash), 0);
    return h;
}

static bool key_fits(const char key[KEY_BYTES])
{
    for (int i = 0; i < KEY_BYTES; i++)
        if (!(key[i] >= '0' && key[i] <= '9') && !(key[i] >= 'a' && key[i] <= 'f'))
            return false;
    return true;
}

int64_t kd_said_read(struct kd_said *s, const void *data, int64_t bytes, const char *model)
{
    const struct header h = header_of(model);
    const uint8_t *p = data;
    int64_t at = sizeof h;
    if (bytes < at || memcmp(p, &h, sizeof h))
        return 0;
    pthread_mutex_lock(&s->lock);
    while (bytes - at >= record_bytes(1)) {
        struct record r;
        uint64_t sum;
        memcpy(&r, p + at, sizeof r);
        if (r.count < 1 || r.count > (bytes - at) / (int64_t)sizeof(int32_t) ||
            record_bytes(r.count) > bytes - at || !key_fits(r.key))
            break;
        int64_t body = record_bytes(r.count) - SUM_BYTES;
        memcpy(&sum, p + at + body, sizeof sum);
        if (sum != kd_xxh64(p + at, (size_t)body, 0))
            break;
        put(s, r.key, p + at + sizeof r, r.count);
        at += record_bytes(r.count);
    }
    pthread_mutex_unlock(&s->lock);
    return at;
}

/* Under the lock. The whole table in place of the file, open for more. */
static int write_anew(struct kd_said *s, struct kd_err *err)
{
    const struct header h = header_of(s->model);
    struct kd_outfile f = {.fd = -1};
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    if (kd_out_open(&f, s->path, err))
        return -1;
    /* What users wrote is nobody else's to read. */
    int rc = fchmod(f.fd, 0600) ? kd_fail_sys(err, "cannot set the mode of '%s'", s->path)
                                : kd_out_write(&f, &h, sizeof h, err);
    for (const struct entry *e = s->oldest; e && !rc; e = e->newer) {
        struct kd_buf b;
        kd_buf_init(&b, MESSAGE_BYTES_MAX);
        add_record(&b, e);
        rc = b.failed ? kd_fail(err, KD_ENOMEM, "no memory for '%s'", s->path)
                      : kd_out_write(&f, b.data, (int64_t)b.size_bytes, err);
        kd_buf_release(&b);
    }
    s->file_bytes = f.written_bytes;
    if (rc || kd_out_commit(&f, err)) {
        kd_out_abort(&f);
        return -1;
    }
    s->fd = open(s->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    return s->fd < 0 ? kd_fail_sys(err, "cannot open '%s'", s->path) : 0;
}

int kd_said_keep(struct kd_said *s, const char *path, const char *model, struct kd_err *err)
{
    struct kd_map m = {0};
    snprintf(s->path, sizeof s->path, "%s", path);
    snprintf(s->model, sizeof s->model, "%s", model);
    if (kd_file_exists(path)) {
        if (kd_file_map(&m, path, err))
            return -1;
        kd_said_read(s, m.data, m.size_bytes, model);
        kd_map_release(&m);
    }
    pthread_mutex_lock(&s->lock);
    int rc = write_anew(s, err);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Under the lock. */
static void add_to_file(struct kd_said *s, const struct entry *e)
{
    struct kd_err err;
    struct kd_buf b;
    int rc = 0;
    kd_buf_init(&b, MESSAGE_BYTES_MAX);
    add_record(&b, e);
    if (s->file_bytes > GROWN * s->max_bytes)
        rc = write_anew(s, &err);
    else if (!b.failed && write(s->fd, b.data, b.size_bytes) != (ssize_t)b.size_bytes)
        rc = kd_fail_sys(&err, "cannot add to '%s'", s->path);
    else if (!b.failed)
        s->file_bytes += (int64_t)b.size_bytes;
    kd_buf_release(&b);
    if (!rc)
        return;
    kd_log(KD_LOG_WARN, "serve", "msg=\"%s; answers are no longer kept on disk\"", err.msg);
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void kd_said_put(struct kd_said *s, const char key[65], const int32_t *ids, int64_t count)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = put(s, key, ids, count);
    if (e && s->fd >= 0)
        add_to_file(s, e);
    pthread_mutex_unlock(&s->lock);
}

bool kd_said_get(struct kd_said *s, const char key[65], struct kd_ids *out)
{
    pthread_mutex_lock(&s->lock);
    struct entry **at = find(s, key);
    int64_t before = out->count;
    int rc = at ? 0 : -1;
    for (int64_t i = 0; at && !rc && i < (*at)->count; i++)
        rc = kd_ids_add(out, (*at)->id[i], NULL);
    if (at) {
        unlink_age(s, *at);
        make_newest(s, *at);
    }
    if (rc)
        out->count = before;
    pthread_mutex_unlock(&s->lock);
    return !rc;
}
