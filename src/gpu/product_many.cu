/* Routed experts for many tokens: work space, launches. */
#include "gpu/product_gemm_host.cuh"
#include "gpu/product_many_plan.cuh"

using namespace kd_gemm;

namespace
{

enum { SLAB = 16384, ALIGN = 256 };

int64_t whole(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

template <class A>
int launch(struct kd_gpu *g, void (*kernel)(A), int64_t blocks, int threads, int64_t shared, A *a,
           struct kd_err *err)
{
    void *arguments[] = {a};

    return kd_gpu_launch(g, (const void *)kernel, blocks, threads, shared, arguments,
                         "experts of many tokens", err);
}

/* One half of one slab. */
int run_half(struct kd_gpu *g, const struct kd_gemm_experts *e, half_args *a, struct kd_err *err)
{
    const int64_t most = INT32_MAX;
    tasks_args all = {};

    if (launch(g, prepare_experts, 8ll * g->facts.sms, THREADS, 64, a, err))
        return -1;
    all.half = *a;
    all.experts = 1;
    if (e->kind->narrow) {
        all.half.narrow = 1;
        if (kd_gpu_gemm_launch(g, e->kind->narrow, &all, most, err))
            return -1;
        all.half.narrow = 0;
    }
    return kd_gpu_gemm_launch(g, e->kind, &all, most, err);
}

/* Both halves of one slab and the sum. */
int run_slab(struct kd_gpu *g, const struct kd_gemm_experts *e, const struct kd_gpu_experts_call *c,
             int slab, struct kd_err *err)
{
    const struct kd_gpu_experts_shape *s = e->shape;
    const struct kd_gemm_space *space = e->space;
    const int64_t cols = s->cols, inner = s->inner;
    half_args a = {};
    many_sum_args sum = {space->l, space->y,    c->weight, c->y, whole(cols, 4),
                         c->ldy,   (int)c->top, (int)cols, slab};

    a.table = e->table;
    a.l = space->l;
    a.from = c->x;
    a.ldx = c->ldx;
    a.y = space->y;
    a.ldy = whole(2 * inner, 4);
    a.x = space->x;
    a.scale = space->scale;
    a.rows = space->rows / e->kind->planes;
    a.planes = e->kind->planes;
    a.coded = e->coded;
    a.slab = slab;
    a.cols = (int32_t)cols;
    a.columns = (int32_t)inner;
    a.beta = c->beta;
    a.linear = c->linear;
    if (run_half(g, e, &a, err))
        return -1;
    a.from = space->y;
    a.ldx = a.ldy;
    a.ldy = whole(cols, 4);
    a.down = 1;
    a.cols = (int32_t)inner;
    a.columns = (int32_t)cols;
    if (run_half(g, e, &a, err))
        return -1;
    return launch(g, sum_slab, c->T * ((cols + COLUMNS - 1) / COLUMNS), COLUMNS, 256, &sum, err);
}

} // namespace

int64_t kd_gpu_gemm_place(struct kd_gemm_space *s, const struct kd_gpu_experts_shape *shape,
                          char *at)
{
    const int64_t pairs = shape->tokens * shape->top;
    const int64_t ins =
        128 * whole(shape->cols > shape->inner ? shape->cols : shape->inner, SIDE) / STEP;
    const int64_t wide = whole(2 * shape->inner, 4), out = whole(shape->cols, 4);
    int64_t bytes = 0;
    auto take = [&](int64_t n) {
        char *p = at ? at + bytes : nullptr;
        bytes += whole(n, ALIGN);
        return (void *)p;
    };

    s->slab = (int32_t)(pairs < SLAB ? whole(pairs, 2) : (int64_t)SLAB);
    /* Two planes have half of it; a slab's last group may pass its end. */
    s->rows = s->slab + 2 * GROUP_ROWS;
    s->l.p = (many_plan *)take(sizeof(many_plan));
    s->l.of = (group *)take((EXPERTS + pairs / GROUP_ROWS) * (int64_t)sizeof(group));
    s->l.pair = (int32_t *)take(4 * pairs);
    s->l.token = (int32_t *)take(4 * pairs);
    s->l.item[0] = (int32_t *)take(8 * (EXPERTS + pairs / GROUP_ROWS));
    s->l.item[1] = (int32_t *)take(4 * (EXPERTS + pairs / GROUP_ROWS));
    s->l.order = (int32_t *)take(4 * pairs);
    s->l.used = (int32_t *)take(4 * shape->tokens);
    /* w1's and w3's inputs, later w2's; w1's and w3's outputs, later w2's. */
    s->x = (unsigned char *)take(2 * ins * s->rows);
    s->scale = (float *)take(2 * 4 * s->rows);
    s->y = (float *)take(4 * (wide > out ? wide : out) * s->rows);
    return bytes;
}

int kd_gpu_gemm_experts(struct kd_gpu *g, const struct kd_gemm_experts *e,
                        const struct kd_gpu_experts_call *c, struct kd_err *err)
{
    const int64_t pairs = c->T * c->top, slab = e->space->slab / e->kind->planes;
    many_args a = {e->space->l,  c->ids, (int32_t)c->T, (int32_t)c->top, (int32_t)e->shape->experts,
                   (int32_t)slab};

    order_args o = {e->table, e->space->l, e->coded, e->kind->narrow ? (int)NARROW_ROWS : 0};
    const int64_t slabs = (pairs + slab - 1) / slab;

    if (launch(g, count_pairs, 1, EXPERTS, sizeof(count_shared), &a, err) ||
        launch(g, place_pairs, (pairs + COLUMNS - 1) / COLUMNS, COLUMNS, 0, &a, err) ||
        launch(g, order_items, 2 * slabs, KEYS, 8 * KEYS, &o, err))
        return -1;
    for (int64_t i = 0; i < slabs; i++)
        if (run_slab(g, e, c, (int)i, err))
            return -1;
    return 0;
}
