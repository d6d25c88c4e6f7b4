#include "plan/machine.h"

#include "base/file.h"
#include "base/json.h"
#include "base/opt.h"
#include "base/show.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20 };

const char *kd_mem_name(enum kd_mem_kind k)
{
    static const char *const names[KD_MEM_KINDS] = {"hbm", "unified", "grace", "ram", "nvme"};
    return names[k];
}

const char *kd_machine_preset(int i)
{
    return kd_presets[i].key;
}

static void take(struct kd_sourced *out, const struct kd_preset_num *n)
{
    out->v = n->v;
    snprintf(out->source, sizeof out->source, "%s", n->source ? n->source : "none");
}

static void take_preset(struct kd_machine *m, const struct kd_preset *p)
{
    memset(m, 0, sizeof *m);
    snprintf(m->key, sizeof m->key, "%s", p->key);
    snprintf(m->title, sizeof m->title, "%s", p->title);
    snprintf(m->why_not, sizeof m->why_not, "%s", p->why_not ? p->why_not : "");
    snprintf(m->note, sizeof m->note, "%s", p->note ? p->note : "");
    m->supported = !p->why_not;
    m->count = 1;
    for (; m->tiers < KD_MACHINE_TIERS && p->tier[m->tiers].gib.v > 0; m->tiers++) {
        const struct kd_preset_tier *t = &p->tier[m->tiers];
        m->tier[m->tiers].kind = t->kind;
        take(&m->tier[m->tiers].gib, &t->gib);
        take(&m->tier[m->tiers].gb_s, &t->gb_s);
        take(&m->tier[m->tiers].reserve, &t->reserve);
    }
    take(&m->tflops, &p->tflops);
    take(&m->fp32_tflops, &p->fp32_tflops);
    take(&m->tiles_s, &p->tiles_s);
    take(&m->link_gb_s, &p->link_gb_s);
    take(&m->collective_us, &p->collective_us);
    take(&m->watts, &p->watts);
    take(&m->price_usd, &p->price_usd);
}

/* The numbers of a description beside its tiers. */
static const struct number {
    const char *key;
    size_t offset;
    double min, max, other;
    bool needed;
} numbers[] = {{"tflops", offsetof(struct kd_machine, tflops), 1e-3, 1e6, 0, true},
               {"fp32_tflops", offsetof(struct kd_machine, fp32_tflops), 0, 1e6, 0, false},
               {"tiles_s", offsetof(struct kd_machine, tiles_s), 0, 1e12, 0, false},
               {"link_gb_s", offsetof(struct kd_machine, link_gb_s), 0, 1e6, 0, false},
               {"collective_us", offsetof(struct kd_machine, collective_us), 0, 1e7, 0, false},
               {"watts", offsetof(struct kd_machine, watts), 0, 1e9, 0, false},
               {"price_usd", offsetof(struct kd_machine, price_usd), 0, 1e12, 0, false}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static const struct number tier_numbers[] = {
    {"gib", offsetof(struct kd_machine_tier, gib), 1e-3, 1e9, 0, true},
    {"gb_s", offsetof(struct kd_machine_tier, gb_s), 1e-3, 1e7, 0, true},
    {"reserve_gib", offsetof(struct kd_machine_tier, reserve), 0, 1e9, 0, false}};
enum { TIER_NUMBERS = sizeof tier_numbers / sizeof *tier_numbers };

static const char machine_keys[] = "format, name, title, tiers, tflops, fp32_tflops, tiles_s, "
                                   "link_gb_s, collective_us, watts, price_usd, note";
static const char tier_keys[] = "kind, gib, gb_s, reserve_gib";

static struct kd_sourced *place(void *base, const struct number *n)
{
    return (struct kd_sourced *)(void *)((char *)base + n->offset);
}

/* Every key must be in the comma-separated list. */
static int known(const struct kd_json *obj, const char *keys, struct kd_err *err)
{
    void *iter = NULL;
    const char *key;
    struct kd_json *v;
    char shown[80];
    while (kd_json_next(obj, &iter, &key, &v)) {
        size_t n = strlen(key);
        bool found = false;
        for (const char *at = keys; at && !found; at = strstr(at, ", ")) {
            at += at == keys ? 0 : 2;
            found = !strncmp(at, key, n) && n && (!at[n] || at[n] == ',');
        }
        if (!found)
            return kd_fail(err, KD_ECORRUPT, "'%s' is not a key; known are: %s",
                           kd_show_text(shown, sizeof shown, key), keys);
    }
    return 0;
}

/* A bare number, or {"value": N, "source": "..."}. */
static int read_number(struct kd_sourced *out, const struct kd_json *obj, const struct number *n,
                       struct kd_err *err)
{
    const struct kd_json *v = kd_json_get(obj, n->key);
    const char *source = NULL;
    if (!v && !n->needed) {
        *out = (struct kd_sourced){.v = n->other, .source = "not given"};
        return 0;
    }
    if (kd_json_kind(v) == KD_JSON_OBJECT) {
        if (known(v, "value, source", err) ||
            kd_json_num(v, "value", n->min, n->max, &out->v, err) ||
            kd_json_str(v, "source", &source, err))
            return kd_wrap(err, "'%s'", n->key);
    } else if (kd_json_num(obj, n->key, n->min, n->max, &out->v, err)) {
        return -1;
    }
    /* Times are quotients: what is as good as nothing would make years with eighty digits. */
    if (out->v > 0 && out->v < 1e-3)
        return kd_fail(err, KD_ECORRUPT, "'%s' is %g: 0 or at least 0.001", n->key, out->v);
    kd_show_text(out->source, sizeof out->source, source ? source : "machine file");
    return 0;
}

static int read_tier(struct kd_machine_tier *t, const struct kd_json *v, struct kd_err *err)
{
    const char *kind;
    char shown[40];
    if (kd_json_kind(v) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "a tier is not an object");
    if (known(v, tier_keys, err) || kd_json_str(v, "kind", &kind, err))
        return -1;
    int k = 0;
    while (k < KD_MEM_KINDS && strcmp(kd_mem_name((enum kd_mem_kind)k), kind) != 0)
        k++;
    if (k == KD_MEM_KINDS)
        return kd_fail(err, KD_ECORRUPT, "'kind' is '%s', not hbm, unified, grace, ram or nvme",
                       kd_show_text(shown, sizeof shown, kind));
    t->kind = (enum kd_mem_kind)k;
    for (int i = 0; i < TIER_NUMBERS; i++)
        if (read_number(place(t, &tier_numbers[i]), v, &tier_numbers[i], err))
            return -1;
    if (t->reserve.v >= t->gib.v)
        return kd_fail(err, KD_ECORRUPT, "'reserve_gib' %g leaves nothing of %g GiB", t->reserve.v,
                       t->gib.v);
    return 0;
}

static int read_tiers(struct kd_machine *m, const struct kd_json *list, struct kd_err *err)
{
    size_t n = kd_json_count(list);
    if (kd_json_kind(list) != KD_JSON_ARRAY || !n || n > KD_MACHINE_TIERS)
        return kd_fail(err, KD_ECORRUPT, "'tiers' is not an array of 1 to %d", KD_MACHINE_TIERS);
    for (size_t i = 0; i < n; i++, m->tiers++) {
        if (read_tier(&m->tier[i], kd_json_at(list, i), err))
            return kd_wrap(err, "tier %zu", i + 1);
        if (i && m->tier[i].gb_s.v > m->tier[i - 1].gb_s.v)
            return kd_fail(err, KD_ECORRUPT,
                           "tier %zu is faster than the one before it: tiers go "
                           "from fast to slow",
                           i + 1);
        if (m->tier[i].kind == KD_MEM_NVME && i + 1 < n)
            return kd_fail(err, KD_ECORRUPT, "tier %zu is NVMe: it must be the last", i + 1);
    }
    if (m->tier[0].kind == KD_MEM_NVME)
        return kd_fail(err, KD_ECORRUPT, "tier 1 is NVMe: a machine computes from memory");
    return 0;
}

static void text_or(char *out, size_t size, const struct kd_json *obj, const char *key,
                    const char *other)
{
    const char *v = kd_json_text(kd_json_get(obj, key), NULL);
    kd_show_text(out, size, v ? v : other);
}

static int read_machine(struct kd_machine *m, const struct kd_json *root, const char *what,
                        struct kd_err *err)
{
    int64_t format;
    const char *name;
    if (kd_json_kind(root) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "not an object");
    if (known(root, machine_keys, err) || kd_json_int(root, "format", 1, 1, &format, err) ||
        kd_json_str(root, "name", &name, err))
        return -1;
    if (!*name)
        return kd_fail(err, KD_ECORRUPT, "'name' is empty");
    kd_show_text(m->key, sizeof m->key, name);
    text_or(m->title, sizeof m->title, root, "title", name);
    text_or(m->note, sizeof m->note, root, "note", "");
    (void)what;
    if (read_tiers(m, kd_json_get(root, "tiers"), err))
        return -1;
    for (int i = 0; i < NUMBERS; i++)
        if (read_number(place(m, &numbers[i]), root, &numbers[i], err))
            return -1;
    return 0;
}

int kd_machine_parse(struct kd_machine *m, const char *text, size_t bytes, const char *what,
                     struct kd_err *err)
{
    struct kd_json *root;
    memset(m, 0, sizeof *m);
    m->count = 1;
    m->supported = true;
    if (kd_json_parse(&root, text, bytes, what, err))
        return -1;
    int rc = read_machine(m, root, what, err);
    kd_json_free(root);
    return rc ? kd_wrap(err, "%s", what) : 0;
}

static void put_number(struct kd_jw *w, const char *key, const struct kd_sourced *n)
{
    kd_jw_open(w, key, '{');
    kd_jw_num(w, "value", n->v);
    kd_jw_str(w, "source", n->source);
    kd_jw_close(w, '}');
}

void kd_machine_write(struct kd_buf *out, const struct kd_machine *m)
{
    struct kd_jw w = {.out = out};
    kd_jw_open(&w, NULL, '{');
    kd_jw_int(&w, "format", 1);
    kd_jw_str(&w, "name", m->key);
    kd_jw_str(&w, "title", m->title);
    kd_jw_open(&w, "tiers", '[');
    for (int i = 0; i < m->tiers; i++) {
        kd_jw_open(&w, NULL, '{');
        kd_jw_str(&w, "kind", kd_mem_name(m->tier[i].kind));
        put_number(&w, "gib", &m->tier[i].gib);
        put_number(&w, "gb_s", &m->tier[i].gb_s);
        put_number(&w, "reserve_gib", &m->tier[i].reserve);
        kd_jw_close(&w, '}');
    }
    kd_jw_close(&w, ']');
    for (int i = 0; i < NUMBERS; i++)
        put_number(&w, numbers[i].key,
                   (const struct kd_sourced *)(const void *)((const char *)m + numbers[i].offset));
    kd_jw_str(&w, "note", m->note);
    kd_jw_close(&w, '}');
    kd_buf_char(out, '\n');
}

static int load(struct kd_machine *m, const char *path, struct kd_err *err)
{
    struct kd_buf b;
    kd_buf_init(&b, FILE_MAX);
    int rc = kd_file_read(&b, path, FILE_MAX, err);
    if (!rc)
        rc = kd_machine_parse(m, b.data ? b.data : "", b.size_bytes, path, err);
    kd_buf_release(&b);
    return rc;
}

static int not_found(const char *name, struct kd_err *err)
{
    struct kd_buf b;
    char shown[80];
    kd_buf_init(&b, 4096);
    for (int i = 0; kd_presets[i].key; i++)
        kd_buf_printf(&b, "%s%s", i ? ", " : "", kd_presets[i].key);
    kd_fail(err, KD_EUSAGE, "'%s' is neither a file nor one of %s",
            kd_show_text(shown, sizeof shown, name), b.data);
    kd_buf_release(&b);
    return -1;
}

int kd_machine_find(struct kd_machine *m, const char *text, struct kd_err *err)
{
    char name[4096];
    int64_t count = 1;
    const char *colon = strrchr(text, ':');
    /* A path may hold a colon itself. */
    bool counted = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
                   !kd_file_exists(text);
    if (counted && kd_parse_int(colon + 1, 1, KD_MACHINE_COUNT_MAX, &count, err))
        return kd_wrap(err, "machine '%.60s'", text);
    if (counted && colon == text)
        return not_found(text, err);
    int n = counted ? (int)(colon - text) : (int)strlen(text);
    if (snprintf(name, sizeof name, "%.*s", n, text) >= (int)sizeof name)
        return kd_fail(err, KD_EINVAL, "path '%.60s...' is too long", text);
    int i = 0;
    while (kd_presets[i].key && strcmp(kd_presets[i].key, name) != 0)
        i++;
    if (kd_presets[i].key)
        take_preset(m, &kd_presets[i]);
    else if (!strchr(name, '/') && !strchr(name, '.') && !kd_file_exists(name))
        return not_found(name, err);
    else if (load(m, name, err))
        return -1;
    m->count = (int)count;
    if (count > 1 && m->supported && !(m->link_gb_s.v > 0))
        return kd_fail(err, KD_EINVAL,
                       "machine '%.60s': devices without 'link_gb_s' cannot share a model", text);
    return 0;
}

double kd_machine_room_gib(const struct kd_machine *m)
{
    double sum = 0;
    for (int i = 0; i < m->tiers; i++)
        if (m->tier[i].kind != KD_MEM_NVME)
            sum += m->tier[i].gib.v - m->tier[i].reserve.v;
    return sum;
}
