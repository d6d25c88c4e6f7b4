#include "serve/said.h"

#include "base/hash.h"
#include "base/mem.h"
#include "text/jtree.h"

#include <pthread.h>
#include <string.h>

enum { BUCKETS = 4096, MESSAGE_BYTES_MAX = 512 << 20 };

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
};

int kd_said_open(struct kd_said **out, int64_t max_bytes, struct kd_err *err)
{
    struct kd_said *s;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "answers", err))
        return -1;
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
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
    pthread_mutex_destroy(&s->lock);
    kd_mem_free(s);
}

void kd_said_put(struct kd_said *s, const char key[65], const int32_t *ids, int64_t count)
{
    struct entry *e;
    if (count < 1 || size_of(count) > s->max_bytes ||
        kd_mem_zero(&e, 1, size_of(count), "answer", NULL))
        return;
    e->count = count;
    memcpy(e->key, key, sizeof e->key);
    memcpy(e->id, ids, (size_t)count * sizeof *ids);
    pthread_mutex_lock(&s->lock);
    struct entry **old = find(s, key);
    if (old)
        drop(s, old);
    e->next = *bucket_of(s, key);
    *bucket_of(s, key) = e;
    make_newest(s, e);
    s->bytes += size_of(count);
    while (s->bytes > s->max_bytes)
        drop(s, find(s, s->oldest->key));
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
