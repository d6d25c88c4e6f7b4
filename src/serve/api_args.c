#include "serve/api_args.h"

#include <string.h>

enum { HOPS_MAX = 16 };

static unsigned type_named(const struct kd_jnode *v)
{
    static const struct {
        const char *name;
        unsigned type;
    } t[] = {{"null", KD_TYPE_NULL},    {"boolean", KD_TYPE_BOOL},
             {"integer", KD_TYPE_INT},  {"number", KD_TYPE_NUM | KD_TYPE_INT},
             {"string", KD_TYPE_STR},   {"array", KD_TYPE_ARRAY},
             {"object", KD_TYPE_OBJECT}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (kd_jnode_is(v, t[i].name))
            return t[i].type;
    return 0;
}

static unsigned type_of(const struct kd_jnode *v)
{
    static const unsigned types[] = {KD_TYPE_NULL, KD_TYPE_BOOL,  KD_TYPE_INT,   KD_TYPE_NUM,
                                     KD_TYPE_STR,  KD_TYPE_ARRAY, KD_TYPE_OBJECT};
    return types[v->kind];
}

/* "#/a/b" within the tree's part at root; NULL when it leads nowhere. */
static const struct kd_jnode *follow(const struct kd_jtree *t, const struct kd_jnode *root,
                                     const struct kd_jnode *ref)
{
    char key[256];
    if (ref->kind != KD_JSON_STR || ref->text[0] != '#')
        return NULL;
    const char *s = ref->text + 1;
    while (root && *s == '/') {
        size_t n = 0;
        for (s++; *s && *s != '/' && n + 1 < sizeof key; n++) {
            bool tilde = *s == '~' && (s[1] == '0' || s[1] == '1');
            key[n] = tilde ? "~/"[s[1] - '0'] : *s;
            s += tilde ? 2 : 1;
        }
        key[n] = 0;
        root = kd_jtree_get(t, root, key);
    }
    return *s ? NULL : root;
}

static unsigned types_of(const struct kd_jtree *t, const struct kd_jnode *root,
                         const struct kd_jnode *s, int hops)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const struct kd_jnode *v, *k;
    unsigned types = 0;
    if (!s || s->kind != KD_JSON_OBJECT || hops > HOPS_MAX)
        return 0;
    if ((v = kd_jtree_get(t, s, "$ref")))
        return types_of(t, root, follow(t, root, v), hops + 1);
    if ((v = kd_jtree_get(t, s, "type"))) {
        types = type_named(v);
        for (k = kd_jtree_first(t, v); v->kind == KD_JSON_ARRAY && k; k = kd_jtree_next(t, k))
            types |= type_named(k);
        return types;
    }
    if ((v = kd_jtree_get(t, s, "const")))
        return type_of(v);
    if ((v = kd_jtree_get(t, s, "enum"))) {
        for (k = kd_jtree_first(t, v); k; k = kd_jtree_next(t, k))
            types |= type_of(k);
        return types;
    }
    for (int i = 0; i < 2; i++)
        for (k = kd_jtree_first(t, kd_jtree_get(t, s, unions[i])); k; k = kd_jtree_next(t, k)) {
            unsigned more = types_of(t, root, k, hops + 1);
            if (!more)
                return 0;
            types |= more;
        }
    for (k = kd_jtree_first(t, kd_jtree_get(t, s, "allOf")); k; k = kd_jtree_next(t, k)) {
        unsigned more = types_of(t, root, k, hops + 1);
        types = types && more ? types & more : types | more;
    }
    return types;
}

unsigned kd_arg_types(const struct kd_jtree *t, const struct kd_jnode *schema, const char *key)
{
    const struct kd_jnode *p = kd_jtree_get(t, kd_jtree_get(t, schema, "properties"), key);
    return types_of(t, schema, p, 0);
}

/* 2.0 as 2, where the schema wants an integer and that is one. */
static bool put_integer(struct kd_buf *out, const struct kd_jnode *v, unsigned types)
{
    const char *dot = v->kind == KD_JSON_REAL ? strchr(v->text, '.') : NULL;
    if (!dot || !(types & KD_TYPE_INT) || (types & KD_TYPE_NUM) ||
        dot[1 + strspn(dot + 1, "0")] != 0)
        return false;
    kd_buf_add(out, v->text, (size_t)(dot - v->text));
    return true;
}

void kd_arg_value(struct kd_buf *out, const char *text, size_t bytes, bool string, unsigned types)
{
    struct kd_jtree t;
    bool keep = string && (!types || (types & KD_TYPE_STR));
    if (!keep && !kd_jtree_parse(&t, text, bytes, NULL)) {
        const struct kd_jnode *v = kd_jtree_root(&t);
        unsigned type = type_of(v);
        bool fits = !types || (types & type);
        if (type == KD_TYPE_NUM && (types & KD_TYPE_INT) && put_integer(out, v, types)) {
            kd_jtree_release(&t);
            return;
        }
        /* What the model calls a number and the schema a string is the string as it was written;
         * what fits nowhere stays what the model said. */
        bool as_is = fits || (!string && !(types & KD_TYPE_STR));
        if (as_is && type == KD_TYPE_STR && string)
            as_is = false; /* a text that happens to be a JSON string */
        int rc = as_is ? kd_jtree_dump(out, &t, v, KD_JSTYLE_COMPACT, NULL) : 0;
        kd_jtree_release(&t);
        if (as_is && !rc)
            return;
    }
    kd_jtree_quote(out, text, bytes);
}
