#include "serve/prefix.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/prefix_int.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { BUCKETS = 4096 };

struct kd_prefix {
    const struct kd_k3_model *m;
    struct kd_prefix_options o;
    char fingerprint[65];
    struct kd_prefix_disk *disk;
    int64_t loaded; /* tickets up to this one have ended */
    struct kd_prefix_entry *bucket[BUCKETS];
    struct kd_prefix_entry *newest, *oldest;
    pthread_mutex_t lock; /* of the figures */
    struct kd_prefix_figures fig;
};

int kd_prefix_entry_new(struct kd_prefix_entry **out, uint64_t hash, const struct kd_prefix_key *k,
                        const int32_t *ids, int64_t count, struct kd_err *err)
{
    struct kd_prefix_entry *e;
    *out = NULL;
    if (kd_mem_zero(&e, 1, sizeof *e, "cached prefix", err))
        return -1;
    atomic_init(&e->refs, 1);
    e->hash = hash;
    e->key = *k;
    e->count = count;
    if (kd_mem_new(&e->ids, count, sizeof *e->ids, "cached prefix", err)) {
        kd_mem_free(e);
        return -1;
    }
    memcpy(e->ids, ids, (size_t)count * sizeof *e->ids);
    *out = e;
    return 0;
}

void kd_prefix_entry_drop(struct kd_prefix_entry *e)
{
    if (!e || atomic_fetch_sub(&e->refs, 1) != 1)
        return;
    kd_k3_seq_close(e->seq);
    kd_mem_free(e->logits);
    kd_mem_free(e->ids);
    kd_mem_free(e);
}

bool kd_prefix_same_key(const struct kd_prefix_key *a, const struct kd_prefix_key *b)
{
    return !strcmp(a->owner, b->owner) && a->experts_used == b->experts_used &&
           a->expert_mass == b->expert_mass;
}

bool kd_prefix_entry_is(const struct kd_prefix_entry *e, uint64_t hash,
                        const struct kd_prefix_key *k, const int32_t *ids, int64_t count)
{
    return e->hash == hash && e->count == count && kd_prefix_same_key(&e->key, k) &&
           !memcmp(e->ids, ids, (size_t)count * sizeof *ids);
}

int kd_prefix_open(struct kd_prefix **out, const struct kd_k3_model *m, const char *fingerprint,
                   const struct kd_prefix_options *o, struct kd_err *err)
{
    struct kd_prefix *p;
    *out = NULL;
    if (kd_mem_zero(&p, 1, sizeof *p, "prefix cache", err))
        return -1;
    p->m = m;
    p->o = *o;
    snprintf(p->fingerprint, sizeof p->fingerprint, "%s", fingerprint);
    pthread_mutex_init(&p->lock, NULL);
    if (o->dir && kd_prefix_disk_open(&p->disk, m, fingerprint, o, err)) {
        kd_prefix_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

static void unlink_use(struct kd_prefix *p, struct kd_prefix_entry *e)
{
    *(e->newer ? &e->newer->older : &p->newest) = e->older;
    *(e->older ? &e->older->newer : &p->oldest) = e->newer;
    e->newer = e->older = NULL;
}

static void link_newest(struct kd_prefix *p, struct kd_prefix_entry *e)
{
    e->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = e;
    p->newest = e;
}

static int64_t own_bytes(const struct kd_prefix_entry *e)
{
    return (int64_t)sizeof *e + e->count * (int64_t)sizeof *e->ids +
           e->logits_count * (int64_t)sizeof *e->logits;
}

static void account(struct kd_prefix *p, int64_t bytes, int64_t entries, int64_t evicted)
{
    pthread_mutex_lock(&p->lock);
    p->fig.bytes += bytes;
    p->fig.entries += entries;
    p->fig.evicted += evicted;
    pthread_mutex_unlock(&p->lock);
}

static void evict(struct kd_prefix *p, struct kd_prefix_entry *e)
{
    struct kd_prefix_entry **at = &p->bucket[e->hash % BUCKETS];
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlink_use(p, e);
    account(p, -own_bytes(e) - kd_k3_seq_charge(e->seq, -1), -1, 1);
    kd_prefix_entry_drop(e);
}

void kd_prefix_close(struct kd_prefix *p)
{
    if (!p)
        return;
    kd_prefix_disk_close(p->disk);
    while (p->oldest)
        evict(p, p->oldest);
    pthread_mutex_destroy(&p->lock);
    kd_mem_free(p);
}

static uint64_t chain_start(const struct kd_prefix *p, const struct kd_prefix_key *k)
{
    char text[256];
    int n = snprintf(text, sizeof text, "%s|%s|%lld|%.17g", p->fingerprint, k->owner,
                     (long long)k->experts_used, k->expert_mass);
    return kd_xxh64(text, (size_t)n, 0);
}

static uint64_t chain(uint64_t h, const int32_t *block)
{
    return kd_xxh64(block, KD_K3_PAGE * sizeof *block, h);
}

static uint64_t chain_to(const struct kd_prefix *p, const struct kd_prefix_key *k,
                         const int32_t *ids, int64_t count)
{
    uint64_t h = chain_start(p, k);
    for (int64_t at = 0; at + KD_K3_PAGE <= count; at += KD_K3_PAGE)
        h = chain(h, ids + at);
    return h;
}

static struct kd_prefix_entry *look(const struct kd_prefix *p, uint64_t hash,
                                    const struct kd_prefix_key *k, const int32_t *ids,
                                    int64_t count)
{
    struct kd_prefix_entry *e = p->bucket[hash % BUCKETS];
    while (e && !kd_prefix_entry_is(e, hash, k, ids, count))
        e = e->next;
    return e;
}

static int64_t ask_disk(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                        uint64_t hash, int64_t count)
{
    struct kd_prefix_entry *want;
    if (kd_prefix_entry_new(&want, hash, k, ids, count, NULL))
        return 0;
    return kd_prefix_disk_load(p->disk, want);
}

int kd_prefix_find(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                   int64_t limit, bool disk, struct kd_k3_seq **seq, int64_t *load,
                   struct kd_err *err)
{
    struct kd_prefix_entry *best = NULL;
    uint64_t h = chain_start(p, k), disk_hash = 0;
    int64_t on_disk = 0;
    *seq = NULL;
    *load = 0;
    for (int64_t at = KD_K3_PAGE; at <= limit; at += KD_K3_PAGE) {
        h = chain(h, ids + at - KD_K3_PAGE);
        struct kd_prefix_entry *e = look(p, h, k, ids, at);
        best = e ? e : best;
        if (disk && p->disk && kd_prefix_disk_has(p->disk, h, at)) {
            on_disk = at;
            disk_hash = h;
        }
    }
    if (on_disk - (best ? best->count : 0) >= p->o.disk_min_tokens && on_disk) {
        *load = ask_disk(p, k, ids, disk_hash, on_disk);
        if (*load)
            return 0;
    }
    if (!best)
        return 0;
    unlink_use(p, best);
    link_newest(p, best);
    return kd_k3_seq_copy(seq, best->seq, err);
}

int64_t kd_prefix_branch(const struct kd_prefix *p, const struct kd_prefix_key *k,
                         const int32_t *ids, int64_t limit)
{
    int64_t best = 0;
    for (const struct kd_prefix_entry *e = p->newest; e; e = e->older) {
        int64_t n = e->count < limit ? e->count : limit, at = 0;
        if (n <= best || !kd_prefix_same_key(&e->key, k))
            continue;
        while (at + KD_K3_PAGE <= n && !memcmp(e->ids + at, ids + at, KD_K3_PAGE * sizeof *ids))
            at += KD_K3_PAGE;
        best = at > best ? at : best;
    }
    return best;
}

bool kd_prefix_has(const struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                   int64_t count)
{
    return look(p, chain_to(p, k, ids, count), k, ids, count) != NULL;
}

/* Takes the caller's reference. */
static void insert(struct kd_prefix *p, struct kd_prefix_entry *e)
{
    e->next = p->bucket[e->hash % BUCKETS];
    p->bucket[e->hash % BUCKETS] = e;
    link_newest(p, e);
    account(p, own_bytes(e) + kd_k3_seq_charge(e->seq, 1), 1, 0);
    while (p->oldest && p->fig.bytes > p->o.bytes)
        evict(p, p->oldest);
}

void kd_prefix_put(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                   const struct kd_k3_seq *seq)
{
    int64_t count = kd_k3_seq_pos(seq);
    struct kd_err err;
    if (p->o.bytes <= 0 || count <= 0 || count % KD_K3_PAGE)
        return;
    uint64_t hash = chain_to(p, k, ids, count);
    struct kd_prefix_entry *e = look(p, hash, k, ids, count);
    if (e) {
        unlink_use(p, e);
        link_newest(p, e);
        return;
    }
    if (kd_prefix_entry_new(&e, hash, k, ids, count, &err) || kd_k3_seq_copy(&e->seq, seq, &err)) {
        kd_log(KD_LOG_WARN, "serve", "msg=\"a prefix could not be cached: %s\"", err.msg);
        kd_prefix_entry_drop(e);
        return;
    }
    if (p->disk)
        kd_prefix_disk_save(p->disk, e);
    insert(p, e);
}

/* Apart from the hash of a state to go on from at the same place. */
static uint64_t end_hash(const struct kd_prefix *p, const struct kd_prefix_key *k,
                         const int32_t *ids, int64_t count)
{
    int64_t whole = count - count % KD_K3_PAGE;
    return ~kd_xxh64(ids + whole, (size_t)(count - whole) * sizeof *ids,
                     chain_to(p, k, ids, whole));
}

void kd_prefix_put_end(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                       const struct kd_k3_seq *seq, const float *logits, int64_t vocab)
{
    int64_t count = kd_k3_seq_pos(seq);
    uint64_t hash = end_hash(p, k, ids, count);
    struct kd_prefix_entry *e;
    struct kd_err err;
    if (p->o.bytes <= 0 || look(p, hash, k, ids, count))
        return;
    if (kd_prefix_entry_new(&e, hash, k, ids, count, &err) || kd_k3_seq_copy(&e->seq, seq, &err) ||
        kd_mem_new(&e->logits, vocab, sizeof *e->logits, "cached logits", &err)) {
        kd_log(KD_LOG_WARN, "serve", "msg=\"a prompt's end could not be cached: %s\"", err.msg);
        kd_prefix_entry_drop(e);
        return;
    }
    memcpy(e->logits, logits, (size_t)vocab * sizeof *logits);
    e->logits_count = vocab;
    insert(p, e);
}

int kd_prefix_find_end(struct kd_prefix *p, const struct kd_prefix_key *k, const int32_t *ids,
                       int64_t count, struct kd_k3_seq **seq, float **logits, struct kd_err *err)
{
    struct kd_prefix_entry *e = look(p, end_hash(p, k, ids, count), k, ids, count);
    *seq = NULL;
    *logits = NULL;
    if (!e)
        return 0;
    unlink_use(p, e);
    link_newest(p, e);
    if (kd_mem_new(logits, e->logits_count, sizeof **logits, "cached logits", err))
        return -1;
    memcpy(*logits, e->logits, (size_t)e->logits_count * sizeof **logits);
    return kd_k3_seq_copy(seq, e->seq, err);
}

void kd_prefix_poll(struct kd_prefix *p)
{
    struct kd_prefix_entry *e, *next;
    if (!p->disk)
        return;
    for (e = kd_prefix_disk_poll(p->disk, &p->loaded); e; e = next) {
        next = e->next;
        if (look(p, e->hash, &e->key, e->ids, e->count))
            kd_prefix_entry_drop(e);
        else
            insert(p, e);
    }
}

bool kd_prefix_loading(const struct kd_prefix *p, int64_t ticket)
{
    return ticket > p->loaded;
}

void kd_prefix_figures(struct kd_prefix *p, struct kd_prefix_figures *f)
{
    pthread_mutex_lock(&p->lock);
    *f = p->fig;
    pthread_mutex_unlock(&p->lock);
    if (p->disk)
        kd_prefix_disk_figures(p->disk, f);
}
