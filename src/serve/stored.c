#include "serve/stored.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <string.h>

struct entry {
    struct entry *older, *newer;
    double until;
    size_t body_bytes, history_bytes;
    char owner[65], id[64];
    char data[]; /* body, history */
};

struct kd_store {
    pthread_mutex_t lock;
    struct entry *newest, *oldest;
    int64_t bytes, max_bytes;
    double keep_s;
};

int kd_store_open(struct kd_store **out, int64_t max_bytes, double keep_s, struct kd_err *err)
{
    struct kd_store *s;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "store", err))
        return -1;
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
    s->keep_s = keep_s;
    *out = s;
    return 0;
}

static int64_t size_of(const struct entry *e)
{
    return (int64_t)(sizeof *e + e->body_bytes + e->history_bytes);
}

static void drop(struct kd_store *s, struct entry *e)
{
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    s->bytes -= size_of(e);
    kd_mem_free(e);
}

static void drop_old(struct kd_store *s)
{
    double now = kd_clock_s();
    while (s->oldest && (s->bytes > s->max_bytes || s->oldest->until < now))
        drop(s, s->oldest);
}

void kd_store_close(struct kd_store *s)
{
    if (!s)
        return;
    while (s->oldest)
        drop(s, s->oldest);
    pthread_mutex_destroy(&s->lock);
    kd_mem_free(s);
}

static struct entry *find(struct kd_store *s, const char *owner, const char *id)
{
    drop_old(s);
    for (struct entry *e = s->newest; e; e = e->older)
        if (!strcmp(e->id, id) && !strcmp(e->owner, owner))
            return e;
    return NULL;
}

void kd_store_put(struct kd_store *s, const char *owner, const char *id, const struct kd_buf *body,
                  const struct kd_buf *history)
{
    struct entry *e;
    size_t n = body->size_bytes + history->size_bytes;
    if (body->failed || history->failed || (int64_t)(sizeof *e + n) > s->max_bytes ||
        kd_mem_zero(&e, 1, (int64_t)(sizeof *e + n), "stored response", NULL))
        return;
    snprintf(e->owner, sizeof e->owner, "%s", owner);
    snprintf(e->id, sizeof e->id, "%s", id);
    e->until = kd_clock_s() + s->keep_s;
    e->body_bytes = body->size_bytes;
    e->history_bytes = history->size_bytes;
    if (body->size_bytes)
        memcpy(e->data, body->data, body->size_bytes);
    if (history->size_bytes)
        memcpy(e->data + body->size_bytes, history->data, history->size_bytes);
    pthread_mutex_lock(&s->lock);
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
    s->bytes += size_of(e);
    drop_old(s);
    pthread_mutex_unlock(&s->lock);
}

bool kd_store_get(struct kd_store *s, const char *owner, const char *id, struct kd_buf *body,
                  struct kd_buf *history)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, owner, id);
    if (e && body)
        kd_buf_add(body, e->data, e->body_bytes);
    if (e && history)
        kd_buf_add(history, e->data + e->body_bytes, e->history_bytes);
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

bool kd_store_remove(struct kd_store *s, const char *owner, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, owner, id);
    if (e)
        drop(s, e);
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

int64_t kd_store_bytes(struct kd_store *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t n = s->bytes;
    pthread_mutex_unlock(&s->lock);
    return n;
}
