/* JSON Schema into rules. */
#include "base/mem.h"
#include "serve/api_args.h"
#include "serve/grammar_build.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 200, PROPERTIES_MAX = 4096, TEXT_BYTES_MAX = 1 << 20 };

static const char *const known[] = {
    "type",    "enum",     "const",    "properties",  "required",  "additionalProperties",
    "items",   "minItems", "maxItems", "prefixItems", "minLength", "maxLength",
    "minimum", "maximum",  "anyOf",    "oneOf",       "allOf",     "$ref"};
static const char *const ignored[] = {
    "title", "description", "default",    "examples", "format",    "$schema", "$id",    "$comment",
    "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "$anchor", "strict", "example"};

static bool among(const char *const *list, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], word))
            return true;
    return false;
}

/* path + ".name" (or "[i]") for errors; the caller puts the old length back. */
static size_t enter(struct kd_gb *b, const char *name, int64_t i)
{
    size_t n = strlen(b->path);
    if (name)
        snprintf(b->path + n, sizeof b->path - n, ".%.60s", name);
    else
        snprintf(b->path + n, sizeof b->path - n, "[%" PRId64 "]", i);
    return n;
}

static const struct kd_jnode *get(const struct kd_gb *b, const struct kd_jnode *s, const char *key)
{
    return kd_jtree_get(b->t, s, key);
}

static int check_keys(struct kd_gb *b, const struct kd_jnode *s)
{
    for (const struct kd_jnode *k = kd_jtree_first(b->t, s); k; k = kd_jtree_next(b->t, k))
        if (!among(known, sizeof known / sizeof *known, k->key) &&
            !among(ignored, sizeof ignored / sizeof *ignored, k->key))
            return kd_gb_fail(b, KD_ENOTSUP, "'%.60s' is not supported", k->key);
    return 0;
}

/* With one of $ref, anyOf, oneOf no other rule may stand. */
static int stands_alone(struct kd_gb *b, const struct kd_jnode *s, const char *key)
{
    for (const struct kd_jnode *k = kd_jtree_first(b->t, s); k; k = kd_jtree_next(b->t, k))
        if (strcmp(k->key, key) != 0 && among(known, sizeof known / sizeof *known, k->key))
            return kd_gb_fail(b, KD_ENOTSUP, "'%s' beside '%.60s' is not supported", key, k->key);
    return 0;
}

static const struct kd_jnode *follow(struct kd_gb *b, const struct kd_jnode *ref)
{
    char key[512];
    const struct kd_jnode *at = b->root;
    const char *s = ref->kind == KD_JSON_STR ? ref->text : "";
    if (*s != '#') {
        kd_gb_fail(b, KD_ENOTSUP, "$ref does not lead into this schema");
        return NULL;
    }
    for (s++; at && *s == '/';) {
        size_t n = 0;
        for (s++; *s && *s != '/' && n + 1 < sizeof key; n++) {
            bool tilde = *s == '~' && (s[1] == '0' || s[1] == '1');
            key[n] = tilde ? "~/"[s[1] - '0'] : *s;
            s += tilde ? 2 : 1;
        }
        key[n] = 0;
        if (at->kind == KD_JSON_ARRAY) {
            const struct kd_jnode *k = kd_jtree_first(b->t, at);
            char *end;
            for (long i = strtol(key, &end, 10); k && i > 0; i--)
                k = kd_jtree_next(b->t, k);
            at = *end ? NULL : k;
        } else {
            at = get(b, at, key);
        }
    }
    if (!at || *s)
        kd_gb_fail(b, KD_ENOTSUP, "$ref '%.80s' leads nowhere", ref->text ? ref->text : "");
    return b->failed ? NULL : at;
}

static int count_of(struct kd_gb *b, const struct kd_jnode *s, const char *key, int64_t *out)
{
    const struct kd_jnode *v = get(b, s, key);
    if (!v)
        return 0;
    double d = v->kind == KD_JSON_INT || v->kind == KD_JSON_REAL ? strtod(v->text, NULL) : -1;
    if (!(d >= 0 && d <= 1e15) || (double)(int64_t)d != d)
        return kd_gb_fail(b, KD_ENOTSUP, "'%s' is not a count", key);
    *out = (int64_t)d;
    return 0;
}

static int32_t bounds_of(struct kd_gb *b, const struct kd_jnode *s, const char *least,
                         const char *most)
{
    int64_t lo = 0, hi = INT64_MAX;
    if (count_of(b, s, least, &lo) || count_of(b, s, most, &hi))
        return -1;
    return kd_gb_bound(b, lo, hi);
}

static int32_t number(struct kd_gb *b, const struct kd_jnode *s, bool integer, int32_t next)
{
    const char *const names[] = {"minimum", "maximum"};
    double v[2];
    bool have[2];
    for (int i = 0; i < 2; i++) {
        const struct kd_jnode *n = get(b, s, names[i]);
        have[i] = n != NULL;
        if (n && n->kind != KD_JSON_INT && n->kind != KD_JSON_REAL)
            return kd_gb_fail(b, KD_ENOTSUP, "'%s' is not a number", names[i]);
        v[i] = n ? strtod(n->text, NULL) : 0;
        if (!isfinite(v[i]))
            return kd_gb_fail(b, KD_ENOTSUP, "'%s' is too large", names[i]);
    }
    return kd_gb_num(b, integer, have[0] ? &v[0] : NULL, have[1] ? &v[1] : NULL, next);
}

/* Types. */

static unsigned type_named(struct kd_gb *b, const struct kd_jnode *v)
{
    static const struct {
        const char *name;
        unsigned type;
    } t[] = {{"null", KD_TYPE_NULL},    {"boolean", KD_TYPE_BOOL}, {"integer", KD_TYPE_INT},
             {"number", KD_TYPE_NUM},   {"string", KD_TYPE_STR},   {"array", KD_TYPE_ARRAY},
             {"object", KD_TYPE_OBJECT}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (kd_jnode_is(v, t[i].name))
            return t[i].type;
    kd_gb_fail(b, KD_ENOTSUP, "'type' is none of JSON's");
    return 0;
}

/* 0: says nothing. Without "type" the other rules tell what is meant. */
static unsigned types_of(struct kd_gb *b, const struct kd_jnode *s)
{
    static const struct {
        const char *key;
        unsigned type;
    } t[] = {{"properties", KD_TYPE_OBJECT},
             {"required", KD_TYPE_OBJECT},
             {"additionalProperties", KD_TYPE_OBJECT},
             {"items", KD_TYPE_ARRAY},
             {"prefixItems", KD_TYPE_ARRAY},
             {"minItems", KD_TYPE_ARRAY},
             {"maxItems", KD_TYPE_ARRAY},
             {"minLength", KD_TYPE_STR},
             {"maxLength", KD_TYPE_STR},
             {"minimum", KD_TYPE_NUM},
             {"maximum", KD_TYPE_NUM}};
    const struct kd_jnode *v = get(b, s, "type");
    unsigned types = 0;
    if (v && v->kind != KD_JSON_ARRAY)
        return type_named(b, v);
    for (const struct kd_jnode *k = kd_jtree_first(b->t, v); k; k = kd_jtree_next(b->t, k))
        types |= type_named(b, k);
    if (v && !types)
        kd_gb_fail(b, KD_ENOTSUP, "'type' is an empty list");
    for (size_t i = 0; !v && i < sizeof t / sizeof *t; i++)
        if (get(b, s, t[i].key))
            types |= t[i].type;
    return types;
}

static bool fits(const struct kd_jnode *v, unsigned types)
{
    static const unsigned of[] = {KD_TYPE_NULL,  KD_TYPE_BOOL, KD_TYPE_INT | KD_TYPE_NUM,
                                  KD_TYPE_NUM,   KD_TYPE_STR,  KD_TYPE_ARRAY,
                                  KD_TYPE_OBJECT};
    return !types || (of[v->kind] & types);
}

/* enum or const: values as texts. A null const is a value, which kd_jtree_get does not see. */
static const struct kd_jnode *member(struct kd_gb *b, const struct kd_jnode *s, const char *key)
{
    for (const struct kd_jnode *k = kd_jtree_first(b->t, s); k; k = kd_jtree_next(b->t, k))
        if (!strcmp(k->key, key))
            return k;
    return NULL;
}

/* Values that are strings (raw) or all others, in the order of the schema. */
enum pick { PICK_ALL, PICK_STRINGS, PICK_OTHERS };

static bool picked(const struct kd_jnode *v, unsigned types, enum pick pick)
{
    return fits(v, types) &&
           (pick == PICK_ALL || (pick == PICK_STRINGS) == (v->kind == KD_JSON_STR));
}

/* Before `next`: one of the values picked; *any is false (and the result -1) when there is none. */
static int32_t values(struct kd_gb *b, const struct kd_jnode *list, bool one, unsigned types,
                      enum pick pick, enum kd_gstyle style, int32_t next, bool *any)
{
    static const enum kd_jstyle styles[] = {KD_JSTYLE_COMPACT, KD_JSTYLE_SPACED};
    struct kd_buf *texts;
    int64_t n = 0, count = one ? 1 : list->count;
    *any = false;
    if (kd_mem_new(&texts, count + 1, sizeof *texts, "enum", b->err)) {
        b->failed = true;
        return -1;
    }
    for (const struct kd_jnode *v = one ? list : kd_jtree_first(b->t, list); v;
         v = one ? NULL : kd_jtree_next(b->t, v)) {
        if (!picked(v, types, pick))
            continue;
        kd_buf_init(&texts[n], TEXT_BYTES_MAX);
        if (pick == PICK_STRINGS)
            kd_buf_add(&texts[n], v->text, v->bytes);
        else if (kd_jtree_dump(&texts[n], b->t, v, styles[style], b->err))
            b->failed = true;
        kd_buf_add(&texts[n++], "", 0);
    }
    *any = n > 0;
    int32_t node = *any && !b->failed ? kd_gb_texts(b, texts, n, next) : -1;
    for (int64_t i = 0; i < n; i++)
        kd_buf_release(&texts[i]);
    kd_mem_free(texts);
    return node;
}

/* Objects. */

struct object {
    struct {
        const struct kd_jnode *schema; /* NULL: any */
        const char *key;
        size_t key_bytes;
        bool required;
    } * p;
    int64_t count, cap;
    bool listed;                 /* "properties" stands somewhere */
    bool more_known, more;       /* additionalProperties */
    const struct kd_jnode *rest; /* its schema, or NULL: any */
};

static int64_t find(const struct object *o, const char *key)
{
    for (int64_t i = 0; i < o->count; i++)
        if (!strcmp(o->p[i].key, key))
            return i;
    return -1;
}

static int add_property(struct kd_gb *b, struct object *o, const char *key, size_t bytes,
                        const struct kd_jnode *schema)
{
    if (o->count == PROPERTIES_MAX)
        return kd_gb_fail(b, KD_ENOTSUP, "more than %d properties", PROPERTIES_MAX);
    if (o->count == o->cap) {
        void *more;
        o->cap = o->cap ? 2 * o->cap : 16;
        if (kd_mem_new(&more, o->cap, sizeof *o->p, "properties", b->err) || !more)
            return kd_gb_fail(b, KD_ENOMEM, "no memory");
        if (o->count)
            memcpy(more, o->p, (size_t)o->count * sizeof *o->p);
        kd_mem_free(o->p);
        o->p = more;
    }
    if (!o->p)
        return kd_gb_fail(b, KD_ENOMEM, "no memory");
    o->p[o->count].schema = schema;
    o->p[o->count].key = key;
    o->p[o->count].key_bytes = bytes;
    o->p[o->count++].required = false;
    return 0;
}

static int collect(struct kd_gb *b, struct object *o, const struct kd_jnode *s, int depth);

static int collect_all(struct kd_gb *b, struct object *o, const struct kd_jnode *all, int depth)
{
    int64_t i = 0;
    if (all->kind != KD_JSON_ARRAY)
        return kd_gb_fail(b, KD_ENOTSUP, "'allOf' is not a list");
    for (const struct kd_jnode *k = kd_jtree_first(b->t, all); k; k = kd_jtree_next(b->t, k)) {
        size_t n = enter(b, "allOf", 0);
        enter(b, NULL, i++);
        if (collect(b, o, k, depth + 1))
            return -1;
        b->path[n] = 0;
    }
    return 0;
}

/* The object's parts, those of allOf together. */
static int collect(struct kd_gb *b, struct object *o, const struct kd_jnode *s, int depth)
{
    const struct kd_jnode *ref = get(b, s, "$ref"), *all = get(b, s, "allOf"),
                          *props = get(b, s, "properties"), *req = get(b, s, "required"),
                          *more = get(b, s, "additionalProperties"), *k;
    if (depth > 16)
        return kd_gb_fail(b, KD_ENOTSUP, "allOf nested too deep, or a loop of $ref");
    if (s->kind != KD_JSON_OBJECT)
        return kd_gb_fail(b, KD_ENOTSUP, "a part of allOf is not a schema of an object");
    if (check_keys(b, s))
        return -1;
    if (ref) {
        if (stands_alone(b, s, "$ref"))
            return -1;
        const struct kd_jnode *to = follow(b, ref);
        return to ? collect(b, o, to, depth + 1) : -1;
    }
    if (get(b, s, "anyOf") || get(b, s, "oneOf") || get(b, s, "enum") || member(b, s, "const") ||
        (types_of(b, s) & ~(unsigned)KD_TYPE_OBJECT))
        return kd_gb_fail(b, KD_ENOTSUP, "allOf is supported for plain objects only");
    if ((props && props->kind != KD_JSON_OBJECT) || (req && req->kind != KD_JSON_ARRAY))
        return kd_gb_fail(b, KD_ENOTSUP, "'properties' is not an object or 'required' not a list");
    o->listed = o->listed || props;
    for (k = kd_jtree_first(b->t, props); k; k = kd_jtree_next(b->t, k)) {
        if (find(o, k->key) >= 0)
            return kd_gb_fail(b, KD_ENOTSUP, "'%.60s' is in two parts of allOf", k->key);
        if (add_property(b, o, k->key, k->key_bytes, k))
            return -1;
    }
    if (all && collect_all(b, o, all, depth))
        return -1;
    for (k = kd_jtree_first(b->t, req); k; k = kd_jtree_next(b->t, k)) {
        if (k->kind != KD_JSON_STR)
            return kd_gb_fail(b, KD_ENOTSUP, "'required' has an item that is no string");
        int64_t at = find(o, k->text);
        if ((at < 0 && add_property(b, o, k->text, k->bytes, NULL)) || !o->p)
            return -1;
        o->p[at < 0 ? o->count - 1 : at].required = true;
    }
    if (more) {
        bool yes =
            more->kind == KD_JSON_OBJECT || (more->kind == KD_JSON_BOOL && more->text[0] == 't');
        o->more = yes && (!o->more_known || o->more);
        o->rest = more->kind == KD_JSON_OBJECT ? more : NULL;
        o->more_known = true;
    }
    return 0;
}

/* Keys beyond those listed: as the schema says; where it says nothing, only if it lists none. */
static bool takes_more(const struct object *o)
{
    return o->more_known ? o->more : !o->listed && !o->count;
}

static int32_t property_rule(struct kd_gb *b, const struct object *o, int64_t i,
                             enum kd_gstyle style)
{
    if (!o->p[i].schema)
        return kd_gb_any(b, style);
    size_t n = enter(b, "properties", 0);
    enter(b, o->p[i].key, 0);
    int32_t rule = kd_gb_schema(b, o->p[i].schema, style);
    if (!b->failed)
        b->path[n] = 0;
    return rule;
}

/* A member before `next`: [", "]"key": value. */
static int32_t put_member(struct kd_gb *b, const struct object *o, int64_t i, int32_t rule,
                          bool comma, enum kd_gstyle style, int32_t next)
{
    bool spaced = style == KD_G_SPACED;
    struct kd_buf key;
    kd_buf_init(&key, TEXT_BYTES_MAX);
    if (comma)
        kd_buf_str(&key, spaced ? ", " : ",");
    kd_jtree_quote(&key, o->p[i].key, o->p[i].key_bytes);
    kd_buf_str(&key, spaced ? ": " : ":");
    int32_t node = key.failed ? kd_gb_fail(b, KD_ENOTSUP, "a key is too long")
                              : kd_gb_text(b, key.data, key.size_bytes, kd_gb_call(b, rule, next));
    kd_buf_release(&key);
    return node;
}

/* What may follow the listed members: first and after are the nodes with nothing before and with
 * something. */
static void put_rest(struct kd_gb *b, const struct object *o, enum kd_gstyle style, int32_t *first,
                     int32_t *after)
{
    bool spaced = style == KD_G_SPACED;
    int32_t close = kd_gb_str(b, "}", b->ret);
    *first = *after = close;
    if (!takes_more(o))
        return;
    size_t n = enter(b, "additionalProperties", 0);
    int32_t rule = o->rest ? kd_gb_schema(b, o->rest, style) : kd_gb_any(b, style);
    if (!b->failed)
        b->path[n] = 0;
    struct kd_buf *keys;
    if (kd_mem_new(&keys, o->count + 1, sizeof *keys, "keys", b->err)) {
        kd_gb_fail(b, KD_ENOMEM, "no memory");
        return;
    }
    for (int64_t i = 0; i < o->count; i++) {
        kd_buf_init(&keys[i], TEXT_BYTES_MAX);
        kd_buf_add(&keys[i], o->p[i].key, o->p[i].key_bytes);
    }
    *after = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    *first = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    int32_t value = kd_gb_str(b, spaced ? ": " : ":", kd_gb_call(b, rule, *after));
    int32_t key = kd_gb_key(b, keys, o->count, value);
    kd_gb_edge(b, *after, 0, 0, close, 0);
    kd_gb_edge(b, *after, 0, 0, kd_gb_str(b, spaced ? ", " : ",", key), 0);
    kd_gb_edge(b, *first, 0, 0, close, 0);
    kd_gb_edge(b, *first, 0, 0, key, 0);
    for (int64_t i = 0; i < o->count; i++)
        kd_buf_release(&keys[i]);
    kd_mem_free(keys);
}

static int32_t either(struct kd_gb *b, int32_t x, int32_t y)
{
    int32_t s = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    kd_gb_edge(b, s, 0, 0, x, 0);
    kd_gb_edge(b, s, 0, 0, y, 0);
    return s;
}

static int32_t object(struct kd_gb *b, const struct kd_jnode *s, enum kd_gstyle style)
{
    struct object o = {0};
    int32_t first = -1, after = -1, start = -1;
    if (collect(b, &o, s, 0)) {
        kd_mem_free(o.p);
        return -1;
    }
    if (takes_more(&o) && !o.count && !o.rest) {
        kd_mem_free(o.p);
        return kd_gb_call(b, kd_gb_object(b, style), b->ret);
    }
    put_rest(b, &o, style, &first, &after);
    /* From the last to the first; "nothing before" matters only up to the first that must stand. */
    int64_t must = 0;
    while (must < o.count && !o.p[must].required)
        must++;
    for (int64_t i = o.count - 1; i >= 0 && !b->failed; i--) {
        int32_t rule = property_rule(b, &o, i, style);
        int32_t as_first = -1, next = after;
        if (i <= must)
            as_first = put_member(b, &o, i, rule, false, style, next);
        if (i)
            after = put_member(b, &o, i, rule, true, style, next);
        if (i && !o.p[i].required)
            after = either(b, after, next);
        if (i <= must)
            first = o.p[i].required ? as_first : either(b, as_first, first);
    }
    start = kd_gb_str(b, "{", first);
    kd_mem_free(o.p);
    return b->failed ? -1 : start;
}

/* Arrays. */

static int32_t array(struct kd_gb *b, const struct kd_jnode *s, enum kd_gstyle style)
{
    const struct kd_jnode *items = get(b, s, "items"), *prefix = get(b, s, "prefixItems"), *k;
    int32_t rules[64], count = 0, item = -1;
    size_t sep_bytes = style == KD_G_SPACED ? 2 : 1;
    int32_t bound = bounds_of(b, s, "minItems", "maxItems");
    bool none = items && items->kind == KD_JSON_BOOL && items->text[0] == 'f';
    if (!items && !prefix && bound < 0)
        return b->failed ? -1 : kd_gb_call(b, kd_gb_array(b, style), b->ret);
    if (prefix && prefix->kind != KD_JSON_ARRAY)
        return kd_gb_fail(b, KD_ENOTSUP, "'prefixItems' is not a list");
    for (k = kd_jtree_first(b->t, prefix); k && !b->failed; k = kd_jtree_next(b->t, k)) {
        size_t n = enter(b, "prefixItems", 0);
        enter(b, NULL, count);
        if (count == 64)
            return kd_gb_fail(b, KD_ENOTSUP, "more than 64");
        rules[count++] = kd_gb_schema(b, k, style);
        if (!b->failed)
            b->path[n] = 0;
    }
    if (items && !none) {
        size_t n = enter(b, "items", 0);
        item = kd_gb_schema(b, items, style);
        if (!b->failed)
            b->path[n] = 0;
    } else if (!items && !prefix) {
        item = kd_gb_any(b, style);
    }
    if (bound >= 0 && item < 0 && b->g->bound[bound].least > count)
        return kd_gb_fail(b, KD_ENOTSUP, "'minItems' is over the items there are");
    /* tail: after the prefix; before it a node for each place. Each may end the list or go on. */
    int32_t close = kd_gb_str(b, "]", b->ret), tail = kd_gb_node(b, KD_G_SPLIT, -1, bound);
    int32_t at = tail, first = count ? rules[0] : item;
    kd_gb_edge(b, tail, 0, 0, close, KD_G_NEED);
    if (item >= 0)
        kd_gb_edge(b, tail, 0, 0, kd_gb_text(b, ", ", sep_bytes, kd_gb_call(b, item, tail)),
                   KD_G_INC);
    for (int32_t i = count - 1; i >= 1; i--) {
        int32_t me = kd_gb_node(b, KD_G_SPLIT, -1, bound);
        kd_gb_edge(b, me, 0, 0, close, KD_G_NEED);
        kd_gb_edge(b, me, 0, 0, kd_gb_text(b, ", ", sep_bytes, kd_gb_call(b, rules[i], at)),
                   KD_G_INC);
        at = me;
    }
    int32_t begin = kd_gb_node(b, KD_G_SPLIT, -1, bound);
    kd_gb_edge(b, begin, 0, 0, close, KD_G_NEED);
    if (first >= 0)
        kd_gb_edge(b, begin, 0, 0, kd_gb_call(b, first, at), KD_G_INC);
    return kd_gb_str(b, "[", begin);
}

/* One value. */

static int32_t typed(struct kd_gb *b, const struct kd_jnode *s, unsigned type, enum kd_gstyle style)
{
    switch (type) {
    case KD_TYPE_NULL:
        return kd_gb_str(b, "null", b->ret);
    case KD_TYPE_BOOL:
        return either(b, kd_gb_str(b, "true", b->ret), kd_gb_str(b, "false", b->ret));
    case KD_TYPE_INT:
        return number(b, s, true, b->ret);
    case KD_TYPE_NUM:
        return number(b, s, false, b->ret);
    case KD_TYPE_STR: {
        int32_t bound = bounds_of(b, s, "minLength", "maxLength");
        return b->failed ? -1 : kd_gb_call(b, kd_gb_string_rule(b, bound), b->ret);
    }
    case KD_TYPE_ARRAY:
        return array(b, s, style);
    default:
        return object(b, s, style);
    }
}

static int32_t one_of(struct kd_gb *b, const struct kd_jnode *list, const char *key,
                      enum kd_gstyle style)
{
    int64_t i = 0;
    if (list->kind != KD_JSON_ARRAY || !list->count)
        return kd_gb_fail(b, KD_ENOTSUP, "'%s' is not a list of schemas", key);
    int32_t split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    for (const struct kd_jnode *k = kd_jtree_first(b->t, list); k && !b->failed;
         k = kd_jtree_next(b->t, k)) {
        size_t n = enter(b, key, 0);
        enter(b, NULL, i++);
        int32_t rule = kd_gb_schema(b, k, style);
        kd_gb_edge(b, split, 0, 0, kd_gb_call(b, rule, b->ret), 0);
        if (!b->failed)
            b->path[n] = 0;
    }
    return split;
}

static int32_t value(struct kd_gb *b, const struct kd_jnode *s, enum kd_gstyle style)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const struct kd_jnode *ref = get(b, s, "$ref"), *list = get(b, s, "enum"),
                          *fixed = member(b, s, "const");
    bool any;
    if (check_keys(b, s))
        return -1;
    if (ref) {
        const struct kd_jnode *to = stands_alone(b, s, "$ref") ? NULL : follow(b, ref);
        return to ? kd_gb_call(b, kd_gb_schema(b, to, style), b->ret) : -1;
    }
    for (int i = 0; i < 2; i++)
        if (get(b, s, unions[i]))
            return stands_alone(b, s, unions[i])
                       ? -1
                       : one_of(b, get(b, s, unions[i]), unions[i], style);
    if (get(b, s, "allOf"))
        return object(b, s, style);
    unsigned types = types_of(b, s);
    if (list && list->kind != KD_JSON_ARRAY)
        return kd_gb_fail(b, KD_ENOTSUP, "'enum' is not a list");
    if (fixed || list) {
        int32_t node =
            values(b, fixed ? fixed : list, fixed != NULL, types, PICK_ALL, style, b->ret, &any);
        return any || b->failed ? node : kd_gb_fail(b, KD_ENOTSUP, "no value is allowed");
    }
    if (b->failed)
        return -1;
    if (!types)
        return kd_gb_call(b, kd_gb_any(b, style), b->ret);
    if (types & KD_TYPE_NUM)
        types &= ~(unsigned)KD_TYPE_INT; /* a number may be whole anyway */
    if (!(types & (types - 1)))
        return typed(b, s, types, style);
    int32_t split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
    for (unsigned t = 1; t < KD_TYPE_ALL && !b->failed; t <<= 1)
        if (types & t)
            kd_gb_edge(b, split, 0, 0, typed(b, s, t, style), 0);
    return split;
}

int32_t kd_gb_schema(struct kd_gb *b, const struct kd_jnode *s, enum kd_gstyle style)
{
    if (b->failed)
        return -1;
    if (s->kind == KD_JSON_BOOL && s->text[0] == 't')
        return kd_gb_any(b, style);
    if (s->kind != KD_JSON_OBJECT)
        return kd_gb_fail(b, KD_ENOTSUP, "not a schema");
    for (int64_t i = 0; i < b->memos; i++)
        if (b->memo[i].schema == s && b->memo[i].style == style)
            return b->memo[i].rule;
    if (b->depth >= DEPTH_MAX)
        return kd_gb_fail(b, KD_ENOTSUP, "nested too deep");
    if (b->memos == b->memo_cap) {
        struct kd_gmemo *more;
        b->memo_cap = b->memo_cap ? 2 * b->memo_cap : 64;
        if (kd_mem_new(&more, b->memo_cap, sizeof *more, "grammar", b->err))
            return kd_gb_fail(b, KD_ENOMEM, "no memory");
        if (b->memos)
            memcpy(more, b->memo, (size_t)b->memos * sizeof *more);
        kd_mem_free(b->memo);
        b->memo = more;
    }
    int32_t rule = kd_gb_rule(b);
    b->memo[b->memos++] = (struct kd_gmemo){s, rule, (uint8_t)style, 0};
    b->depth++;
    int32_t start = value(b, s, style);
    b->depth--;
    if (!b->failed)
        b->g->rule[rule] = start;
    return rule;
}

/* Arguments of a tool, in the turn's form:
 * <|open|>argument key="K" type="T"<|sep|>...<|close|>argument<|sep|>. */

static int32_t end_argument(struct kd_gb *b, int32_t next)
{
    const struct kd_vocab *v = b->g->v;
    return kd_gb_id(b, v->close, kd_gb_str(b, "argument", kd_gb_id(b, v->sep, next)));
}

/* `type="T"<|sep|>` before the value. */
static int32_t begin_value(struct kd_gb *b, const char *type, int32_t value_node)
{
    return kd_gb_str(b, type, kd_gb_str(b, "\"", kd_gb_id(b, b->g->v->sep, value_node)));
}

/* A rule as a value: calls it and goes on. */
static int32_t rule_of(struct kd_gb *b, int32_t start_node)
{
    int32_t r = kd_gb_rule(b);
    if (!b->failed)
        b->g->rule[r] = start_node;
    return r;
}

static void add_way(struct kd_gb *b, int32_t split, const char *type, int32_t value_node)
{
    kd_gb_edge(b, split, 0, 0, begin_value(b, type, value_node), 0);
}

/* Every way to write a value of this schema: edges from split. */
static void ways(struct kd_gb *b, const struct kd_jnode *s, int32_t split, int32_t next, int depth);

static void way_of_type(struct kd_gb *b, const struct kd_jnode *s, unsigned type, int32_t split,
                        int32_t next)
{
    static const char *const names[] = {"null",   "boolean", "number", "number",
                                        "string", "array",   "object"};
    int i = 0;
    while (1u << i != type)
        i++;
    if (type == KD_TYPE_STR) {
        int32_t bound = s ? bounds_of(b, s, "minLength", "maxLength") : -1;
        add_way(b, split, names[i], kd_gb_call(b, kd_gb_raw_rule(b, bound), next));
        return;
    }
    int32_t rule = s                        ? rule_of(b, typed(b, s, type, KD_G_SPACED))
                   : type == KD_TYPE_ARRAY  ? kd_gb_array(b, KD_G_SPACED)
                   : type == KD_TYPE_OBJECT ? kd_gb_object(b, KD_G_SPACED)
                   : type == KD_TYPE_NUM    ? rule_of(b, kd_gb_num(b, false, NULL, NULL, b->ret))
                                            : rule_of(b, typed(b, s, type, KD_G_SPACED));
    add_way(b, split, names[i], kd_gb_call(b, rule, next));
}

static void ways_of_values(struct kd_gb *b, const struct kd_jnode *v, bool one, unsigned types,
                           int32_t split, int32_t next)
{
    static const struct {
        const char *name;
        unsigned types;
    } t[] = {{"null", KD_TYPE_NULL},
             {"boolean", KD_TYPE_BOOL},
             {"number", KD_TYPE_NUM},
             {"array", KD_TYPE_ARRAY},
             {"object", KD_TYPE_OBJECT}};
    bool any, some = false;
    int32_t node = values(b, v, one, types ? types & KD_TYPE_STR : KD_TYPE_STR, PICK_STRINGS,
                          KD_G_SPACED, next, &any);
    if (any && (!types || (types & KD_TYPE_STR))) {
        add_way(b, split, "string", node);
        some = true;
    }
    for (size_t i = 0; i < sizeof t / sizeof *t && !b->failed; i++) {
        unsigned mine = t[i].types;
        if (types && !(types & (mine | (mine == KD_TYPE_NUM ? KD_TYPE_INT : 0))))
            continue;
        node = values(b, v, one, mine, PICK_OTHERS, KD_G_SPACED, next, &any);
        if (any)
            add_way(b, split, t[i].name, node);
        some = some || any;
    }
    if (!some)
        kd_gb_fail(b, KD_ENOTSUP, "no value is allowed");
}

static void ways(struct kd_gb *b, const struct kd_jnode *s, int32_t split, int32_t next, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    bool any = !s || (s->kind == KD_JSON_BOOL && s->text[0] == 't');
    unsigned types = 0;
    if (b->failed)
        return;
    if (depth > 16) {
        kd_gb_fail(b, KD_ENOTSUP, "nested too deep, or a loop of $ref");
        return;
    }
    if (!any && s->kind != KD_JSON_OBJECT) {
        kd_gb_fail(b, KD_ENOTSUP, "not a schema");
        return;
    }
    if (!any) {
        const struct kd_jnode *ref = get(b, s, "$ref"), *list = get(b, s, "enum"),
                              *fixed = member(b, s, "const");
        if (check_keys(b, s))
            return;
        if (ref) {
            const struct kd_jnode *to = stands_alone(b, s, "$ref") ? NULL : follow(b, ref);
            if (to)
                ways(b, to, split, next, depth + 1);
            return;
        }
        for (int i = 0; i < 2; i++) {
            const struct kd_jnode *u = get(b, s, unions[i]);
            if (!u)
                continue;
            if (stands_alone(b, s, unions[i]))
                return;
            for (u = kd_jtree_first(b->t, u); u; u = kd_jtree_next(b->t, u))
                ways(b, u, split, next, depth + 1);
            return;
        }
        if (get(b, s, "allOf")) {
            way_of_type(b, s, KD_TYPE_OBJECT, split, next);
            return;
        }
        types = types_of(b, s);
        if (list && list->kind != KD_JSON_ARRAY)
            kd_gb_fail(b, KD_ENOTSUP, "'enum' is not a list");
        if (b->failed)
            return;
        if (fixed || list) {
            ways_of_values(b, fixed ? fixed : list, fixed != NULL, types, split, next);
            return;
        }
    }
    any = !types;
    types = types ? types : KD_TYPE_ALL;
    if (types & KD_TYPE_NUM)
        types &= ~(unsigned)KD_TYPE_INT;
    for (unsigned t = 1; t <= KD_TYPE_OBJECT && !b->failed; t <<= 1)
        if (types & t)
            way_of_type(b, any ? NULL : s, t, split, next);
}

static int32_t key_text(struct kd_gb *b, const char *key, size_t bytes, int32_t next)
{
    struct kd_buf text;
    kd_buf_init(&text, TEXT_BYTES_MAX);
    for (size_t i = 0; i < bytes; i++) {
        if (key[i] == '&')
            kd_buf_str(&text, "&amp;");
        else if (key[i] == '"')
            kd_buf_str(&text, "&quot;");
        else
            kd_buf_char(&text, key[i]);
    }
    kd_buf_str(&text, "\" type=\"");
    int32_t node = text.failed ? kd_gb_fail(b, KD_ENOTSUP, "a key is too long")
                               : kd_gb_text(b, text.data, text.size_bytes, next);
    kd_buf_release(&text);
    return node;
}

static int32_t begin_argument(struct kd_gb *b, int32_t key_node)
{
    return kd_gb_id(b, b->g->v->open, kd_gb_str(b, "argument key=\"", key_node));
}

int32_t kd_gb_arguments(struct kd_gb *b, const struct kd_jnode *s, int32_t next)
{
    struct object o = {0};
    if (s && collect(b, &o, s, 0)) {
        kd_mem_free(o.p);
        return -1;
    }
    int32_t at = next;
    if (takes_more(&o)) {
        at = kd_gb_node(b, KD_G_SPLIT, -1, -1);
        int32_t split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
        ways(b, o.rest, split, end_argument(b, at), 0);
        /* kd_gb_key makes "key"; its first quote is the attribute's own, which comes before. */
        int32_t key = kd_gb_key(b, NULL, 0, kd_gb_str(b, " type=\"", split));
        int32_t begin = kd_gb_id(b, b->g->v->open, kd_gb_str(b, "argument key=", key));
        kd_gb_edge(b, at, 0, 0, begin, 0);
        kd_gb_edge(b, at, 0, 0, next, 0);
    }
    for (int64_t i = o.count - 1; i >= 0 && !b->failed; i--) {
        size_t n = enter(b, "properties", 0);
        enter(b, o.p[i].key, 0);
        int32_t split = kd_gb_node(b, KD_G_SPLIT, -1, -1);
        ways(b, o.p[i].schema, split, end_argument(b, at), 0);
        int32_t node = begin_argument(b, key_text(b, o.p[i].key, o.p[i].key_bytes, split));
        at = o.p[i].required ? node : either(b, node, at);
        if (!b->failed)
            b->path[n] = 0;
    }
    kd_mem_free(o.p);
    return at;
}
