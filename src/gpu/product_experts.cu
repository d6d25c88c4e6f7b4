/* The routed experts of a layer: table, work space, launches. */
#include "gpu/product_gemm_host.cuh"
#include "gpu/product_places.cuh"

using namespace kd_experts;

struct kd_gpu_experts {
    struct kd_gpu *g;
    struct kd_gpu_experts_shape shape;
    enum kd_gpu_mat_type type; /* of all; NONE before the first is set */
    enum kd_codebook cb;
    entry *table; /* on the device */
    void *own;    /* work space, NULL if shared */
    /* Its parts: */
    plan *p;
    int32_t *counter;
    float *sums, *inner, *out;
    struct kd_gemm_space many;
};

namespace
{

using kd_codes::SIDE;

int blocks_of(int64_t n)
{
    return (int)((n + SIDE - 1) / SIDE);
}
int64_t whole(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Pairs of one launch, at most. */
int64_t pairs_of(const struct kd_gpu_experts_shape *s)
{
    return s->tokens * s->top < PAIRS ? s->tokens * s->top : (int64_t)PAIRS;
}

/* Floats of a pair's partial sums, of the half that has more; the others keep w1's and w3's
 * products there. */
int64_t sum_floats(const struct kd_gpu_experts_shape *s)
{
    const int cols = blocks_of(s->cols), inner = blocks_of(s->inner);
    const int64_t up = 2ll * kd_exl3::cut_of(cols).chunks * inner * SIDE,
                  down = (int64_t)kd_exl3::cut_of(inner).chunks * cols * SIDE;

    return up > down ? up : down;
}

/* The parts of the work space, from `at` on; returns its bytes. */
int64_t place(struct kd_gpu_experts *e, char *at)
{
    const struct kd_gpu_experts_shape *s = &e->shape;
    const int64_t pairs = pairs_of(s), cols = blocks_of(s->cols), inner = blocks_of(s->inner);
    int64_t bytes = 0;
    auto take = [&](int64_t n) {
        char *p = at ? at + bytes : nullptr;
        bytes += whole(n, 256);
        return (void *)p;
    };

    e->p = (plan *)take(sizeof(plan));
    e->counter = (int32_t *)take(4 * pairs * (cols > inner ? cols : inner));
    e->sums = (float *)take(4 * pairs * sum_floats(s));
    e->inner = (float *)take(4 * pairs * whole(s->inner, 4));
    e->out = (float *)take(4 * pairs * whole(s->cols, 4));
    if (s->tokens > KD_GPU_ROWS)
        bytes += kd_gpu_gemm_place(&e->many, s, at ? at + bytes : nullptr);
    return bytes;
}

int check_shape(const struct kd_gpu_experts_shape *s, struct kd_err *err)
{
    if (s->experts < 1 || s->experts > EXPERTS || s->tokens < 1 || s->tokens > 8192 || s->top < 1 ||
        s->top > 32 || s->cols < 1 || s->inner < 1 || s->cols > 1 << 20 || s->inner > 1 << 20)
        return kd_fail(err, KD_ENOTSUP,
                       "%lld experts of %lld x %lld, %lld of them for each of %lld tokens",
                       (long long)s->experts, (long long)s->inner, (long long)s->cols,
                       (long long)s->top, (long long)s->tokens);
    return 0;
}

bool same(const struct kd_gpu_experts_shape *a, const struct kd_gpu_experts_shape *b)
{
    return a->experts == b->experts && a->cols == b->cols && a->inner == b->inner &&
           a->tokens == b->tokens && a->top == b->top;
}

int check_expert(struct kd_gpu_experts *e, int64_t id, const struct kd_gpu_mat m[3],
                 struct kd_err *err)
{
    const struct kd_gpu_experts_shape *s = &e->shape;

    for (int i = 0; i < 3; i++) {
        if (!e->type && (m[i].type == KD_GPU_MAT_EXL3 || m[i].type == KD_GPU_MAT_MXFP4 ||
                         m[i].type == KD_GPU_MAT_BLOCK)) {
            e->type = m[i].type;
            e->cb = m[i].cb;
        }
        if (!e->type || m[i].type != e->type || m[i].cb != e->cb)
            return kd_fail(
                err, KD_ENOTSUP,
                "expert %lld: experts on a device are all EXL3 of one codebook, all MXFP4 "
                "or all of ggml's blocks",
                (long long)id);
        if (m[i].rows != (i < 2 ? s->inner : s->cols) || m[i].cols != (i < 2 ? s->cols : s->inner))
            return kd_fail(err, KD_EINVAL, "expert %lld: a matrix of %lld x %lld", (long long)id,
                           (long long)m[i].rows, (long long)m[i].cols);
    }
    return 0;
}

/* One launch of one half of EXL3 experts. */
int launch_exl3(struct kd_gpu_experts *e, const struct kd_gpu_plan *p, half_args *a,
                struct kd_err *err)
{
    const int units = kd_gpu_units_most(p);
    tasks_args all = {};
    void *arguments[] = {&all};

    a->cut = kd_exl3::cut_of(a->ins);
    a->room = units * p->rows;
    all.half = *a;
    all.experts = 1;
    return kd_gpu_launch(e->g, (const void *)p->kernel, p->slots, 32 * kd_exl3::WARPS,
                         kd_gpu_plan_shared(p, a->cut.warps, units), arguments, "experts' products",
                         err);
}

template <kd_plain::type TYPE, int TOKENS>
int launch_half(struct kd_gpu_experts *e, half_args *a, int64_t pairs, struct kd_err *err)
{
    using s = kd_plain::shape<TYPE, TOKENS, kd_plain::expert_rows<TYPE>>;
    const int64_t tasks = pairs * (a->down ? 1 : 2) * ((a->outs + s::rows - 1) / s::rows);
    const int64_t limit = e->g->product_blocks ? e->g->product_blocks : 16 * e->g->facts.sms;
    void *arguments[] = {a};

    return kd_gpu_launch(e->g, (const void *)multiply_experts_plain<TYPE, TOKENS>,
                         tasks < limit ? tasks : limit, s::threads, s::memory, arguments,
                         "experts' products", err);
}

int run_exl3(struct kd_gpu_experts *e, const struct kd_gpu_plan *p, half_args *a,
             struct kd_err *err)
{
    const int cols = blocks_of(e->shape.cols), inner = blocks_of(e->shape.inner);

    a->ins = cols;
    a->outs = inner;
    a->y = e->inner;
    a->ldy = whole(e->shape.inner, 4);
    if (launch_exl3(e, p, a, err))
        return -1;
    a->x = e->inner;
    a->ldx = a->ldy;
    a->down = 1;
    a->ins = inner;
    a->outs = cols;
    a->y = e->out;
    a->ldy = whole(e->shape.cols, 4);
    return launch_exl3(e, p, a, err);
}

int launch_plain(struct kd_gpu_experts *e, bool one, half_args *a, int64_t pairs,
                 struct kd_err *err)
{
    using namespace kd_plain;

    if (e->type == KD_GPU_MAT_BLOCK)
        return one ? launch_half<BLOCK, 1>(e, a, pairs, err)
                   : launch_half<BLOCK, 8>(e, a, pairs, err);
    return one ? launch_half<MXFP4, 1>(e, a, pairs, err) : launch_half<MXFP4, 8>(e, a, pairs, err);
}

int run_plain(struct kd_gpu_experts *e, bool one, half_args *a, int64_t pairs, struct kd_err *err)
{
    const plan *p = e->p;
    int32_t inner = (int32_t)e->shape.inner;
    int64_t wide = 2 * e->shape.inner, ld = whole(e->shape.inner, 4);
    void *arguments[] = {&p, &e->sums, &wide, &e->inner, &ld, &inner, &a->beta, &a->linear};
    const int64_t parts = pairs * ((inner + COLUMNS - 1) / COLUMNS), limit = 8 * e->g->facts.sms;

    a->ins = (int32_t)e->shape.cols;
    a->outs = inner;
    a->y = e->sums;
    a->ldy = wide;
    if (launch_plain(e, one, a, pairs, err) ||
        kd_gpu_launch(e->g, (const void *)situ_places, parts < limit ? parts : limit, COLUMNS, 0,
                      arguments, "experts' products", err))
        return -1;
    a->x = e->inner;
    a->ldx = ld;
    a->down = 1;
    a->ins = inner;
    a->outs = (int32_t)e->shape.cols;
    a->y = e->out;
    a->ldy = whole(e->shape.cols, 4);
    return launch_plain(e, one, a, pairs, err);
}

/* Some tokens of a call, PAIRS pairs at most. */
int run_some(struct kd_gpu_experts *e, enum kd_gpu_class cls, const struct kd_gpu_experts_call *c,
             int64_t from, int64_t tokens, struct kd_err *err)
{
    /* Groups of 4 rows where few experts have more tokens. */
    const struct kd_gpu_plan p =
        kd_gpu_plan_of(e->g, cls, e->cb,
                       tokens > 4 && tokens * c->top <= 3 * e->shape.experts ? (int64_t)4 : tokens);
    const bool exl3 = e->type == KD_GPU_MAT_EXL3, alone = exl3 && tokens == 1;
    const int64_t cols = e->shape.cols;
    const int32_t *ids = c->ids + from * c->top;
    plan_args planned = {ids,
                         e->p,
                         (int32_t)tokens,
                         (int32_t)c->top,
                         (int32_t)e->shape.experts,
                         exl3          ? p.rows
                         : tokens == 1 ? 1
                                       : 8};
    half_args a = {};
    void *plan_list[] = {&planned};

    a.table = e->table;
    a.p = e->p;
    a.ids = alone ? ids : nullptr;
    a.x = c->x + from * c->ldx;
    a.ldx = c->ldx;
    a.sums = e->sums;
    a.counter = e->counter;
    a.top = (int32_t)c->top;
    a.experts = (int32_t)e->shape.experts;
    a.beta = c->beta;
    a.linear = c->linear;
    const bool few = tokens * c->top <= 32;
    if ((!alone && kd_gpu_launch(e->g, few ? (const void *)plan_few : (const void *)plan_pairs, 1,
                                 few ? 32 : (int)PAIRS, few ? 0 : (int64_t)sizeof(plan_shared),
                                 plan_list, "a plan of experts", err)) ||
        (exl3 ? run_exl3(e, &p, &a, err) : run_plain(e, tokens == 1, &a, tokens * c->top, err)))
        return -1;
    sum_args s = {e->p,
                  a.ids,
                  e->out,
                  c->weight + from * c->top,
                  c->y + from * c->ldy,
                  whole(cols, 4),
                  c->ldy,
                  a.top,
                  a.experts,
                  (int32_t)cols,
                  c->norm,
                  c->eps};
    void *sum_list[] = {&s};
    return c->norm ? kd_gpu_launch(e->g, (const void *)sum_norm, tokens, kd_k3::NORM_THREADS,
                                   sizeof(sum_shared), sum_list, "the sum over experts", err)
                   : kd_gpu_launch(e->g, (const void *)sum_experts,
                                   tokens * ((cols + COLUMNS - 1) / COLUMNS), COLUMNS,
                                   sizeof(sum_shared), sum_list, "the sum over experts", err);
}

} // namespace

extern "C" int64_t kd_gpu_experts_bytes(const struct kd_gpu_experts_shape *shape, bool shared)
{
    struct kd_gpu_experts e = {};
    struct kd_err err;

    if (check_shape(shape, &err))
        return -1;
    e.shape = *shape;
    return whole(shape->experts * (int64_t)sizeof(entry), 256) + (shared ? 0 : place(&e, nullptr));
}

extern "C" int kd_gpu_experts_open(struct kd_gpu_experts **out, struct kd_gpu *g,
                                   const struct kd_gpu_experts_shape *shape,
                                   struct kd_gpu_experts *share, struct kd_err *err)
{
    struct kd_gpu_experts *e;

    *out = NULL;
    if (check_shape(shape, err))
        return -1;
    if (share && !same(shape, &share->shape))
        return kd_fail(err, KD_EINVAL, "work space of experts that have another shape");
    if (kd_mem_zero((void **)&e, 1, sizeof *e, "experts", err))
        return -1;
    e->g = g;
    e->shape = *shape;
    void *table;
    if (kd_gpu_alloc(g, &table, shape->experts * (int64_t)sizeof(entry), "a table of experts",
                     err) ||
        (!share && kd_gpu_alloc(g, &e->own, place(e, nullptr), "work space of experts", err))) {
        kd_gpu_release(g, table);
        kd_mem_free(e);
        return -1;
    }
    e->table = (entry *)table;
    if (share) {
        e->p = share->p;
        e->counter = share->counter;
        e->sums = share->sums;
        e->inner = share->inner;
        e->out = share->out;
        e->many = share->many;
    } else {
        place(e, (char *)e->own);
    }
    *out = e;
    return 0;
}

extern "C" void kd_gpu_experts_close(struct kd_gpu_experts *e)
{
    if (!e)
        return;
    kd_gpu_release(e->g, e->table);
    kd_gpu_release(e->g, e->own);
    kd_mem_free(e);
}

extern "C" int kd_gpu_experts_set(struct kd_gpu_experts *e, int64_t first, int64_t count,
                                  const struct kd_gpu_mat (*m)[3], struct kd_err *err)
{
    entry *made;

    if (first < 0 || count < 0 || first > e->shape.experts - count)
        return kd_fail(err, KD_EINVAL, "experts %lld to %lld of %lld", (long long)first,
                       (long long)(first + count - 1), (long long)e->shape.experts);
    for (int64_t i = 0; i < count; i++)
        if (check_expert(e, first + i, m[i], err))
            return -1;
    if (!count)
        return 0;
    if (kd_mem_zero((void **)&made, count, sizeof *made, "a table of experts", err))
        return -1;
    for (int64_t i = 0; i < count; i++)
        made[i] = kd_gpu_expert(m[i]);
    const int rc = kd_gpu_upload(e->g, e->table + first, made, count * (int64_t)sizeof *made, err);
    kd_mem_free(made);
    return rc;
}

extern "C" int kd_gpu_experts_mul(struct kd_gpu_experts *e, enum kd_gpu_class cls,
                                  const struct kd_gpu_experts_call *c, struct kd_err *err)
{
    if (c->T < 0 || c->T > e->shape.tokens || c->top < 1 || c->top > e->shape.top || !e->type)
        return kd_fail(err, KD_EINVAL, "%lld experts for each of %lld tokens%s", (long long)c->top,
                       (long long)c->T, e->type ? "" : ", but none is set");
    if (c->ldx % 4 || (uintptr_t)c->x % 16)
        return kd_fail(err, KD_EINVAL, "activations of experts that are not aligned");
    if (c->norm && (c->ldy != e->shape.cols || c->ldy % 4 || c->ldy > KD_GPU_K3_WIDTH))
        return kd_fail(err, KD_EINVAL, "a norm of experts' sums of %lld columns",
                       (long long)c->ldy);
    if (kd_gpu_failed(cudaSetDevice(e->g->index), err, "choosing the device"))
        return -1;
    const struct kd_gemm_experts many = {e->table, kd_gpu_gemm_kind(cls, e->type, e->cb), &e->many,
                                         &e->shape, e->type == KD_GPU_MAT_EXL3};
    if (many.kind && c->T > (many.coded ? (int)KD_GPU_EXPERT_ROWS : (int)KD_GPU_ROWS))
        return kd_gpu_gemm_experts(e->g, &many, c, err) ||
                       (c->norm &&
                        kd_gpu_k3_norm(e->g, c->y, c->norm, c->eps, c->T, c->ldy, c->y, err))
                   ? -1
                   : 0;
    const int64_t most = PAIRS / c->top;
    for (int64_t t = 0; t < c->T; t += most)
        if (run_some(e, cls, c, t, c->T - t < most ? c->T - t : most, err))
            return -1;
    return 0;
}
