/* How many tokens to draft: as many as are likely to be worth their row of the step. */
#include "serve/engine_int.h"

/* Tokens after which a choice whose drafts failed tries one again; twice as many after each that
 * fails too, so that where nothing repeats drafts cost next to nothing. */
enum { PROBE = 32, PROBE_MAX = 512 };
static const double decay = 0.98, settle = 0.1;

void kd_cost_add(struct kd_cost *k, double rows, double seconds)
{
    k->w = k->w * decay + 1.0;
    k->r = k->r * decay + rows;
    k->t = k->t * decay + seconds;
    k->rr = k->rr * decay + rows * rows;
    k->rt = k->rt * decay + rows * seconds;
}

/* What one more row costs, in tokens that the step of `rows` would make in that time. Before steps
 * of different sizes were seen, a guess. */
static double row_price(const struct kd_cost *k, double rows)
{
    double det = k->w * k->rr - k->r * k->r;
    if (det < 1e-3 * k->w * k->w)
        return 0.3;
    double b = (k->w * k->rt - k->r * k->t) / det, a = (k->t - b * k->r) / k->w;
    double all = a + b * rows;
    if (b <= 0.0)
        return 0.0;
    return all > 0.0 ? b * rows / all : 1.0;
}

static bool reserve(struct kd_engine *e, struct kd_choice *c)
{
    if (c->draftable)
        return true;
    int64_t bytes = kd_k3_draft_bytes(e->cfg);
    pthread_mutex_lock(&e->lock);
    if (e->reserved + bytes <= e->o.memory_bytes) {
        e->reserved += bytes;
        c->reserved += bytes;
        c->draftable = true;
    }
    pthread_mutex_unlock(&e->lock);
    return c->draftable;
}

void kd_draft_plan(struct kd_engine *e, struct kd_choice *c, int64_t rows)
{
    int64_t max = e->o.draft_max, agree;
    int64_t left = c->r->spec.max_tokens - c->made - 1;
    max = max < left ? max : left;
    left = c->planned - c->lane.ids.count; /* never past the context either */
    max = max < left ? max : left;
    c->draft_count = 0;
    if (max <= 0)
        return;
    int64_t n = kd_ngram_draft(&c->ngram, c->lane.ids.id, c->lane.ids.count, max, c->draft, &agree);
    double price = row_price(&e->cost, (double)rows), p = c->accept;
    int64_t take = 0;
    while (take < n && p > price) {
        take++;
        p *= c->accept;
    }
    c->probing = !take && n && c->since_draft >= (c->probe_after ? c->probe_after : PROBE);
    take = c->probing ? 1 : take;
    if (take && reserve(e, c))
        c->draft_count = take;
}

void kd_draft_result(struct kd_choice *c, int64_t accepted)
{
    if (accepted)
        c->probe_after = PROBE;
    else if (c->probing)
        c->probe_after = c->probe_after ? 2 * c->probe_after : 2 * PROBE;
    c->probe_after = c->probe_after < PROBE_MAX ? c->probe_after : PROBE_MAX;
    for (int64_t i = 0; i < accepted; i++)
        c->accept += settle * (1.0 - c->accept);
    if (accepted < c->draft_count)
        c->accept -= settle * c->accept;
    c->since_draft = c->draft_count ? 0 : c->since_draft + 1;
}
