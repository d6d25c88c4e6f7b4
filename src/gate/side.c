#include "gate/side.h"

#include "base/mem.h"
#include "base/progress.h"
#include "gate/router.h"

#include <stdio.h>
#include <string.h>

/* Multiples of the KDA chunk. A device wants more tokens for each expert that it is sent. */
enum { BLOCK_TOKENS = 2048, THERE_TOKENS = 8192 };

static int64_t block_tokens(const struct kd_run *run)
{
    return run->encoder ? THERE_TOKENS : BLOCK_TOKENS;
}

static int look(struct kd_side *s, struct kd_err *err)
{
    return kd_k3_cfg_parse(&s->cfg, kd_ckpt_config(s->ck), NULL, err) ||
                   kd_k3_cfg_check(&s->cfg, kd_ckpt_config(s->ck), err) ||
                   kd_k3_ends_load(&s->ends, &s->cfg, s->ck, err) ||
                   kd_k3_store_open(&s->store, &s->cfg, s->ck, NULL, err)
               ? -1
               : 0;
}

int kd_side_open(struct kd_side *s, const char *dir, struct kd_err *err)
{
    memset(s, 0, sizeof *s);
    if (kd_ckpt_open(&s->ck, dir, false, err) || look(s, err)) {
        kd_side_close(s);
        return kd_wrap(err, "%s", dir);
    }
    return 0;
}

int kd_side_take(struct kd_side *s, struct kd_ckpt *ck, struct kd_err *err)
{
    memset(s, 0, sizeof *s);
    s->ck = ck;
    s->borrowed = true;
    if (look(s, err)) {
        kd_side_close(s);
        return -1;
    }
    return 0;
}

void kd_side_close(struct kd_side *s)
{
    if (s->store)
        kd_k3_store_close(s->store);
    kd_k3_ends_release(&s->ends);
    if (s->map.data)
        kd_rw_close(&s->map);
    kd_mem_free(s->memory);
    kd_mem_free(s->ids);
    kd_mem_free(s->margin);
    if (s->ck && !s->borrowed)
        kd_ckpt_close(s->ck);
    memset(s, 0, sizeof *s);
}

static int make_room(struct kd_side *s, const char *work, const char *name, struct kd_err *err)
{
    int64_t plane, all;
    if (kd_mul64(s->rows * s->cols, s->cfg.hidden, &plane) ||
        kd_mul64(plane, kd_k3_banks(&s->cfg) + 1, &all) || kd_mul64(all, 4, &all))
        return kd_fail(err, KD_EINVAL, "the streams of so many tokens cannot be counted");
    if (work) {
        char path[4096], file[64];
        snprintf(file, sizeof file, "check-%s.stream", name);
        if (kd_dir_make(work, err) || kd_path_join(path, sizeof path, work, file, err) ||
            kd_rw_open(&s->map, path, all, err))
            return -1;
        s->p = (float *)(void *)s->map.data;
    } else {
        if (kd_mem_new(&s->memory, all / 4, 4, "streams (see --work)", err))
            return -1;
        s->p = s->memory;
    }
    s->bank = s->p + plane;
    return 0;
}

/* The window of tokens [first, first + n) of the streams. */
static struct kd_k3_stream window(const struct kd_side *s, int64_t first, int64_t n)
{
    struct kd_k3_stream w = {.T = n,
                             .hidden = s->cfg.hidden,
                             .banks = s->banks,
                             .started = s->started,
                             .p = s->p + first * s->cfg.hidden,
                             .bank = s->bank + first * s->cfg.hidden,
                             .bank_rows = s->rows * s->cols};
    return w;
}

int kd_side_begin(struct kd_side *s, const struct kd_run *run, const int32_t *ids, int64_t rows,
                  int64_t cols, bool margins, const char *work, const char *name,
                  struct kd_err *err)
{
    int64_t T = rows * cols;
    s->rows = rows;
    s->cols = cols;
    if (make_room(s, work, name, err) ||
        kd_mem_new(&s->ids, T * (s->cfg.topk ? s->cfg.topk : 1), sizeof *s->ids, "routing", err) ||
        (margins && kd_mem_new(&s->margin, T, sizeof *s->margin, "routing margins", err)))
        return -1;
    struct kd_k3_stream w = {0};
    for (int64_t t = 0; t < T; t += BLOCK_TOKENS) {
        w = window(s, t, T - t < BLOCK_TOKENS ? T - t : BLOCK_TOKENS);
        w.banks = 0;
        w.started = true;
        if (kd_k3_embed(run, &s->cfg, &s->ends, ids + t, w.T, &w, err))
            return -1;
    }
    s->banks = w.banks;
    s->started = w.started;
    return 0;
}

/* Rows row..row+count-1, each a sequence of its own from position 0, in pieces of at most
 * block_tokens() tokens a call. */
struct block {
    const struct kd_k3_layer *L;
    struct kd_k3_state *state; /* one a row */
    struct kd_k3_seg *seg;
    float *score;
    int64_t row, count;
};

static int run_piece(struct kd_side *s, const struct kd_run *run, const struct block *b,
                     int64_t from, int64_t n, struct kd_k3_stream *after, struct kd_err *err)
{
    int64_t first = b->row * s->cols + from, T = n * b->count, topk = s->cfg.topk;
    struct kd_k3_stream w = window(s, first, T);
    struct kd_k3_probe probe = {0};
    if (b->L->moe) {
        probe.ids = s->ids + first * topk;
        probe.score = s->margin ? b->score : NULL;
    }
    for (int64_t i = 0; i < b->count; i++)
        b->seg[i] = (struct kd_k3_seg){.first = i * n, .count = n, .state = &b->state[i]};
    if (kd_k3_layer_forward(run, &s->cfg, b->L, s->store, NULL, &w, b->seg, b->count, &probe, err))
        return -1;
    for (int64_t t = 0; b->L->moe && s->margin && t < T; t++)
        s->margin[first + t] = kd_router_margin(b->score + t * s->cfg.experts, s->cfg.experts,
                                                s->ids + (first + t) * topk, topk);
    *after = w;
    return 0;
}

static int run_block(struct kd_side *s, const struct kd_run *run, const struct block *b,
                     struct kd_k3_stream *after, struct kd_err *err)
{
    /* Several rows lie one after the other only when each is taken whole. */
    int64_t most = block_tokens(run), made = 0;
    int64_t piece = b->count > 1 || s->cols < most ? s->cols : most;
    int rc = 0;
    for (; made < b->count && !rc; made++)
        rc = kd_k3_state_init(&b->state[made], &s->cfg, b->L, err);
    for (int64_t at = 0; at < s->cols && !rc; at += piece) {
        int64_t n = s->cols - at < piece ? s->cols - at : piece;
        rc = run_piece(s, run, b, at, n, after, err);
        if (!s->quiet)
            kd_progress_add(n * b->count, NULL);
    }
    while (made-- > 0)
        kd_k3_state_release(&b->state[made]);
    return rc;
}

/* The layer's pages are not needed again. */
static void forget(const struct kd_side *s, int64_t layer)
{
    char mark[32];
    snprintf(mark, sizeof mark, "layers.%lld.", (long long)layer);
    for (int64_t i = 0; i < kd_ckpt_count(s->ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(s->ck, i);
        const char *at = strstr(t->name, mark);
        if (at && (at == t->name || at[-1] == '.'))
            kd_ckpt_forget(s->ck, t);
    }
}

int kd_side_layer(struct kd_side *s, const struct kd_run *run, int64_t layer,
                  const volatile int *stop, struct kd_err *err)
{
    struct kd_k3_layer L;
    if (kd_k3_layer_load(&L, &s->cfg, s->ck, layer, NULL, err))
        return -1;
    int64_t most = block_tokens(run), rows = s->cols < most ? most / s->cols : 1;
    int64_t tokens = rows * (s->cols < most ? s->cols : most);
    struct block b = {.L = &L};
    struct kd_k3_stream after = window(s, 0, 0);
    int rc = 0;
    if (kd_mem_zero(&b.state, rows, sizeof *b.state, "states", err) ||
        kd_mem_new(&b.seg, rows, sizeof *b.seg, "segments", err) ||
        (L.moe && s->margin &&
         kd_mem_new(&b.score, tokens * s->cfg.experts, sizeof *b.score, "router scores", err)))
        rc = -1;
    for (int64_t r = 0; r < s->rows && !rc; r += rows) {
        b.row = r;
        b.count = s->rows - r < rows ? s->rows - r : rows;
        if (stop && *stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped at layer %lld", (long long)layer);
        else
            rc = run_block(s, run, &b, &after, err);
    }
    s->banks = after.banks;
    s->started = after.started;
    kd_mem_free(b.state);
    kd_mem_free(b.seg);
    kd_mem_free(b.score);
    kd_k3_layer_release(&L);
    forget(s, layer);
    return rc;
}

int kd_side_layer_of(struct kd_side *s, const struct kd_run *run, struct kd_ckpt *ck, int64_t layer,
                     const volatile int *stop, struct kd_err *err)
{
    struct kd_ckpt *own = s->ck;
    struct kd_store *store, *mine = s->store;
    if (kd_k3_store_open(&store, &s->cfg, ck, NULL, err))
        return -1;
    s->ck = ck;
    s->store = store;
    int rc = kd_side_layer(s, run, layer, stop, err);
    s->ck = own;
    s->store = mine;
    kd_k3_store_close(store);
    return rc;
}

void kd_side_go_on(struct kd_side *s, const struct kd_side *from)
{
    s->p = from->p;
    s->bank = from->bank;
    s->banks = from->banks;
    s->started = from->started;
    s->rows = from->rows;
    s->cols = from->cols;
}

int kd_side_final(struct kd_side *s, const struct kd_run *run, struct kd_err *err)
{
    float *h;
    int64_t T = s->rows * s->cols, hidden = s->cfg.hidden;
    int64_t most = T < BLOCK_TOKENS ? T : BLOCK_TOKENS;
    if (kd_mem_new(&h, most * hidden, sizeof *h, "final hidden states", err))
        return -1;
    int rc = 0;
    for (int64_t t = 0; t < T && !rc; t += most) {
        int64_t n = T - t < most ? T - t : most;
        struct kd_k3_stream w = window(s, t, n);
        rc = kd_k3_final(run, &s->cfg, &s->ends, &w, h, err);
        if (!rc)
            memcpy(s->p + t * hidden, h, (size_t)(n * hidden) * sizeof *h);
    }
    kd_mem_free(h);
    return rc;
}
