#include "serve/grammar_build.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void kd_gb_open(struct kd_gb *b, struct kd_grammar *g, struct kd_err *err)
{
    memset(b, 0, sizeof *b);
    b->g = g;
    b->err = err;
    b->until = thread_s() + KD_GRAMMAR_COMPILE_MS / 1000.0;
    b->string = b->raw = b->key = -1;
    for (int i = 0; i < KD_G_STYLES; i++)
        b->any[i] = b->object[i] = b->array[i] = -1;
    b->ret = kd_gb_node(b, KD_G_RET, -1, -1);
    b->end = kd_gb_node(b, KD_G_END, -1, -1);
}

void kd_gb_close(struct kd_gb *b)
{
    kd_mem_free(b->memo);
}

int32_t kd_gb_fail(struct kd_gb *b, enum kd_code code, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!b->failed)
        kd_fail(b->err, code, "%s%s%s", b->path, b->path[0] ? ": " : "", text);
    b->failed = true;
    return -1;
}

/* Room for one more in an array. */
static int room(struct kd_gb *b, void *array, int64_t count, int64_t *cap, size_t size)
{
    void **p = array, *more;
    if (count < *cap)
        return 0;
    int64_t to = *cap ? 2 * *cap : 64;
    if (kd_mem_new(&more, to, (int64_t)size, "grammar", b->err)) {
        b->failed = true;
        return -1;
    }
    if (count)
        memcpy(more, *p, (size_t)count * size);
    kd_mem_free(*p);
    *p = more;
    *cap = to;
    return 0;
}

int32_t kd_gb_node(struct kd_gb *b, enum kd_gop op, int32_t next, int32_t arg)
{
    struct kd_grammar *g = b->g;
    if (b->failed)
        return -1;
    if (g->nodes >= KD_GRAMMAR_STATES_MAX)
        return kd_gb_fail(b, KD_ENOTSUP, "needs more than %d states", KD_GRAMMAR_STATES_MAX);
    if (g->nodes % 256 == 255 && thread_s() > b->until)
        return kd_gb_fail(b, KD_ENOTSUP, "takes more than %d ms to prepare", KD_GRAMMAR_COMPILE_MS);
    if (room(b, &g->node, g->nodes, &g->node_cap, sizeof *g->node))
        return -1;
    g->node[g->nodes] = (struct kd_gnode){(uint8_t)op, 0, next, arg, -1};
    return (int32_t)g->nodes++;
}

void kd_gb_edge(struct kd_gb *b, int32_t node, int lo, int hi, int32_t to, unsigned flags)
{
    struct kd_grammar *g = b->g;
    if (b->failed || lo > hi || room(b, &g->edge, g->edges, &g->edge_cap, sizeof *g->edge))
        return;
    g->edge[g->edges] =
        (struct kd_gedge){(uint8_t)lo, (uint8_t)hi, (uint8_t)flags, to, g->node[node].edge};
    g->node[node].edge = (int32_t)g->edges++;
}

int32_t kd_gb_text(struct kd_gb *b, const char *s, size_t n, int32_t next)
{
    while (n && !b->failed) {
        int32_t node = kd_gb_node(b, KD_G_BYTES, -1, -1);
        int c = (unsigned char)s[--n];
        kd_gb_edge(b, node, c, c, next, 0);
        next = node;
    }
    return next;
}

int32_t kd_gb_str(struct kd_gb *b, const char *s, int32_t next)
{
    return kd_gb_text(b, s, strlen(s), next);
}

static int by_text(const void *pa, const void *pb)
{
    const struct kd_buf *a = pa, *b = pb;
    size_t n = a->size_bytes < b->size_bytes ? a->size_bytes : b->size_bytes;
    int c = n ? memcmp(a->data, b->data, n) : 0;
    return c ? c : (a->size_bytes > b->size_bytes) - (a->size_bytes < b->size_bytes);
}

/* texts[0..count) agree in their first `at` bytes. */
static int32_t texts_from(struct kd_gb *b, const struct kd_buf *texts, int64_t count, size_t at,
                          int32_t next)
{
    if (count == 1)
        return kd_gb_text(b, texts->data + at, texts->size_bytes - at, next);
    int32_t split = -1, node = kd_gb_node(b, KD_G_BYTES, -1, -1);
    int64_t i = 0;
    while (i < count && texts[i].size_bytes == at)
        i++;
    if (i) {
        split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
        kd_gb_edge(b, split, 0, 0, next, 0);
        kd_gb_edge(b, split, 0, 0, node, 0);
    }
    while (i < count && !b->failed) {
        int64_t j = i + 1;
        while (j < count && texts[j].data[at] == texts[i].data[at])
            j++;
        int c = (unsigned char)texts[i].data[at];
        kd_gb_edge(b, node, c, c, texts_from(b, texts + i, j - i, at + 1, next), 0);
        i = j;
    }
    return i && split >= 0 ? split : node;
}

int32_t kd_gb_texts(struct kd_gb *b, struct kd_buf *texts, int64_t count, int32_t next)
{
    int64_t n = 0;
    qsort(texts, (size_t)count, sizeof *texts, by_text);
    for (int64_t i = 0; i < count; i++) {
        if (n && !by_text(&texts[n - 1], &texts[i]))
            kd_buf_release(&texts[i]);
        else
            texts[n++] = texts[i];
    }
    for (int64_t i = n; i < count; i++)
        kd_buf_init(&texts[i], 1);
    if (!n)
        return kd_gb_fail(b, KD_ENOTSUP, "no value is allowed");
    return texts_from(b, texts, n, 0, next);
}

int32_t kd_gb_call(struct kd_gb *b, int32_t rule, int32_t next)
{
    return kd_gb_node(b, KD_G_CALL, next, rule);
}

int32_t kd_gb_id(struct kd_gb *b, int32_t id, int32_t next)
{
    return kd_gb_node(b, KD_G_ID, next, id);
}

int32_t kd_gb_bound(struct kd_gb *b, int64_t least, int64_t most)
{
    struct kd_grammar *g = b->g;
    if (!least && most == INT64_MAX)
        return -1;
    if (least > most)
        return kd_gb_fail(b, KD_ENOTSUP, "the least is over the most");
    if (b->failed || room(b, &g->bound, g->bounds, &g->bound_cap, sizeof *g->bound))
        return -1;
    g->bound[g->bounds] = (struct kd_gbound){least, most};
    return (int32_t)g->bounds++;
}

int32_t kd_gb_num(struct kd_gb *b, bool integer, const double *min, const double *max, int32_t next)
{
    static const double most = 9e17;
    struct kd_grammar *g = b->g;
    if (b->failed || room(b, &g->num, g->nums, &g->num_cap, sizeof *g->num))
        return -1;
    struct kd_gnum n = {
        .integer = integer, .bounded = min || max, .min = -INFINITY, .max = INFINITY};
    if (min)
        n.min = *min;
    if (max)
        n.max = *max;
    double lo = n.min < -most ? -most : n.min > most ? most : n.min;
    double hi = n.max < -most ? -most : n.max > most ? most : n.max;
    n.imin = (int64_t)lo + ((double)(int64_t)lo < lo);
    n.imax = (int64_t)hi - ((double)(int64_t)hi > hi);
    if (n.min > n.max || (integer && n.imin > n.imax))
        return kd_gb_fail(b, KD_ENOTSUP, "no number is allowed");
    g->num[g->nums] = n;
    return kd_gb_node(b, KD_G_NUM, next, (int32_t)g->nums++);
}

int32_t kd_gb_rule(struct kd_gb *b)
{
    struct kd_grammar *g = b->g;
    if (b->failed || room(b, &g->rule, g->rules, &g->rule_cap, sizeof *g->rule))
        return -1;
    g->rule[g->rules] = -1;
    return (int32_t)g->rules++;
}

static void set_start(struct kd_gb *b, int32_t rule, int32_t node)
{
    if (!b->failed)
        b->g->rule[rule] = node;
}

/* Characters above ASCII in UTF-8: the rest of one whose first byte is in lo..hi, back to `home`.
 */
struct utf8 {
    int32_t one, two, three, e0, ed, f0, f4;
};

static int32_t cont(struct kd_gb *b, int lo, int hi, int32_t next)
{
    int32_t n = kd_gb_node(b, KD_G_BYTES, -1, -1);
    kd_gb_edge(b, n, lo, hi, next, 0);
    return n;
}

static struct utf8 utf8(struct kd_gb *b, int32_t home)
{
    struct utf8 u;
    u.one = cont(b, 0x80, 0xbf, home);
    u.two = cont(b, 0x80, 0xbf, u.one);
    u.three = cont(b, 0x80, 0xbf, u.two);
    u.e0 = cont(b, 0xa0, 0xbf, u.one);
    u.ed = cont(b, 0x80, 0x9f, u.one);
    u.f0 = cont(b, 0x90, 0xbf, u.two);
    u.f4 = cont(b, 0x80, 0x8f, u.two);
    return u;
}

/* Characters that a JSON string takes as they are, from `node`, but the ASCII ones of `not`. */
static void plain_edges(struct kd_gb *b, int32_t node, int32_t home, const char * not, bool high)
{
    struct utf8 u = {0};
    int from = 0x20;
    for (int c = 0x20; c <= 0x80; c++) {
        if (c < 0x80 && c != '"' && c != '\\' && !(not &&strchr(not, c)))
            continue;
        kd_gb_edge(b, node, from, c - 1, home, KD_G_INC);
        from = c + 1;
    }
    if (!high)
        return;
    u = utf8(b, home);
    kd_gb_edge(b, node, 0xc2, 0xdf, u.one, KD_G_INC);
    kd_gb_edge(b, node, 0xe0, 0xe0, u.e0, KD_G_INC);
    kd_gb_edge(b, node, 0xe1, 0xec, u.two, KD_G_INC);
    kd_gb_edge(b, node, 0xed, 0xed, u.ed, KD_G_INC);
    kd_gb_edge(b, node, 0xee, 0xef, u.two, KD_G_INC);
    kd_gb_edge(b, node, 0xf0, 0xf0, u.f0, KD_G_INC);
    kd_gb_edge(b, node, 0xf1, 0xf3, u.three, KD_G_INC);
    kd_gb_edge(b, node, 0xf4, 0xf4, u.f4, KD_G_INC);
}

static void hex_edges(struct kd_gb *b, int32_t node, int32_t to)
{
    kd_gb_edge(b, node, '0', '9', to, 0);
    kd_gb_edge(b, node, 'a', 'f', to, 0);
    kd_gb_edge(b, node, 'A', 'F', to, 0);
}

/* After a backslash; \u without the halves of surrogate pairs. */
static int32_t escape(struct kd_gb *b, int32_t home)
{
    static const char simple[] = "\"\\/bfnrt";
    int32_t e = kd_gb_node(b, KD_G_BYTES, -1, -1), h1 = kd_gb_node(b, KD_G_BYTES, -1, -1),
            h2 = kd_gb_node(b, KD_G_BYTES, -1, -1), hd = kd_gb_node(b, KD_G_BYTES, -1, -1),
            h3 = kd_gb_node(b, KD_G_BYTES, -1, -1), h4 = kd_gb_node(b, KD_G_BYTES, -1, -1);
    for (const char *s = simple; *s; s++)
        kd_gb_edge(b, e, *s, *s, home, 0);
    kd_gb_edge(b, e, 'u', 'u', h1, 0);
    kd_gb_edge(b, h1, '0', '9', h2, 0);
    kd_gb_edge(b, h1, 'a', 'c', h2, 0);
    kd_gb_edge(b, h1, 'A', 'C', h2, 0);
    kd_gb_edge(b, h1, 'e', 'f', h2, 0);
    kd_gb_edge(b, h1, 'E', 'F', h2, 0);
    kd_gb_edge(b, h1, 'd', 'd', hd, 0);
    kd_gb_edge(b, h1, 'D', 'D', hd, 0);
    kd_gb_edge(b, hd, '0', '7', h3, 0);
    hex_edges(b, h2, h3);
    hex_edges(b, h3, h4);
    hex_edges(b, h4, home);
    return e;
}

int32_t kd_gb_string_rule(struct kd_gb *b, int32_t bound)
{
    if (bound < 0 && b->string >= 0)
        return b->string;
    int32_t rule = kd_gb_rule(b), body = kd_gb_node(b, KD_G_BYTES, -1, bound);
    if (b->failed)
        return -1;
    b->g->node[body].flags = KD_G_BODY;
    plain_edges(b, body, body, NULL, true);
    kd_gb_edge(b, body, '\\', '\\', escape(b, body), KD_G_INC);
    kd_gb_edge(b, body, '"', '"', b->ret, KD_G_NEED);
    set_start(b, rule, kd_gb_str(b, "\"", body));
    if (bound < 0)
        b->string = rule;
    return rule;
}

int32_t kd_gb_raw_rule(struct kd_gb *b, int32_t bound)
{
    if (bound < 0 && b->raw >= 0)
        return b->raw;
    int32_t rule = kd_gb_rule(b);
    set_start(b, rule, kd_gb_node(b, KD_G_RAW, b->ret, bound));
    if (bound < 0)
        b->raw = rule;
    return rule;
}

/* taken[0..count) agree in `at` bytes; `home` is where any other key goes on. Bytes of characters
 * above ASCII inside a taken key are followed to their ends, so only whole characters part. */
static int32_t key_from(struct kd_gb *b, const struct kd_buf *taken, int64_t count, size_t at,
                        int32_t home, int32_t next)
{
    char used[130];
    int n = 0;
    int64_t i = 0;
    bool ended = false;
    int32_t node = kd_gb_node(b, KD_G_BYTES, -1, -1);
    for (; i < count && taken[i].size_bytes == at; i++)
        ended = true;
    while (i < count && !b->failed) {
        int64_t j = i + 1;
        int c = (unsigned char)taken[i].data[at];
        while (j < count && taken[j].data[at] == taken[i].data[at])
            j++;
        /* A key that needs escapes, or goes on above ASCII, is left to its own spelling alone. */
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            kd_gb_edge(b, node, c, c, key_from(b, taken + i, j - i, at + 1, home, next), 0);
            used[n++] = (char)c;
        }
        i = j;
    }
    used[n] = 0;
    plain_edges(b, node, home, used, false);
    if (!ended && at)
        kd_gb_edge(b, node, '"', '"', next, 0);
    return node;
}

int32_t kd_gb_key(struct kd_gb *b, struct kd_buf *taken, int64_t count, int32_t next)
{
    int32_t home = kd_gb_node(b, KD_G_BYTES, -1, -1);
    if (b->failed)
        return -1;
    b->g->node[home].flags = KD_G_BODY;
    plain_edges(b, home, home, NULL, true);
    kd_gb_edge(b, home, '"', '"', next, 0);
    if (taken)
        qsort(taken, (size_t)count, sizeof *taken, by_text);
    return kd_gb_str(b, "\"", taken ? key_from(b, taken, count, 0, home, next) : home);
}

int32_t kd_gb_array(struct kd_gb *b, enum kd_gstyle style)
{
    if (b->array[style] >= 0)
        return b->array[style];
    int32_t rule = b->array[style] = kd_gb_rule(b), value = kd_gb_any(b, style);
    int32_t more = kd_gb_node(b, KD_G_SPLIT, -1, -1), first = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    int32_t close = kd_gb_str(b, "]", b->ret), item = kd_gb_call(b, value, more);
    kd_gb_edge(b, more, 0, 0, close, 0);
    kd_gb_edge(b, more, 0, 0, kd_gb_str(b, style == KD_G_SPACED ? ", " : ",", item), 0);
    kd_gb_edge(b, first, 0, 0, close, 0);
    kd_gb_edge(b, first, 0, 0, item, 0);
    set_start(b, rule, kd_gb_str(b, "[", first));
    return rule;
}

int32_t kd_gb_object(struct kd_gb *b, enum kd_gstyle style)
{
    if (b->object[style] >= 0)
        return b->object[style];
    int32_t rule = b->object[style] = kd_gb_rule(b), value = kd_gb_any(b, style);
    int32_t more = kd_gb_node(b, KD_G_SPLIT, -1, -1), first = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    int32_t close = kd_gb_str(b, "}", b->ret), string = kd_gb_string_rule(b, -1);
    int32_t tail = kd_gb_str(b, style == KD_G_SPACED ? ": " : ":", kd_gb_call(b, value, more));
    int32_t member = kd_gb_call(b, string, tail);
    kd_gb_edge(b, more, 0, 0, close, 0);
    kd_gb_edge(b, more, 0, 0, kd_gb_str(b, style == KD_G_SPACED ? ", " : ",", member), 0);
    kd_gb_edge(b, first, 0, 0, close, 0);
    kd_gb_edge(b, first, 0, 0, member, 0);
    set_start(b, rule, kd_gb_str(b, "{", first));
    return rule;
}

int32_t kd_gb_any(struct kd_gb *b, enum kd_gstyle style)
{
    if (b->any[style] >= 0)
        return b->any[style];
    int32_t rule = b->any[style] = kd_gb_rule(b), split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    const int32_t ways[] = {kd_gb_call(b, kd_gb_object(b, style), b->ret),
                            kd_gb_call(b, kd_gb_array(b, style), b->ret),
                            kd_gb_call(b, kd_gb_string_rule(b, -1), b->ret),
                            kd_gb_num(b, false, NULL, NULL, b->ret),
                            kd_gb_str(b, "true", b->ret),
                            kd_gb_str(b, "false", b->ret),
                            kd_gb_str(b, "null", b->ret)};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        kd_gb_edge(b, split, 0, 0, ways[i], 0);
    set_start(b, rule, split);
    return rule;
}
