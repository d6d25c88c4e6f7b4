#include "text/jtree.h"

#include "base/mem.h"
#include "text/uclass.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    struct kd_jtree *t;
    const char *begin, *at, *end;
    struct kd_err *err;
};

static int bad(struct reader *r, const char *what)
{
    return kd_fail(r->err, KD_ECORRUPT, "not valid JSON at byte %lld: %s",
                   (long long)(r->at - r->begin), what);
}

static void blank(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool take(struct reader *r, char c)
{
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

static int new_node(struct reader *r, int32_t *id)
{
    struct kd_jtree *t = r->t;
    if (t->count == KD_JTREE_NODES_MAX)
        return kd_fail(r->err, KD_EINVAL, "JSON has more than %d values", KD_JTREE_NODES_MAX);
    if (t->count == t->cap) {
        int64_t cap = t->cap ? t->cap * 2 : 64;
        struct kd_jnode *node;
        if (kd_mem_new(&node, cap, sizeof *node, "JSON", r->err))
            return -1;
        if (t->count)
            memcpy(node, t->node, (size_t)t->count * sizeof *node);
        kd_mem_free(t->node);
        t->node = node;
        t->cap = cap;
    }
    memset(&t->node[t->count], 0, sizeof *t->node);
    *id = (int32_t)t->count++;
    return 0;
}

static int hex4(struct reader *r, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->end ? *r->at : 0;
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16)
            return bad(r, "\\u needs four hexadecimal digits");
        *v = *v << 4 | d;
    }
    return 0;
}

static void put(struct reader *r, uint32_t c)
{
    char *s = r->t->text + r->t->text_bytes;
    size_t n = kd_utf8_put(s, c);
    r->t->text_bytes += n;
}

static int escape(struct reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at++ : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        put(r, (unsigned char)to[known - from]);
        return 0;
    }
    if (c != 'u')
        return bad(r, "unknown escape");
    uint32_t v, low;
    if (hex4(r, &v))
        return -1;
    if (v >= 0xdc00 && v <= 0xdfff)
        return bad(r, "half of a surrogate pair");
    if (v >= 0xd800 && v <= 0xdbff) {
        if (!take(r, '\\') || !take(r, 'u'))
            return bad(r, "half of a surrogate pair");
        if (hex4(r, &low))
            return -1;
        if (low < 0xdc00 || low > 0xdfff)
            return bad(r, "half of a surrogate pair");
        v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    }
    put(r, v);
    return 0;
}

/* A string after its opening quote. What it decodes to is never longer than its spelling, so the
 * block of the input's size has room for all. */
static int string(struct reader *r, const char **text, size_t *bytes)
{
    size_t begin = r->t->text_bytes;
    for (;;) {
        if (r->at == r->end)
            return bad(r, "a string without its end");
        unsigned char c = (unsigned char)*r->at;
        uint32_t cp;
        if (c == '"')
            break;
        if (c < 0x20)
            return bad(r, "a control character in a string");
        if (c == '\\') {
            r->at++;
            if (escape(r))
                return -1;
            continue;
        }
        size_t n = kd_utf8_char((const unsigned char *)r->at, (size_t)(r->end - r->at), &cp);
        if (!n)
            return bad(r, "not UTF-8");
        memcpy(r->t->text + r->t->text_bytes, r->at, n);
        r->t->text_bytes += n;
        r->at += n;
    }
    r->at++;
    *text = r->t->text + begin;
    *bytes = r->t->text_bytes - begin;
    r->t->text[r->t->text_bytes++] = 0;
    return 0;
}

static bool digits(struct reader *r)
{
    const char *s = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return r->at > s;
}

static int number(struct reader *r, struct kd_jnode *n)
{
    const char *s = r->at;
    n->kind = KD_JSON_INT;
    take(r, '-');
    if (!take(r, '0') && !digits(r))
        return bad(r, "a value was expected");
    if (take(r, '.')) {
        n->kind = KD_JSON_REAL;
        if (!digits(r))
            return bad(r, "a digit was expected");
    }
    if (take(r, 'e') || take(r, 'E')) {
        n->kind = KD_JSON_REAL;
        if (!take(r, '+'))
            take(r, '-');
        if (!digits(r))
            return bad(r, "a digit was expected");
    }
    n->bytes = (size_t)(r->at - s);
    n->text = r->t->text + r->t->text_bytes;
    memcpy(r->t->text + r->t->text_bytes, s, n->bytes);
    r->t->text_bytes += n->bytes;
    r->t->text[r->t->text_bytes++] = 0;
    return 0;
}

static bool literal(struct reader *r, struct kd_jnode *n, const char *text, enum kd_json_kind kind)
{
    size_t len = strlen(text);
    if ((size_t)(r->end - r->at) < len || memcmp(r->at, text, len))
        return false;
    r->at += len;
    n->kind = kind;
    n->text = text;
    n->bytes = len;
    return true;
}

static int key_order(const struct kd_jnode *a, const struct kd_jnode *b)
{
    size_t n = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    int c = n ? memcmp(a->key, b->key, n) : 0;
    return c ? c : (a->key_bytes > b->key_bytes) - (a->key_bytes < b->key_bytes);
}

/* By key, then by place. */
static int by_key(const void *pa, const void *pb)
{
    const struct kd_jnode *a = *(struct kd_jnode *const *)pa, *b = *(struct kd_jnode *const *)pb;
    int c = key_order(a, b);
    return c ? c : (a > b) - (a < b);
}

/* Children of an object, sorted; `small` serves up to 16 of them. */
static struct kd_jnode **sorted(const struct kd_jtree *t, const struct kd_jnode *obj,
                                struct kd_jnode **small, struct kd_err *err)
{
    struct kd_jnode **v = small;
    int64_t n = 0;
    if (obj->count > 16 && kd_mem_new(&v, obj->count, sizeof *v, "JSON keys", err))
        return NULL;
    for (int32_t i = obj->first; i; i = t->node[i].next)
        v[n++] = &t->node[i];
    qsort(v, (size_t)n, sizeof *v, by_key);
    return v;
}

static int drop_duplicates(struct reader *r, int32_t id)
{
    struct kd_jnode *small[16], *obj = &r->t->node[id];
    bool any = false;
    if (obj->count < 2)
        return 0;
    struct kd_jnode **v = sorted(r->t, obj, small, r->err);
    if (!v)
        return -1;
    for (int32_t i = 0, j; i < obj->count; i = j) {
        for (j = i + 1; j < obj->count && !key_order(v[i], v[j]); j++)
            v[j]->key = NULL;
        if (j == i + 1)
            continue;
        any = true;
        struct kd_jnode last = *v[j - 1];
        last.key = v[i]->key;
        last.next = v[i]->next;
        *v[i] = last;
    }
    if (v != small)
        kd_mem_free(v);
    int32_t *link = &obj->first;
    while (any && *link) {
        if (r->t->node[*link].key) {
            link = &r->t->node[*link].next;
        } else {
            *link = r->t->node[*link].next;
            obj->count--;
        }
    }
    return 0;
}

static int value(struct reader *r, int32_t id, int depth);

/* Items of an array or object after its opening bracket. */
static int items(struct reader *r, int32_t id, char close, int depth)
{
    int32_t last = 0, child;
    if (depth == KD_JTREE_DEPTH_MAX)
        return kd_fail(r->err, KD_EINVAL, "JSON is nested deeper than %d levels",
                       KD_JTREE_DEPTH_MAX);
    r->t->node[id].kind = close == ']' ? KD_JSON_ARRAY : KD_JSON_OBJECT;
    blank(r);
    if (take(r, close))
        return 0;
    for (;;) {
        const char *key = NULL;
        size_t key_bytes = 0;
        if (new_node(r, &child))
            return -1;
        *(last ? &r->t->node[last].next : &r->t->node[id].first) = child;
        last = child;
        r->t->node[id].count++;
        if (close == '}') {
            blank(r);
            if (!take(r, '"'))
                return bad(r, "a key was expected");
            if (string(r, &key, &key_bytes))
                return -1;
            blank(r);
            if (!take(r, ':'))
                return bad(r, "':' was expected");
        }
        if (value(r, child, depth + 1))
            return -1;
        r->t->node[child].key = key;
        r->t->node[child].key_bytes = key_bytes;
        blank(r);
        if (take(r, close))
            return close == '}' ? drop_duplicates(r, id) : 0;
        if (!take(r, ','))
            return bad(r, "',' or the end of a list was expected");
    }
}

static int value(struct reader *r, int32_t id, int depth)
{
    struct kd_jnode *n = &r->t->node[id];
    blank(r);
    if (take(r, '{'))
        return items(r, id, '}', depth);
    if (take(r, '['))
        return items(r, id, ']', depth);
    if (take(r, '"')) {
        n->kind = KD_JSON_STR;
        return string(r, &n->text, &n->bytes);
    }
    if (literal(r, n, "null", KD_JSON_NULL) || literal(r, n, "true", KD_JSON_BOOL) ||
        literal(r, n, "false", KD_JSON_BOOL))
        return 0;
    return number(r, n);
}

int kd_jtree_parse(struct kd_jtree *t, const char *text, size_t bytes, struct kd_err *err)
{
    struct reader r = {t, text, text, text + bytes, err};
    int32_t root;
    memset(t, 0, sizeof *t);
    int rc = kd_mem_new(&t->text, (int64_t)bytes + 1, 1, "JSON", err) || new_node(&r, &root) ||
             value(&r, 0, 0);
    blank(&r);
    if (!rc && r.at < r.end)
        rc = bad(&r, "something follows the value");
    if (rc)
        kd_jtree_release(t);
    return rc ? -1 : 0;
}

void kd_jtree_release(struct kd_jtree *t)
{
    kd_mem_free(t->node);
    kd_mem_free(t->text);
    memset(t, 0, sizeof *t);
}

const struct kd_jnode *kd_jtree_root(const struct kd_jtree *t)
{
    return t->node;
}

const struct kd_jnode *kd_jtree_first(const struct kd_jtree *t, const struct kd_jnode *n)
{
    return n && n->first ? &t->node[n->first] : NULL;
}

const struct kd_jnode *kd_jtree_next(const struct kd_jtree *t, const struct kd_jnode *n)
{
    return n->next ? &t->node[n->next] : NULL;
}

const struct kd_jnode *kd_jtree_get(const struct kd_jtree *t, const struct kd_jnode *n,
                                    const char *key)
{
    size_t bytes = strlen(key);
    if (!n || n->kind != KD_JSON_OBJECT)
        return NULL;
    for (n = kd_jtree_first(t, n); n; n = kd_jtree_next(t, n))
        if (n->key_bytes == bytes && !memcmp(n->key, key, bytes))
            return n->kind == KD_JSON_NULL ? NULL : n;
    return NULL;
}

bool kd_jnode_is(const struct kd_jnode *n, const char *text)
{
    return n && n->kind == KD_JSON_STR && n->bytes == strlen(text) &&
           !memcmp(n->text, text, n->bytes);
}

void kd_jtree_quote(struct kd_buf *out, const char *text, size_t bytes)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    size_t begin = 0;
    kd_buf_char(out, '"');
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        const char *known = c && (c < 0x20 || c == '"' || c == '\\') ? strchr(from, (char)c) : NULL;
        if (!known && c >= 0x20)
            continue;
        kd_buf_add(out, text + begin, i - begin);
        begin = i + 1;
        if (known)
            kd_buf_printf(out, "\\%c", to[known - from]);
        else
            kd_buf_printf(out, "\\u%04x", c);
    }
    kd_buf_add(out, text + begin, bytes - begin);
    kd_buf_char(out, '"');
}

/* The shortest digits that read back as v > 0, nearest first, as Python's repr has them:
 * "d.ddde-XX". */
static void shortest(double v, char *out, size_t size)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    bool power = !(bits << 12);
    for (int n = 1; n <= 17; n++) {
        snprintf(out, size, "%.*e", n - 1, v);
        if (strtod(out, NULL) == v)
            return;
        /* Below a power of two doubles lie denser, so the nearest of n digits may miss while the
         * next one up reads back. */
        char *last = strchr(out, 'e') - 1;
        if (power && *last >= '0' && *last < '9') {
            ++*last;
            if (strtod(out, NULL) == v)
                return;
        }
    }
}

/* repr of a float: positional from 1e-4 up to below 1e16. */
static void dump_real(struct kd_buf *out, const char *text)
{
    char e[48], digit[24];
    double v = strtod(text, NULL);
    if (*text == '-') {
        kd_buf_char(out, '-');
        v = -v;
    }
    if (v > 1.7976931348623157e308 || v == 0) {
        kd_buf_str(out, v > 0 ? "Infinity" : "0.0");
        return;
    }
    shortest(v, e, sizeof e);
    int n = 1, exp10 = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    digit[0] = e[0];
    for (const char *p = e + 1; *p != 'e'; p++)
        if (*p != '.')
            digit[n++] = *p;
    if (exp10 < -4 || exp10 >= 16) {
        kd_buf_char(out, digit[0]);
        if (n > 1)
            kd_buf_char(out, '.');
        kd_buf_add(out, digit + 1, (size_t)n - 1);
        kd_buf_printf(out, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
        return;
    }
    if (exp10 < 0)
        kd_buf_str(out, "0.");
    for (int i = exp10 < 0 ? exp10 + 1 : 0; i < n || i <= exp10 + 1; i++) {
        kd_buf_char(out, i >= 0 && i < n ? digit[i] : '0');
        if (i == exp10)
            kd_buf_char(out, '.');
    }
}

struct writer {
    struct kd_buf *out;
    const struct kd_jtree *t;
    enum kd_jstyle style;
    struct kd_err *err;
};

static int dump(const struct writer *w, const struct kd_jnode *n, int drop);

/* drop: levels of objects, from here down, that lose their null members. */
static int dump_items(const struct writer *w, const struct kd_jnode *n, int drop)
{
    bool object = n->kind == KD_JSON_OBJECT, sort = object && w->style == KD_JSTYLE_SORTED,
         any = false;
    bool spaced = w->style == KD_JSTYLE_SPACED;
    struct kd_jnode *small[16], **v = small;
    int rc = 0;
    if (sort && !(v = sorted(w->t, n, small, w->err)))
        return -1;
    kd_buf_char(w->out, object ? '{' : '[');
    const struct kd_jnode *next = kd_jtree_first(w->t, n);
    for (int32_t i = 0; i < n->count && !rc; i++) {
        const struct kd_jnode *item = sort ? v[i] : next;
        next = kd_jtree_next(w->t, next);
        if (object && drop > 0 && item->kind == KD_JSON_NULL)
            continue;
        if (any)
            kd_buf_str(w->out, spaced ? ", " : ",");
        any = true;
        if (object) {
            kd_jtree_quote(w->out, item->key, item->key_bytes);
            kd_buf_str(w->out, spaced ? ": " : ":");
        }
        rc = dump(w, item, object ? drop - 1 : 0);
    }
    kd_buf_char(w->out, object ? '}' : ']');
    if (v != small)
        kd_mem_free(v);
    return rc;
}

static int dump(const struct writer *w, const struct kd_jnode *n, int drop)
{
    switch (n->kind) {
    case KD_JSON_NULL:
    case KD_JSON_BOOL:
        kd_buf_add(w->out, n->text, n->bytes);
        return 0;
    case KD_JSON_INT:
    case KD_JSON_REAL:
        if (w->style == KD_JSTYLE_COMPACT)
            kd_buf_add(w->out, n->text, n->bytes);
        else if (n->kind == KD_JSON_REAL)
            dump_real(w->out, n->text);
        else
            kd_buf_str(w->out, strcmp(n->text, "-0") ? n->text : "0");
        return 0;
    case KD_JSON_STR:
        kd_jtree_quote(w->out, n->text, n->bytes);
        return 0;
    case KD_JSON_ARRAY:
    case KD_JSON_OBJECT:
        break;
    }
    return dump_items(w, n, drop);
}

int kd_jtree_dump(struct kd_buf *out, const struct kd_jtree *t, const struct kd_jnode *n,
                  enum kd_jstyle style, struct kd_err *err)
{
    struct writer w = {out, t, style, err};
    return dump(&w, n, 0) ? -1 : kd_buf_ok(out, "JSON", err);
}

int kd_jtree_dump_tool(struct kd_buf *out, const struct kd_jtree *t, const struct kd_jnode *n,
                       struct kd_err *err)
{
    struct writer w = {out, t, KD_JSTYLE_SORTED, err};
    return dump(&w, n, 2) ? -1 : kd_buf_ok(out, "JSON", err);
}
