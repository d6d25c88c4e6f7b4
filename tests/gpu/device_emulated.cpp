/* The device of gpu/gpu.h, memory.h, product.h, k3_ops.h and graph.h on the CPU, for tests of what
 * is built on them (tests/gpu/model_device.c): memory is memory, products are the CPU's, K3's
 * operations are the device's own kernels, emulated. A recorded graph keeps what it was given, as a
 * device does, and calls that a recording may not contain end the program. */
#define KD_GPU_EMULATE
#include "gpu/k3_launch.cuh"

extern "C" {
#include "gpu/account.h"
#include "gpu/graph.h"
#include "gpu/product.h"
#include "kern/mat.h"
}

#include <algorithm>
#include <array>

using namespace kd_k3;

struct kd_gpu {
    int index; /* as in gpu/device.cuh, for an encoder beside it */
    struct kd_gpu_facts facts;
    struct kd_kern kern;
    bool records;
    std::vector<std::function<void()>> recorded;
    int64_t held; /* bytes */
    std::mutex lock;
    struct kd_gpu_account *account;
};

struct kd_gpu_graph {
    std::vector<std::function<void()>> work;
};

/* Runs it now, or with the graph. */
template <class F> static int then(struct kd_gpu *g, F work)
{
    if (g->records)
        g->recorded.push_back(work);
    else
        work();
    return 0;
}

static void not_recorded(const struct kd_gpu *g, const char *what)
{
    if (!g->records)
        return;
    fprintf(stderr, "%s while a graph is recorded\n", what);
    abort();
}

extern "C" {

/* Whoever has more (program_emulated.cpp) says so. */
__attribute__((weak)) int kd_gpu_count(void)
{
    return 1;
}

__attribute__((weak)) int64_t kd_emulated_free(void)
{
    return (int64_t)1 << 30;
}

int kd_gpu_open(struct kd_gpu **out, int index, struct kd_err *err)
{
    *out = nullptr;
    if (index >= kd_gpu_count())
        return kd_fail(err, KD_EGPU, "device cuda:%d: there are %d here", index, kd_gpu_count());
    *out = new kd_gpu();
    (*out)->index = index;
    snprintf((*out)->facts.name, sizeof(*out)->facts.name, "emulated");
    (*out)->facts.memory_bytes = (*out)->facts.free_bytes = kd_emulated_free();
    (*out)->facts.sms = 12;
    return kd_kern_pick(&(*out)->kern, err);
}

void kd_gpu_close(struct kd_gpu *g)
{
    if (g && g->held) {
        fprintf(stderr, "%lld bytes of the device were not released\n", (long long)g->held);
        abort();
    }
    delete g;
}

const struct kd_gpu_facts *kd_gpu_facts(const struct kd_gpu *g)
{
    return &g->facts;
}

void kd_gpu_lock(struct kd_gpu *g)
{
    g->lock.lock();
}

void kd_gpu_unlock(struct kd_gpu *g)
{
    g->lock.unlock();
}

/* The size stands in front. */
int kd_gpu_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what, struct kd_err *err)
{
    not_recorded(g, "allocation");
    unsigned char *p = (unsigned char *)aligned_alloc(256, ((size_t)bytes + 511) / 256 * 256);
    *out = nullptr;
    if (!p || g->held + bytes > g->facts.memory_bytes) {
        free(p);
        return kd_fail(err, KD_EGPU, "%s: no device memory", what);
    }
    memset(p, 0, (size_t)bytes + 256);
    memcpy(p, &bytes, sizeof bytes);
    g->held += bytes;
    *out = p + 256;
    return 0;
}

void kd_gpu_release(struct kd_gpu *g, void *p)
{
    int64_t bytes;
    if (!p)
        return;
    not_recorded(g, "release");
    memcpy(&bytes, (unsigned char *)p - 256, sizeof bytes);
    g->held -= bytes;
    free((unsigned char *)p - 256);
}

int kd_gpu_host_alloc(struct kd_gpu *g, void **out, int64_t bytes, const char *what,
                      struct kd_err *err)
{
    return kd_gpu_alloc(g, out, bytes, what, err);
}

void kd_gpu_host_release(struct kd_gpu *g, void *p)
{
    kd_gpu_release(g, p);
}

int kd_gpu_free_bytes(struct kd_gpu *g, int64_t *bytes, struct kd_err *)
{
    *bytes = g->facts.memory_bytes - g->held;
    return 0;
}

int kd_gpu_upload(struct kd_gpu *g, void *to, const void *from, int64_t bytes, struct kd_err *)
{
    not_recorded(g, "upload");
    memcpy(to, from, (size_t)bytes);
    return 0;
}

int kd_gpu_copy(struct kd_gpu *g, void *to, const void *from, int64_t bytes, struct kd_err *)
{
    return then(g, [=] { memcpy(to, from, (size_t)bytes); });
}

int kd_gpu_zero(struct kd_gpu *g, void *p, int64_t bytes, struct kd_err *)
{
    return then(g, [=] { memset(p, 0, (size_t)bytes); });
}

int kd_gpu_download(struct kd_gpu *g, void *to, const void *from, int64_t bytes, struct kd_err *)
{
    not_recorded(g, "download");
    memcpy(to, from, (size_t)bytes);
    return 0;
}

int kd_gpu_wait(struct kd_gpu *g, struct kd_err *)
{
    not_recorded(g, "wait");
    return 0;
}

/* Matrices: rows without gaps; MXFP4 codes, then scales; EXL3 tiles, then suh, svh. */
static int64_t row_bytes(enum kd_gpu_mat_type t, int64_t cols, const struct kd_block_format *f)
{
    return t == KD_GPU_MAT_F32     ? 4 * cols
           : t == KD_GPU_MAT_BF16  ? 2 * cols
           : t == KD_GPU_MAT_BLOCK ? cols / f->elems * f->bytes
                                   : cols / 2;
}

static int64_t tile_bytes(int64_t rows, int64_t cols, struct kd_rate rate)
{
    return rows / 16 * (cols / 16) * kd_rate_tile_bytes(rate);
}

int64_t kd_gpu_mat_bytes(const struct kd_gpu_source *s)
{
    int64_t n = 0;
    if (s->type == KD_GPU_MAT_EXL3)
        n = tile_bytes(s->rows_padded, s->cols_padded, s->rate) +
            2 * (s->rows_padded + s->cols_padded);
    else if (s->type != KD_GPU_MAT_NONE)
        n = s->rows * (row_bytes(s->type, s->cols, s->format) +
                       (s->type == KD_GPU_MAT_MXFP4 ? s->cols / 32 : 0));
    return (n + 255) / 256 * 256;
}

int kd_gpu_mat_load(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
                    void *memory, struct kd_err *)
{
    not_recorded(g, "loading");
    unsigned char *to = (unsigned char *)memory;
    const unsigned char *from = (const unsigned char *)s->data;
    *m = {s->type, s->rows, s->cols, s->rows_padded, s->cols_padded, memory,
          nullptr, nullptr, nullptr, s->rate,        s->cb,          s->format};
    if (s->type == KD_GPU_MAT_EXL3) {
        const int64_t row = tile_bytes(s->rows_padded, 16, s->rate),
                      step = s->ld * kd_rate_tile_bytes(s->rate);
        for (int64_t i = 0; i < s->cols_padded / 16; i++, to += row)
            memcpy(to, from + i * step, (size_t)row);
        m->suh = (const uint16_t *)memcpy(to, s->suh, (size_t)(2 * s->cols_padded));
        m->svh =
            (const uint16_t *)memcpy(to + 2 * s->cols_padded, s->svh, (size_t)(2 * s->rows_padded));
        return 0;
    }
    const int64_t row = row_bytes(s->type, s->cols, s->format),
                  step = s->type == KD_GPU_MAT_F32    ? 4 * s->ld
                         : s->type == KD_GPU_MAT_BF16 ? 2 * s->ld
                                                      : s->ld;
    for (int64_t r = 0; r < s->rows; r++, to += row)
        memcpy(to, from + r * step, (size_t)row);
    m->scale = to;
    for (int64_t r = 0; s->type == KD_GPU_MAT_MXFP4 && r < s->rows; r++)
        memcpy(to + r * (s->cols / 32), s->scale + r * s->ld_scale, (size_t)(s->cols / 32));
    return 0;
}

/* Random codes; scales that keep activations of one size. */
int kd_gpu_mat_make(struct kd_gpu *g, struct kd_gpu_mat *m, const struct kd_gpu_source *s,
                    uint64_t seed, void *memory, struct kd_err *err)
{
    std::vector<uint16_t> data((size_t)kd_gpu_mat_bytes(s) / 2),
        side((size_t)(s->rows_padded + s->cols_padded));
    uint64_t z = seed * 2 + 88172645463325252ull;
    auto next = [&] {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        return (uint16_t)(z >> 40);
    };
    for (uint16_t &x : data)
        x = s->type == KD_GPU_MAT_BF16 ? (uint16_t)(0x3d00 | (next() & 0x807f)) : next();
    for (size_t i = 0; i < side.size(); i++)
        side[i] = (uint16_t)((i < (size_t)s->cols_padded ? 0x2440 : 0x3c00) | (next() & 0x8000));
    struct kd_gpu_source with = *s;
    with.data = data.data();
    with.suh = side.data();
    with.svh = side.data() + s->cols_padded;
    if (s->type != KD_GPU_MAT_BF16 && s->type != KD_GPU_MAT_EXL3)
        return kd_fail(err, KD_ENOTSUP, "made matrices are BF16 or EXL3 here");
    return kd_gpu_mat_load(g, m, &with, memory, err);
}

static struct kd_mat host_mat(const struct kd_gpu_mat &m)
{
    static const enum kd_mat_type types[] = {KD_MAT_NONE,  KD_MAT_F32,  KD_MAT_BF16,
                                             KD_MAT_MXFP4, KD_MAT_EXL3, KD_MAT_BLOCK};
    struct kd_mat h = {};
    h.type = types[m.type];
    h.rows = m.rows;
    h.cols = m.cols;
    h.data = m.data;
    h.ld = m.type == KD_GPU_MAT_MXFP4   ? m.cols / 2
           : m.type == KD_GPU_MAT_EXL3  ? m.rows_padded / 16
           : m.type == KD_GPU_MAT_BLOCK ? row_bytes(m.type, m.cols, m.format)
                                        : m.cols;
    h.scale = m.scale;
    h.ld_scale = m.cols / 32;
    h.rows_padded = m.rows_padded;
    h.cols_padded = m.cols_padded;
    h.suh = m.suh;
    h.svh = m.svh;
    h.rate = m.rate;
    h.cb = m.cb;
    h.format = m.format;
    return h;
}

static void product(const struct kd_gpu *g, const struct kd_gpu_mat &m, const float *x, int64_t ldx,
                    int64_t T, float *y, int64_t ldy)
{
    struct kd_run run = {};
    const struct kd_mat h = host_mat(m);
    run.kern = &g->kern;
    if (kd_mat_mul(&run, &h, x, ldx, T, y, ldy, nullptr))
        abort();
}

int64_t kd_gpu_mul_scratch(const struct kd_gpu_job *jobs, int count, int64_t T)
{
    int64_t n = 0;
    for (int i = 0; i < count; i++)
        n += jobs[i].w->rows * jobs[i].w->cols > 0 ? T * 4 : 0;
    return n;
}

int kd_gpu_mul(struct kd_gpu *g, enum kd_gpu_class, const struct kd_gpu_job *jobs, int count,
               int64_t T, void *scratch, int64_t bytes, struct kd_err *)
{
    if (!scratch || bytes < kd_gpu_mul_scratch(jobs, count, T) || count > KD_GPU_JOBS)
        abort();
    for (int i = 0; i < count; i++) {
        const struct kd_gpu_job j = jobs[i];
        const struct kd_gpu_mat w = *j.w;
        if (j.ldx % 4 || (uintptr_t)j.x % 16)
            abort();
        then(g, [=] { product(g, w, j.x, j.ldx, T, j.y, j.ldy); });
    }
    return 0;
}

void kd_gpu_mul_limit(struct kd_gpu *, int)
{
}

struct kd_gpu_experts {
    struct kd_gpu *g;
    struct kd_gpu_experts_shape shape;
    std::vector<std::array<struct kd_gpu_mat, 3>> mats;
};

int kd_gpu_experts_open(struct kd_gpu_experts **out, struct kd_gpu *g,
                        const struct kd_gpu_experts_shape *shape, struct kd_gpu_experts *,
                        struct kd_err *)
{
    *out = new kd_gpu_experts{g, *shape, {}};
    (*out)->mats.resize((size_t)shape->experts);
    return 0;
}

void kd_gpu_experts_close(struct kd_gpu_experts *e)
{
    delete e;
}

int64_t kd_gpu_experts_bytes(const struct kd_gpu_experts_shape *shape, bool shared)
{
    return shared ? 0 : shape->tokens * 256;
}

int kd_gpu_experts_set(struct kd_gpu_experts *e, int64_t first, int64_t count,
                       const struct kd_gpu_mat (*m)[3], struct kd_err *)
{
    for (int64_t i = 0; i < count; i++)
        e->mats[(size_t)(first + i)] = {m[i][0], m[i][1], m[i][2]};
    return 0;
}

static void experts_row(const struct kd_gpu_experts *e, const struct kd_gpu_experts_call &c,
                        int64_t t)
{
    std::vector<std::pair<int32_t, float>> chosen;
    std::vector<float> a((size_t)e->shape.inner), b(a.size()), y((size_t)e->shape.cols);
    float *to = c.y + t * c.ldy;
    for (int64_t i = 0; i < c.top; i++)
        if (c.ids[t * c.top + i] >= 0)
            chosen.push_back({c.ids[t * c.top + i], c.weight[t * c.top + i]});
    std::sort(chosen.begin(), chosen.end()); /* no id twice */
    std::fill(to, to + e->shape.cols, 0.0f);
    for (const auto &p : chosen) {
        const auto &m = e->mats[(size_t)p.first];
        product(e->g, m[0], c.x + t * c.ldx, c.ldx, 1, a.data(), e->shape.inner);
        product(e->g, m[1], c.x + t * c.ldx, c.ldx, 1, b.data(), e->shape.inner);
        e->g->kern.situ(a.data(), b.data(), c.beta, c.linear, a.data(), e->shape.inner);
        product(e->g, m[2], a.data(), e->shape.inner, 1, y.data(), e->shape.cols);
        e->g->kern.axpy(p.second, y.data(), to, e->shape.cols);
    }
}

int kd_gpu_experts_mul(struct kd_gpu_experts *e, enum kd_gpu_class,
                       const struct kd_gpu_experts_call *c, struct kd_err *)
{
    const struct kd_gpu_experts_call call = *c;
    if (call.T > e->shape.tokens || call.top > e->shape.top)
        abort();
    return then(e->g, [=] {
        for (int64_t t = 0; t < call.T; t++)
            experts_row(e, call, t);
        if (call.norm)
            launch_norm(call.y, call.norm, call.eps, call.T, call.ldy, call.y, 0);
    });
}

int kd_gpu_graph_begin(struct kd_gpu *g, struct kd_err *)
{
    not_recorded(g, "recording");
    g->recorded.clear();
    g->records = true;
    return 0;
}

void kd_gpu_graph_cancel(struct kd_gpu *g)
{
    g->records = false;
}

int kd_gpu_graph_end(struct kd_gpu *g, struct kd_gpu_graph **out, struct kd_err *)
{
    g->records = false;
    *out = new kd_gpu_graph{g->recorded};
    return 0;
}

int kd_gpu_graph_run(struct kd_gpu *, const struct kd_gpu_graph *graph, struct kd_err *)
{
    for (const auto &f : graph->work)
        f();
    return 0;
}

void kd_gpu_graph_free(struct kd_gpu_graph *graph)
{
    delete graph;
}

/* Parts by name, each time of no length. */
int kd_gpu_account_begin(struct kd_gpu *g, bool, struct kd_err *)
{
    not_recorded(g, "an account");
    g->account = new kd_gpu_account{};
    return 0;
}

void kd_gpu_account_at(struct kd_gpu *g, const char *part)
{
    struct kd_gpu_account *a = g->account;
    int i = 0;
    if (!a)
        return;
    while (i < a->rows && strcmp(a->row[i].part, part))
        i++;
    if (i == KD_GPU_ACCOUNT_ROWS)
        abort();
    a->rows += i == a->rows;
    a->row[i].part = part;
    a->row[i].count++;
}

int kd_gpu_account_end(struct kd_gpu *g, struct kd_gpu_account *a, struct kd_err *)
{
    *a = *g->account;
    delete g->account;
    g->account = nullptr;
    return 0;
}

int kd_gpu_k3_fits(const struct kd_gpu_k3_shape *s, struct kd_err *err)
{
    const bool good = (s->kv_lora == 128 || s->kv_lora == 256 || s->kv_lora == 512) &&
                      s->kda_dim == KD_GPU_K3_DIM && s->conv == KD_GPU_K3_TAPS &&
                      s->nope == KD_GPU_K3_DIM && s->v_dim == KD_GPU_K3_DIM &&
                      s->rope == KD_GPU_K3_ROPE;
    return good ? 0 : kd_fail(err, KD_ENOTSUP, "widths that no kernel is built for");
}

int kd_gpu_k3_embed(struct kd_gpu *g, const struct kd_gpu_k3_batch *b, const void *table, bool bf16,
                    int64_t hidden, float *p, struct kd_err *)
{
    const struct kd_gpu_k3_batch c = *b;
    return then(g, [=] { launch_embed(c, table, bf16, hidden, p, 0); });
}

int kd_gpu_k3_mix_run(struct kd_gpu *g, const struct kd_gpu_k3_mix *m, struct kd_err *)
{
    const struct kd_gpu_k3_mix c = *m;
    return then(g, [=] { launch_mix(c, true, 0); });
}

int kd_gpu_k3_round(struct kd_gpu *g, float *x, int64_t count, uint16_t *out, struct kd_err *)
{
    return then(g, [=] { launch_round(x, count, out, 0); });
}

int kd_gpu_k3_finite(struct kd_gpu *g, const float *x, int64_t count, int32_t *bad, struct kd_err *)
{
    return then(g, [=] { launch_finite(x, count, bad, 0); });
}

int kd_gpu_k3_norm(struct kd_gpu *g, const float *x, const float *w, float eps, int64_t rows,
                   int64_t n, float *out, struct kd_err *)
{
    return then(g, [=] { launch_norm(x, w, eps, rows, n, out, 0); });
}

int kd_gpu_k3_situ(struct kd_gpu *g, const float *a, const float *b, float beta, float linear,
                   int64_t count, float *out, struct kd_err *)
{
    return then(g, [=] { launch_situ(a, b, beta, linear, count, out, 0); });
}

int64_t kd_gpu_k3_kda_floats(int64_t heads, int64_t rows)
{
    return kda_floats(heads, rows);
}

int kd_gpu_k3_kda_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                      const struct kd_gpu_k3_kda *k, struct kd_err *)
{
    const struct kd_gpu_k3_batch c = *b;
    const struct kd_gpu_k3_kda a = *k;
    return then(g, [=] { launch_kda(c, a, 0); });
}

int kd_gpu_k3_latents_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                          const struct kd_gpu_k3_latents *m, struct kd_err *)
{
    const struct kd_gpu_k3_batch c = *b;
    const struct kd_gpu_k3_latents a = *m;
    return then(g, [=] { launch_latents(c, a, 0); });
}

int64_t kd_gpu_k3_mla_floats(bool fast, int64_t heads, int64_t kv_lora, int64_t rows,
                             int64_t longest, int64_t most, int64_t *parts)
{
    return mla_floats(fast, heads, kv_lora, rows, longest, most, parts);
}

int kd_gpu_k3_mla_run(struct kd_gpu *g, const struct kd_gpu_k3_batch *b,
                      const struct kd_gpu_k3_mla *m, struct kd_err *err)
{
    const struct kd_gpu_k3_batch c = *b;
    const struct kd_gpu_k3_mla a = *m;
    if (m->kv_lora != 128)
        return kd_fail(err, KD_ENOTSUP, "latents of 128 here");
    if (m->fast && !b->host) /* prompts would take the form of few rows, unseen */
        return kd_fail(err, KD_EINVAL, "class fast without its segments in the host's memory");
    return then(g, [=] {
        a.fast ? launch_mla_batch<128>(c, a, false, 0)
               : launch_mla<128>(mla_args_of(c, a), a.bf16, 0);
    });
}

int kd_gpu_k3_route_run(struct kd_gpu *g, const struct kd_gpu_k3_route *r, struct kd_err *)
{
    const struct kd_gpu_k3_route c = *r;
    return then(g, [=] { launch_route(c, 0); });
}

} // extern "C"
