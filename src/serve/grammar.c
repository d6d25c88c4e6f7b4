#include "serve/grammar.h"

#include "base/mem.h"
#include "serve/grammar_int.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONFIGS_MAX = 4096,
    WORK_MAX = 1 << 21, /* steps of one mask: some tens of milliseconds, then it is too much */
    FRAMES_MAX = 1 << 20,
    FRAMES_TIDY = 1 << 14, /* more are left over from tokens taken: copy the live ones */
    CACHE = 4,
    CACHE_CONFIGS = 8,
    DIGITS_MAX = 15, /* of a bounded number with a fraction: exact in a double */
    INT_DIGITS_MAX = 18,
    FREE_DIGITS_MAX =
        200,           /* before and after the point of any other: with the exponent's two digits */
    EXP_DIGITS_MAX = 2 /* the value still fits a double, which readers may refuse to exceed */
};

/* An open rule: where to go on when it ends, and what it has counted. Frames are never changed, so
 * configurations share them. */
struct frame {
    int32_t parent, ret, depth;
    int64_t count;
};

enum phase { P_START, P_MINUS, P_ZERO, P_INT, P_DOT, P_FRAC, P_E, P_SIGN, P_EXP };

struct config {
    int32_t node, frame;
    uint8_t phase, negative, ints, fracs; /* of a number; phase also the place in an index */
    int64_t digits;                       /* a bounded number's, without the point */
};

struct set {
    struct config *v;
    int64_t count, cap;
};

struct kd_turn_rule {
    const struct kd_grammar *g;
    struct frame *frame;
    int64_t frames, frame_cap;
    struct set now, next, walk;
    int64_t *from;   /* [longest token + 2] where each depth's configurations begin in walk */
    int64_t *mark;   /* frames there */
    uint64_t *sum;   /* a mask being made */
    uint64_t *cache; /* [CACHE][words] */
    struct {
        int64_t count;
        struct config v[CACHE_CONFIGS];
    } key[CACHE];
    int64_t cached, age;
    int64_t work;
    bool failed, crowded;
};

static int32_t push(struct kd_turn_rule *r, struct frame f)
{
    if (r->frames == r->frame_cap) {
        struct frame *more;
        int64_t cap = r->frame_cap ? 2 * r->frame_cap : 1024;
        if (r->frames >= FRAMES_MAX || kd_mem_new(&more, cap, sizeof *more, "grammar", NULL)) {
            r->failed = true;
            return 0;
        }
        if (r->frames)
            memcpy(more, r->frame, (size_t)r->frames * sizeof *more);
        kd_mem_free(r->frame);
        r->frame = more;
        r->frame_cap = cap;
    }
    r->frame[r->frames] = f;
    return (int32_t)r->frames++;
}

static bool same_frame(const struct kd_turn_rule *r, int32_t a, int32_t b)
{
    while (a != b) {
        const struct frame *x = &r->frame[a], *y = &r->frame[b];
        if (a < 0 || b < 0 || x->ret != y->ret || x->count != y->count || x->depth != y->depth)
            return false;
        a = x->parent;
        b = y->parent;
    }
    return true;
}

static bool same_config(const struct config *a, const struct config *b)
{
    return a->node == b->node && a->phase == b->phase && a->negative == b->negative &&
           a->ints == b->ints && a->fracs == b->fracs && a->digits == b->digits;
}

/* Adds to the set's part from `begin` on, once. */
static void add(struct kd_turn_rule *r, struct set *s, int64_t begin, struct config c)
{
    for (int64_t i = begin; i < s->count; i++)
        if (same_config(&s->v[i], &c) && same_frame(r, s->v[i].frame, c.frame))
            return;
    if (s->count - begin >= CONFIGS_MAX) {
        r->crowded = true;
        return;
    }
    if (s->count == s->cap) {
        struct config *more;
        int64_t cap = s->cap ? 2 * s->cap : 256;
        if (kd_mem_new(&more, cap, sizeof *more, "grammar", NULL)) {
            r->failed = true;
            return;
        }
        if (s->count)
            memcpy(more, s->v, (size_t)s->count * sizeof *more);
        kd_mem_free(s->v);
        s->v = more;
        s->cap = cap;
    }
    s->v[s->count++] = c;
}

/* The frame with one more counted, or -1 past the bound. Without bounds nothing is counted. */
static int32_t counted(struct kd_turn_rule *r, int32_t frame, int32_t bound)
{
    if (bound < 0)
        return frame;
    struct frame f = r->frame[frame];
    if (f.count >= r->g->bound[bound].most)
        return -1;
    f.count++;
    return push(r, f);
}

static bool enough(const struct kd_turn_rule *r, int32_t frame, int32_t bound)
{
    return bound < 0 || r->frame[frame].count >= r->g->bound[bound].least;
}

static void reach(struct kd_turn_rule *r, struct set *s, int64_t begin, int32_t node,
                  int32_t frame);

static void reach_split(struct kd_turn_rule *r, struct set *s, int64_t begin,
                        const struct kd_gnode *n, int32_t frame)
{
    for (int32_t e = n->edge; e >= 0; e = r->g->edge[e].more) {
        const struct kd_gedge *k = &r->g->edge[e];
        int32_t f = k->flags & KD_G_INC ? counted(r, frame, n->arg) : frame;
        if (f >= 0 && (!(k->flags & KD_G_NEED) || enough(r, frame, n->arg)))
            reach(r, s, begin, k->to, f);
    }
}

/* Adds what consumes something, from a node on without consuming. No rule can come back to itself
 * on the way (the compiler sees to that), so this ends. */
static void reach(struct kd_turn_rule *r, struct set *s, int64_t begin, int32_t node, int32_t frame)
{
    const struct kd_gnode *n = &r->g->node[node];
    switch ((enum kd_gop)n->op) {
    case KD_G_RET:
        reach(r, s, begin, r->frame[frame].ret, r->frame[frame].parent);
        break;
    case KD_G_SPLIT:
        reach_split(r, s, begin, n, frame);
        break;
    case KD_G_CALL: {
        int32_t depth = r->frame[frame].depth + 1;
        if (depth > KD_GRAMMAR_DEPTH_MAX)
            break;
        int32_t f = push(r, (struct frame){frame, n->next, depth, 0});
        if (!r->failed)
            reach(r, s, begin, r->g->rule[n->arg], f);
        break;
    }
    case KD_G_RAW:
        add(r, s, begin, (struct config){.node = node, .frame = frame});
        if (enough(r, frame, n->arg))
            reach(r, s, begin, n->next, frame);
        break;
    case KD_G_BYTES:
    case KD_G_ID:
    case KD_G_NUM:
    case KD_G_INDEX:
    case KD_G_END:
        add(r, s, begin, (struct config){.node = node, .frame = frame});
        break;
    }
}

/* Numbers. */

static bool meets(double lo, double hi, bool open_hi, const struct kd_gnum *n, bool negative)
{
    /* The reachable values are [lo, hi) or [lo, hi], mirrored when negative. */
    if (negative)
        return -lo >= n->min && (open_hi ? -hi < n->max : -hi <= n->max);
    return lo <= n->max && (open_hi ? hi > n->min : hi >= n->min);
}

/* Whether a bounded number that begins so can still end inside its bounds. */
static bool feasible(const struct config *c, const struct kd_gnum *n)
{
    double v = (double)c->digits, one = 1;
    if (!n->bounded || c->phase == P_START)
        return true;
    if (c->phase == P_MINUS)
        return n->integer ? n->imin < 0 : n->min < 0;
    if (n->integer) {
        int64_t lo = c->digits, hi = c->digits;
        for (int more = c->ints; more <= INT_DIGITS_MAX; more++) {
            if (c->negative ? -lo >= n->imin && -hi <= n->imax : hi >= n->imin && lo <= n->imax)
                return true;
            if (c->phase == P_ZERO || more == INT_DIGITS_MAX)
                break;
            lo = lo * 10;
            hi = hi * 10 + 9;
        }
        return false;
    }
    for (int i = 0; i < c->fracs; i++)
        one = one * 10;
    if (c->phase == P_DOT || c->phase == P_FRAC)
        return meets(v / one, (v + 1) / one, c->ints + c->fracs < DIGITS_MAX, n, c->negative) &&
               (c->ints + c->fracs < DIGITS_MAX || meets(v / one, v / one, false, n, c->negative));
    for (int more = c->ints; more <= DIGITS_MAX; more++, one *= 10) {
        if (meets(v * one, (v + 1) * one, true, n, c->negative))
            return true;
        if (c->phase == P_ZERO)
            break;
    }
    return false;
}

static bool complete(const struct config *c, const struct kd_gnum *n)
{
    if (c->phase != P_ZERO && c->phase != P_INT && c->phase != P_FRAC && c->phase != P_EXP)
        return false;
    if (!n->bounded)
        return true;
    if (n->integer) {
        int64_t v = c->negative ? -c->digits : c->digits;
        return v >= n->imin && v <= n->imax;
    }
    double v = (double)c->digits, one = 1;
    for (int i = 0; i < c->fracs; i++)
        one = one * 10;
    v = (c->negative ? -v : v) / one;
    return v >= n->min && v <= n->max;
}

static bool number_step(struct config *c, uint8_t b, const struct kd_gnum *n)
{
    bool digit = b >= '0' && b <= '9';
    switch ((enum phase)c->phase) {
    case P_START:
        if (b == '-') {
            c->phase = P_MINUS;
            c->negative = 1;
            return true;
        }
        c->phase = b == '0' ? P_ZERO : P_INT;
        break;
    case P_MINUS:
        if (b == '0' && n->integer) /* -0 is no other number than 0 */
            return false;
        c->phase = b == '0' ? P_ZERO : P_INT;
        break;
    case P_ZERO:
    case P_INT:
        if (!n->integer && b == '.') {
            c->phase = P_DOT;
            return !n->bounded || c->ints < DIGITS_MAX;
        }
        if (!n->integer && !n->bounded && (b == 'e' || b == 'E')) {
            c->fracs = 0;
            c->phase = P_E;
            return true;
        }
        if (c->phase == P_ZERO)
            return false;
        break;
    case P_DOT:
    case P_FRAC:
        if (c->phase == P_FRAC && !n->bounded && (b == 'e' || b == 'E')) {
            c->fracs = 0;
            c->phase = P_E;
            return true;
        }
        c->phase = P_FRAC;
        break;
    case P_E:
        if (b == '+' || b == '-') {
            c->phase = P_SIGN;
            return true;
        }
        c->phase = P_EXP;
        break;
    case P_SIGN:
    case P_EXP:
        c->phase = P_EXP;
        break;
    }
    if (!digit)
        return false;
    if (!n->bounded) {
        uint8_t *digits = c->phase == P_FRAC || c->phase == P_EXP ? &c->fracs : &c->ints;
        uint8_t most = c->phase == P_EXP ? EXP_DIGITS_MAX : FREE_DIGITS_MAX;
        return ++*digits <= most;
    }
    if (c->ints + c->fracs >= (n->integer ? INT_DIGITS_MAX : DIGITS_MAX))
        return false;
    c->digits = c->digits * 10 + (b - '0');
    *(c->phase == P_FRAC ? &c->fracs : &c->ints) += 1;
    return true;
}

static void step_number(struct kd_turn_rule *r, struct set *s, int64_t begin, struct config c,
                        uint8_t b)
{
    const struct kd_gnode *n = &r->g->node[c.node];
    const struct kd_gnum *spec = &r->g->num[n->arg];
    if (!number_step(&c, b, spec) || !feasible(&c, spec))
        return;
    add(r, s, begin, c);
    if (complete(&c, spec))
        reach(r, s, begin, n->next, c.frame);
}

static void step_index(struct kd_turn_rule *r, struct set *s, int64_t begin, struct config c,
                       uint8_t b)
{
    const struct kd_gnode *n = &r->g->node[c.node];
    char text[24];
    int size =
        snprintf(text, sizeof text, "%lld", (long long)r->frame[r->frame[c.frame].parent].count);
    if (c.phase >= size || (uint8_t)text[c.phase] != b)
        return;
    c.phase++;
    if (c.phase == size)
        reach(r, s, begin, n->next, c.frame);
    else
        add(r, s, begin, c);
}

/* The configurations after one byte, into s from `begin` on. */
static void step(struct kd_turn_rule *r, struct set *s, int64_t begin, struct config c, uint8_t b)
{
    const struct kd_gnode *n = &r->g->node[c.node];
    int32_t f;
    switch ((enum kd_gop)n->op) {
    case KD_G_BYTES:
        for (int32_t e = n->edge; e >= 0; e = r->g->edge[e].more) {
            const struct kd_gedge *k = &r->g->edge[e];
            if (b < k->lo || b > k->hi)
                continue;
            f = k->flags & KD_G_INC ? counted(r, c.frame, n->arg) : c.frame;
            if (f >= 0 && (!(k->flags & KD_G_NEED) || enough(r, c.frame, n->arg)))
                reach(r, s, begin, k->to, f);
        }
        break;
    case KD_G_RAW:
        f = (b & 0xc0) != 0x80 ? counted(r, c.frame, n->arg) : c.frame;
        if (f >= 0)
            reach(r, s, begin, c.node, f);
        break;
    case KD_G_NUM:
        step_number(r, s, begin, c, b);
        break;
    case KD_G_INDEX:
        step_index(r, s, begin, c, b);
        break;
    case KD_G_RET:
    case KD_G_SPLIT:
    case KD_G_CALL:
    case KD_G_ID:
    case KD_G_END:
        break;
    }
}

/* Masks. */

static void set_bit(uint64_t *bits, int32_t id)
{
    bits[id / 64] |= 1ull << (id % 64);
}

/* Whether every plain token may follow: the inside of a string whose length has room for any. */
static bool takes_plain(const struct kd_turn_rule *r, const struct config *c)
{
    const struct kd_gnode *n = &r->g->node[c->node];
    if (n->op != KD_G_BYTES || !(n->flags & KD_G_BODY))
        return false;
    return n->arg < 0 ||
           r->g->bound[n->arg].most - r->frame[c->frame].count >= r->g->v->plain_chars_max;
}

/* The string's and the raw text's share, by tables: (kind <= most_kind) and short enough. */
static void mask_text(struct kd_turn_rule *r, const struct config *c, uint64_t *bits)
{
    const struct kd_vocab *v = r->g->v;
    const struct kd_gnode *n = &r->g->node[c->node];
    bool raw = n->op == KD_G_RAW;
    int64_t room = n->arg < 0 ? INT64_MAX : r->g->bound[n->arg].most - r->frame[c->frame].count;
    if (room >= (raw ? v->chars_max : v->plain_chars_max)) {
        const uint64_t *from = raw ? v->all_bits : v->plain_bits;
        for (int64_t i = 0; i < v->words; i++)
            bits[i] |= from[i];
        return;
    }
    for (int32_t id = 0; id < v->vocab; id++)
        if (v->kind[id] && v->kind[id] <= (raw ? 3 : 1) && v->chars[id] <= room)
            set_bit(bits, id);
}

/* All tokens of a trie that the set lets through. walk holds the set at its beginning. */
static void mask_trie(struct kd_turn_rule *r, const struct kd_trie *t, bool plain, uint64_t *bits)
{
    struct set *w = &r->walk;
    r->from[0] = 0;
    r->from[1] = w->count;
    r->mark[0] = r->frames;
    for (int64_t i = 0; i < t->count && !r->failed && r->work < WORK_MAX;) {
        int64_t d = t->depth[i], begin = r->from[d];
        bool any = false;
        w->count = begin;
        r->frames = r->mark[d - 1];
        r->work += begin - r->from[d - 1];
        for (int64_t k = r->from[d - 1]; k < begin; k++)
            step(r, w, begin, w->v[k], t->byte[i]);
        for (int64_t k = begin; plain && k < w->count && !any; k++)
            any = takes_plain(r, &w->v[k]);
        if (any) {
            for (int32_t k = t->first[i]; k < t->first[t->end[i]]; k++)
                set_bit(bits, t->id[k]);
        } else if (w->count > begin) {
            for (int32_t k = t->first[i]; k < t->first[i + 1]; k++)
                set_bit(bits, t->id[k]);
        }
        if (any || w->count == begin) {
            i = t->end[i];
            continue;
        }
        r->from[d + 1] = w->count;
        r->mark[d] = r->frames;
        i++;
    }
    r->frames = r->mark[0];
}

static bool same_key(const struct kd_turn_rule *r, int64_t k)
{
    if (r->key[k].count != r->now.count)
        return false;
    for (int64_t i = 0; i < r->now.count; i++)
        if (!same_config(&r->key[k].v[i], &r->now.v[i]) ||
            r->key[k].v[i].frame != r->now.v[i].frame)
            return false;
    return true;
}

static void mask_set(struct kd_turn_rule *r, uint64_t *bits)
{
    const struct kd_grammar *g = r->g;
    const struct kd_vocab *v = g->v;
    memset(bits, 0, (size_t)v->words * sizeof *bits);
    for (int pass = 0; pass < 2; pass++) {
        r->walk.count = 0;
        for (int64_t i = 0; i < r->now.count; i++) {
            const struct config *c = &r->now.v[i];
            const struct kd_gnode *n = &g->node[c->node];
            bool body = n->op == KD_G_BYTES && (n->flags & KD_G_BODY);
            if (n->op == KD_G_ID)
                set_bit(bits, n->arg);
            if (!pass && (n->op == KD_G_RAW || body))
                mask_text(r, c, bits);
            if (n->op != KD_G_ID && n->op != KD_G_RAW && n->op != KD_G_END && (pass || !body))
                add(r, &r->walk, 0, *c);
        }
        if (r->walk.count)
            mask_trie(r, pass ? &v->other : &v->plain, !pass, bits);
    }
}

int kd_turn_rule_mask(struct kd_turn_rule *r, uint64_t *bits, int64_t vocab, struct kd_err *err)
{
    int64_t words = (vocab + 63) / 64, have = r->g->v->words, k = 0;
    uint64_t any = 0, *from = r->sum;
    while (k < r->cached && !same_key(r, k))
        k++;
    if (k < r->cached) {
        from = r->cache + k * have;
    } else {
        r->crowded = false;
        r->work = 0;
        mask_set(r, r->sum);
        r->crowded = r->crowded || r->work >= WORK_MAX;
        if (r->failed || r->crowded)
            return kd_fail(err, r->failed ? KD_ENOMEM : KD_ENOTSUP,
                           "the rules of the answer leave too many ways open");
        if (r->now.count <= CACHE_CONFIGS) {
            k = r->cached < CACHE ? r->cached++ : r->age++ % CACHE;
            r->key[k].count = r->now.count;
            memcpy(r->key[k].v, r->now.v, (size_t)r->now.count * sizeof *r->now.v);
            memcpy(r->cache + k * have, r->sum, (size_t)have * sizeof *r->sum);
        }
    }
    for (int64_t i = 0; i < words; i++)
        any |= bits[i] &= i < have ? from[i] : 0;
    return any ? 0
               : kd_fail(err, KD_ENOTSUP, "the rules of the answer leave no token to go on with");
}

/* Copies the frames that are in use to the front. */
static int tidy(struct kd_turn_rule *r, struct kd_err *err)
{
    int32_t *to;
    int64_t old = r->frames, n = 0;
    if (old < FRAMES_TIDY)
        return 0;
    if (kd_mem_zero(&to, old, sizeof *to, "grammar", err))
        return -1;
    for (int64_t i = 0; i < r->now.count; i++)
        for (int32_t f = r->now.v[i].frame; f >= 0 && !to[f]; f = r->frame[f].parent)
            to[f] = 1;
    for (int64_t f = 0; f < old; f++) {
        if (!to[f])
            continue;
        struct frame k = r->frame[f];
        k.parent = k.parent >= 0 ? to[k.parent] - 1 : -1; /* parents come before children */
        r->frame[n] = k;
        to[f] = (int32_t)++n;
    }
    for (int64_t i = 0; i < r->now.count; i++)
        r->now.v[i].frame = to[r->now.v[i].frame] - 1;
    r->frames = n;
    r->cached = 0;
    kd_mem_free(to);
    return 0;
}

static void swap(struct kd_turn_rule *r)
{
    struct set s = r->now;
    r->now = r->next;
    r->next = s;
    r->next.count = 0;
}

int kd_turn_rule_take(struct kd_turn_rule *r, int32_t id, struct kd_err *err)
{
    const struct kd_vocab *v = r->g->v;
    size_t n = 0;
    const char *s = id >= 0 && id < v->vocab ? kd_tok_bytes(v->tok, id, &n) : NULL;
    bool text = s && v->kind[id];
    r->crowded = false;
    for (int64_t i = 0; !text && i < r->now.count; i++) {
        const struct kd_gnode *k = &r->g->node[r->now.v[i].node];
        if (k->op == KD_G_ID && k->arg == id)
            reach(r, &r->next, 0, k->next, r->now.v[i].frame);
    }
    if (!text)
        swap(r);
    for (size_t at = 0; text && at < n; at++) {
        for (int64_t i = 0; i < r->now.count; i++)
            step(r, &r->next, 0, r->now.v[i], (uint8_t)s[at]);
        swap(r);
    }
    if (r->failed)
        return kd_fail(err, KD_ENOMEM, "no memory for the rules of the answer");
    if (!r->now.count)
        return kd_fail(err, KD_EINVAL, "token %d breaks the rules of the answer", id);
    return tidy(r, err);
}

bool kd_turn_rule_done(const struct kd_turn_rule *r)
{
    for (int64_t i = 0; i < r->now.count; i++)
        if (r->g->node[r->now.v[i].node].op == KD_G_END)
            return true;
    return false;
}

int kd_turn_rule_open(struct kd_turn_rule **out, const struct kd_grammar *g, struct kd_err *err)
{
    const struct kd_vocab *v = g->v;
    struct kd_turn_rule *r;
    int64_t longest = 0;
    const struct kd_trie *tries[] = {&v->plain, &v->other};
    *out = NULL;
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0; i < tries[t]->count; i++)
            longest = tries[t]->depth[i] > longest ? tries[t]->depth[i] : longest;
    if (kd_mem_zero(&r, 1, sizeof *r, "grammar", err))
        return -1;
    r->g = g;
    if (kd_mem_new(&r->from, longest + 3, sizeof *r->from, "grammar", err) ||
        kd_mem_new(&r->mark, longest + 3, sizeof *r->mark, "grammar", err) ||
        kd_mem_new(&r->sum, v->words, sizeof *r->sum, "grammar", err) ||
        kd_mem_new(&r->cache, CACHE * v->words, sizeof *r->cache, "grammar", err)) {
        kd_turn_rule_close(r);
        return -1;
    }
    int32_t root = push(r, (struct frame){-1, -1, 0, 0});
    if (!r->failed)
        reach(r, &r->now, 0, g->start, root);
    if (r->failed || r->crowded) {
        kd_turn_rule_close(r);
        return kd_fail(err, KD_ENOTSUP, "the rules of the answer leave too many ways open");
    }
    *out = r;
    return 0;
}

void kd_turn_rule_close(struct kd_turn_rule *r)
{
    if (!r)
        return;
    kd_mem_free(r->frame);
    kd_mem_free(r->now.v);
    kd_mem_free(r->next.v);
    kd_mem_free(r->walk.v);
    kd_mem_free(r->from);
    kd_mem_free(r->mark);
    kd_mem_free(r->sum);
    kd_mem_free(r->cache);
    kd_mem_free(r);
}

void kd_grammar_close(struct kd_grammar *g)
{
    if (!g)
        return;
    kd_mem_free(g->node);
    kd_mem_free(g->edge);
    kd_mem_free(g->bound);
    kd_mem_free(g->num);
    kd_mem_free(g->rule);
    kd_mem_free(g);
}

int64_t kd_grammar_states(const struct kd_grammar *g)
{
    return g->nodes;
}
