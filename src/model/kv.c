/* The state of one sequence in one layer. */
#include "base/mem.h"
#include "model/k3_int.h"

#include <string.h>

static int64_t conv_floats(const struct kd_k3_cfg *c, int64_t heads)
{
    return 3 * (c->conv - 1) * heads * c->kda_dim;
}

int64_t kd_k3_kda_floats(const struct kd_k3_cfg *c, int64_t heads)
{
    return heads * c->kda_dim * c->kda_dim + conv_floats(c, heads);
}

int kd_k3_state_init(struct kd_k3_state *s, const struct kd_k3_cfg *cfg,
                     const struct kd_k3_layer *L, struct kd_err *err)
{
    memset(s, 0, sizeof *s);
    if (L->mla)
        return 0;
    if (kd_mem_zero(&s->S, kd_k3_kda_floats(cfg, L->heads), sizeof(float), "KDA state", err))
        return -1;
    s->conv = s->S + L->heads * cfg->kda_dim * cfg->kda_dim;
    return 0;
}

static void page_drop(struct kd_k3_page *p)
{
    if (atomic_fetch_sub(&p->refs, 1) == 1)
        kd_mem_free(p);
}

void kd_k3_state_release(struct kd_k3_state *s)
{
    kd_mem_free(s->S);
    kd_mem_free(s->undo);
    for (int64_t i = 0; i < s->pages; i++)
        page_drop(s->page[i]);
    kd_mem_free(s->page);
    memset(s, 0, sizeof *s);
}

const float *kd_k3_state_row(const struct kd_k3_state *s, const struct kd_k3_cfg *cfg, int64_t pos)
{
    return kd_k3_row(s, pos, cfg->kv_lora + cfg->rope);
}

int64_t kd_k3_state_bytes(const struct kd_k3_cfg *cfg, int64_t context)
{
    int64_t floats = 0, pages = (context + KD_K3_PAGE - 1) / KD_K3_PAGE;
    for (int64_t l = 0; l < cfg->layers; l++)
        floats += cfg->mla[l] ? pages * KD_K3_PAGE * (cfg->kv_lora + cfg->rope)
                              : kd_k3_kda_floats(cfg, cfg->kda_heads);
    return (int64_t)sizeof(float) * floats;
}

static int page_new(struct kd_k3_page **p, int64_t width, struct kd_err *err)
{
    int64_t bytes;
    *p = NULL;
    if (kd_mul64(KD_K3_PAGE * (int64_t)sizeof(float), width, &bytes))
        return kd_fail(err, KD_ENOMEM, "attention cache: %lld floats a row", (long long)width);
    if (kd_mem_new(p, (int64_t)sizeof **p + bytes, 1, "attention cache", err))
        return -1;
    atomic_init(&(*p)->refs, 1);
    (*p)->charged = 0;
    return 0;
}

static int table_grow(struct kd_k3_state *s, int64_t need, struct kd_err *err)
{
    if (need <= s->page_cap)
        return 0;
    int64_t cap = s->page_cap + s->page_cap / 2;
    struct kd_k3_page **grown;
    cap = cap < need ? need : cap;
    if (kd_mem_new(&grown, cap, sizeof(struct kd_k3_page *), "attention page table", err))
        return -1;
    if (s->pages)
        memcpy(grown, s->page, (size_t)s->pages * sizeof *grown);
    kd_mem_free(s->page);
    s->page = grown;
    s->page_cap = cap;
    return 0;
}

int kd_k3_state_reserve(struct kd_k3_state *s, int64_t rows, int64_t width, struct kd_err *err)
{
    int64_t need = (rows + KD_K3_PAGE - 1) / KD_K3_PAGE;
    if (table_grow(s, need, err))
        return -1;
    /* Only drafts taken back after a copy leave a shared page to be written. */
    for (int64_t i = s->pos / KD_K3_PAGE; i < s->pages && i < need; i++) {
        struct kd_k3_page *own, *old = s->page[i];
        if (atomic_load(&old->refs) == 1)
            continue;
        if (page_new(&own, width, err))
            return -1;
        memcpy(own->row, old->row, (size_t)(KD_K3_PAGE * width) * sizeof(float));
        s->page[i] = own;
        page_drop(old);
    }
    for (; s->pages < need; s->pages++)
        if (page_new(&s->page[s->pages], width, err))
            return -1;
    return 0;
}

int kd_k3_state_copy(struct kd_k3_state *s, const struct kd_k3_state *from, int64_t width,
                     struct kd_err *err)
{
    int64_t full = from->pos / KD_K3_PAGE, rest = from->pos % KD_K3_PAGE;
    if (table_grow(s, full + 1, err))
        return -1;
    for (; s->pages < full; s->pages++) {
        s->page[s->pages] = from->page[s->pages];
        atomic_fetch_add(&s->page[s->pages]->refs, 1);
    }
    s->pos = from->pos;
    if (!rest)
        return 0;
    if (page_new(&s->page[full], width, err))
        return -1;
    s->pages++;
    memcpy(s->page[full]->row, from->page[full]->row, (size_t)(rest * width) * sizeof(float));
    return 0;
}

struct kd_k3_undo kd_k3_undo_of(const struct kd_k3_state *s, const struct kd_k3_cfg *c,
                                int64_t heads)
{
    struct kd_k3_undo u;
    int64_t ch = heads * c->kda_dim, step = KD_K3_DRAFT_MAX * ch;
    u.S = s->undo;
    u.conv = u.S + ch * c->kda_dim;
    u.k = u.S + kd_k3_kda_floats(c, heads);
    u.v = u.k + step;
    u.alpha = u.v + step;
    for (int i = 0; i < 3; i++)
        u.raw[i] = u.alpha + (i + 1) * step;
    u.out = u.alpha + 4 * step;
    u.beta = u.out + ch;
    return u;
}

int64_t kd_k3_undo_floats(const struct kd_k3_cfg *c, int64_t heads)
{
    return kd_k3_kda_floats(c, heads) + heads * c->kda_dim +
           KD_K3_DRAFT_MAX * heads * (6 * c->kda_dim + 1);
}

int kd_k3_undo_reserve(struct kd_k3_state *s, const struct kd_k3_cfg *c, int64_t heads,
                       struct kd_err *err)
{
    return s->undo ? 0
                   : kd_mem_new(&s->undo, kd_k3_undo_floats(c, heads), sizeof(float), "draft state",
                                err);
}

int64_t kd_k3_draft_bytes(const struct kd_k3_cfg *cfg)
{
    int64_t bytes = 0;
    for (int64_t l = 0; l < cfg->layers; l++)
        if (!cfg->mla[l])
            bytes += kd_k3_undo_floats(cfg, cfg->kda_heads) * (int64_t)sizeof(float);
    return bytes;
}
