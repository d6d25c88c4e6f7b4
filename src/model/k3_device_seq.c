/* Sequences on a device: one block of KDA states each, and pages of the latent cache, all MLA
 * layers in one, shared by copies where they are full. Blocks and pages of closed sequences are
 * kept for the next. */
#include "base/mem.h"
#include "model/k3_device.h"
#include "num/half.h"

#include <string.h>

static int slab_new(struct kd_k3_device *d, struct kd_err *err)
{
    void **grown, *memory = NULL;
    struct kd_k3_device_page *pages;
    if (kd_mem_new(&grown, 2 * d->slabs + 2, sizeof *grown, "a page table", err))
        return -1;
    if (d->slabs)
        memcpy(grown, d->slab, (size_t)(2 * d->slabs) * sizeof *grown);
    kd_mem_free(d->slab);
    d->slab = grown;
    if (kd_mem_zero(&pages, KD_K3_DEVICE_SLAB, sizeof *pages, "pages", err))
        return -1;
    if (kd_gpu_alloc(d->g, &memory, KD_K3_DEVICE_SLAB * kd_k3_device_page_bytes(d),
                     "pages of the attention cache", err)) {
        kd_mem_free(pages);
        return -1;
    }
    d->slab[2 * d->slabs] = pages;
    d->slab[2 * d->slabs + 1] = memory;
    d->slabs++;
    for (int i = KD_K3_DEVICE_SLAB - 1; i >= 0; i--) {
        pages[i].at = (unsigned char *)memory + i * kd_k3_device_page_bytes(d);
        pages[i].next = d->pages_free;
        d->pages_free = &pages[i];
    }
    return 0;
}

static int page_new(struct kd_k3_device *d, struct kd_k3_device_page **out, struct kd_err *err)
{
    if (!d->pages_free && slab_new(d, err))
        return -1;
    *out = d->pages_free;
    d->pages_free = (*out)->next;
    (*out)->next = NULL;
    (*out)->refs = 1;
    (*out)->charged = 0;
    return 0;
}

static void page_drop(struct kd_k3_device *d, struct kd_k3_device_page *p)
{
    if (--p->refs)
        return;
    p->next = d->pages_free;
    d->pages_free = p;
}

void kd_k3_device_states_release(struct kd_k3_device *d)
{
    for (int64_t i = 0; i < d->slabs; i++) {
        kd_mem_free(d->slab[2 * i]);
        kd_gpu_release(d->g, d->slab[2 * i + 1]);
    }
    kd_mem_free(d->slab);
    for (int64_t i = 0; i < d->states; i++)
        kd_gpu_release(d->g, d->states_free[i]);
    kd_mem_free(d->states_free);
    d->slab = NULL;
    d->states_free = NULL;
    d->slabs = d->states = d->states_cap = 0;
    d->pages_free = NULL;
}

int kd_k3_device_seq_open(struct kd_k3_device_seq **out, struct kd_k3_device *d, struct kd_err *err)
{
    struct kd_k3_device_seq *s;
    void *kda = NULL;
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "sequence", err))
        return -1;
    int rc = d->states ? kd_gpu_zero(d->g, d->states_free[d->states - 1], d->kda_floats * 4, err)
                       : kd_gpu_alloc(d->g, &kda, d->kda_floats * 4, "a sequence's states", err);
    if (rc) {
        kd_mem_free(s);
        return -1;
    }
    s->kda = d->states ? d->states_free[--d->states] : kda;
    *out = s;
    return 0;
}

/* A block of states for the next sequence, or back to the device where there is no place for it. */
static void keep_state(struct kd_k3_device *d, float *kda)
{
    if (d->states == d->states_cap) {
        void **grown;
        int64_t cap = 2 * d->states_cap + 8;
        if (kd_mem_new(&grown, cap, sizeof *grown, "states", NULL)) {
            kd_gpu_release(d->g, kda);
            return;
        }
        if (d->states)
            memcpy(grown, d->states_free, (size_t)d->states * sizeof *grown);
        kd_mem_free(d->states_free);
        d->states_free = grown;
        d->states_cap = cap;
    }
    d->states_free[d->states++] = kda;
}

void kd_k3_device_seq_close(struct kd_k3_device_seq *s, struct kd_k3_device *d)
{
    if (!s)
        return;
    if (s->kda)
        keep_state(d, s->kda);
    for (int64_t i = 0; i < s->pages; i++)
        page_drop(d, s->page[i]);
    kd_mem_free(s->page);
    kd_gpu_release(d->g, s->table);
    kd_mem_free(s);
}

/* Room for `need` pages in both tables. */
static int tables_grow(struct kd_k3_device_seq *s, struct kd_k3_device *d, int64_t need,
                       struct kd_err *err)
{
    struct kd_k3_device_page **grown;
    int64_t cap = s->page_cap + s->page_cap / 2 > need ? s->page_cap + s->page_cap / 2 : need + 3;
    void *table;
    if (need <= s->page_cap)
        return 0;
    if (kd_mem_new(&grown, cap, sizeof *grown, "attention page table", err))
        return -1;
    if (kd_gpu_alloc(d->g, &table, cap * (int64_t)sizeof(void *), "attention page table", err)) {
        kd_mem_free(grown);
        return -1;
    }
    if (s->pages)
        memcpy(grown, s->page, (size_t)s->pages * sizeof *grown);
    kd_mem_free(s->page);
    kd_gpu_release(d->g, s->table);
    s->page = grown;
    s->table = table;
    s->page_cap = cap;
    return 0;
}

/* The device's table from entry `from` on; all of it when it is new. */
static int table_send(struct kd_k3_device_seq *s, struct kd_k3_device *d, int64_t from,
                      struct kd_err *err)
{
    int64_t n = s->pages - from;
    void **at;
    if (n <= 0)
        return 0;
    if (kd_mem_new(&at, n, sizeof *at, "attention page table", err))
        return -1;
    for (int64_t i = 0; i < n; i++)
        at[i] = s->page[from + i]->at;
    int rc = kd_gpu_upload(d->g, s->table + from, at, n * (int64_t)sizeof *at, err);
    kd_mem_free(at);
    return rc;
}

int kd_k3_device_seq_reserve(struct kd_k3_device_seq *s, struct kd_k3_device *d, int64_t rows,
                             struct kd_err *err)
{
    int64_t need = (rows + KD_K3_PAGE - 1) / KD_K3_PAGE, cap = s->page_cap, from = s->pages;
    if (need <= s->pages || !d->page_values)
        return 0;
    if (tables_grow(s, d, need, err))
        return -1;
    for (; s->pages < need; s->pages++)
        if (page_new(d, &s->page[s->pages], err))
            return -1;
    return table_send(s, d, s->page_cap == cap ? from : 0, err);
}

int kd_k3_device_seq_copy(struct kd_k3_device_seq *to, const struct kd_k3_device_seq *from,
                          int64_t pos, struct kd_k3_device *d, struct kd_err *err)
{
    int64_t full = d->page_values ? pos / KD_K3_PAGE : 0;
    if (kd_gpu_copy(d->g, to->kda, from->kda, d->kda_floats * 4, err) ||
        tables_grow(to, d, full + 1, err))
        return -1;
    for (; to->pages < full; to->pages++) {
        to->page[to->pages] = from->page[to->pages];
        to->page[to->pages]->refs++;
    }
    if (d->page_values && pos % KD_K3_PAGE) {
        if (page_new(d, &to->page[full], err))
            return -1;
        to->pages++;
        if (kd_gpu_copy(d->g, to->page[full]->at, from->page[full]->at, kd_k3_device_page_bytes(d),
                        err))
            return -1;
    }
    return table_send(to, d, 0, err);
}

int64_t kd_k3_device_seq_charge(struct kd_k3_device_seq *s, const struct kd_k3_device *d, int by)
{
    int64_t bytes = d->kda_floats * 4;
    for (int64_t i = 0; i < s->pages; i++) {
        int before = s->page[i]->charged;
        s->page[i]->charged += by;
        bytes += (by > 0 ? before : before + by) == 0 ? kd_k3_device_page_bytes(d) : 0;
    }
    return bytes;
}

struct span_io {
    struct kd_k3_device *d;
    bool write;
    int (*io)(void *ctx, void *data, int64_t bytes, struct kd_err *err);
    void *ctx;
    float *host;      /* room for the longest span */
    uint16_t *halves; /* and for a page of fp16 */
};

/* `count` values at `at`, fp32 or fp16 there, always fp32 for whoever reads and writes them. */
static int span(const struct span_io *s, void *at, int64_t count, bool half, struct kd_err *err)
{
    void *there = half ? (void *)s->halves : s->host;
    int64_t bytes = count * (half ? 2 : 4);
    if (s->write) {
        kd_gpu_lock(s->d->g); /* not while the callback has the word */
        int rc = kd_gpu_download(s->d->g, there, at, bytes, err);
        kd_gpu_unlock(s->d->g);
        if (rc)
            return -1;
        for (int64_t i = 0; half && i < count; i++)
            s->host[i] = kd_f16_f32(s->halves[i]);
        return s->io(s->ctx, s->host, count * 4, err);
    }
    if (s->io(s->ctx, s->host, count * 4, err))
        return -1;
    for (int64_t i = 0; half && i < count; i++) {
        float x = s->host[i];
        s->halves[i] = kd_f32_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
    }
    kd_gpu_lock(s->d->g);
    int rc = kd_gpu_upload(s->d->g, at, there, bytes, err);
    kd_gpu_unlock(s->d->g);
    return rc;
}

int kd_k3_device_seq_io(struct kd_k3_device_seq *q, struct kd_k3_device *d, int64_t pos, bool write,
                        int (*io)(void *ctx, void *data, int64_t bytes, struct kd_err *err),
                        void *ctx, struct kd_err *err)
{
    const struct kd_k3_model *m = d->m;
    int64_t w = m->cfg.kv_lora + m->cfg.rope, page = KD_K3_PAGE * w, most = page;
    struct span_io s = {.d = d, .write = write, .io = io, .ctx = ctx};
    for (int64_t l = 0; l < m->cfg.layers; l++)
        if (!m->layers[l].mla && kd_k3_kda_floats(&m->cfg, m->layers[l].heads) > most)
            most = kd_k3_kda_floats(&m->cfg, m->layers[l].heads);
    if (kd_mem_new(&s.host, most, sizeof *s.host, "a layer's state", err))
        return -1;
    int rc = d->fast ? kd_mem_new(&s.halves, page, sizeof *s.halves, "a page", err) : 0;
    for (int64_t l = 0; l < m->cfg.layers && !rc; l++) {
        int64_t from = d->layers[l].state;
        if (!m->layers[l].mla)
            rc = span(&s, q->kda + from, kd_k3_kda_floats(&m->cfg, m->layers[l].heads), false, err);
        for (int64_t at = 0; m->layers[l].mla && at < pos && !rc; at += KD_K3_PAGE) {
            unsigned char *to = q->page[at / KD_K3_PAGE]->at;
            rc = span(&s, to + from * (d->fast ? 2 : 4),
                      (pos - at < KD_K3_PAGE ? pos - at : KD_K3_PAGE) * w, d->fast, err);
        }
    }
    kd_mem_free(s.host);
    kd_mem_free(s.halves);
    return rc;
}
