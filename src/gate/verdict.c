#include "gate/verdict.h"

#include "base/file.h"
#include "base/jscan.h"
#include "base/opt.h"
#include "gate/report.h"
#include "gate/span.h"

#include <stdio.h>
#include <string.h>

enum { RECEIPT_MAX = 1 << 30 };

/* What can be required. value() returns false when the check did not measure it. */
struct figure {
    const char *name;
    bool at_most;
    bool (*value)(const struct kd_check *c, double *v);
};

#define TEXT_FIGURE(fn, expr)                                                                      \
    static bool fn(const struct kd_check *c, double *v)                                            \
    {                                                                                              \
        *v = c->has_text ? (expr) : 0;                                                             \
        return c->has_text;                                                                        \
    }
TEXT_FIGURE(get_kld, c->kld_mean)
TEXT_FIGURE(get_median, c->kld_median)
TEXT_FIGURE(get_p95, c->kld_p95)
TEXT_FIGURE(get_p99, c->kld_p99)
TEXT_FIGURE(get_top1, c->top1)
TEXT_FIGURE(get_ppl, c->ppl_src > 0 ? c->ppl_dst / c->ppl_src : 0)
TEXT_FIGURE(get_router, c->router_mean)
TEXT_FIGURE(get_router_min, c->router_min)

static bool get_control(const struct kd_check *c, double *v)
{
    *v = c->control_kld;
    return c->has_text && c->control_tokens > 0;
}

static bool get_file(const struct kd_check *c, double *v)
{
    *v = c->bits_file;
    return c->bits_file > 0;
}

static bool share(const struct kd_check *c, int64_t right, double *v)
{
    *v = c->has_battery ? (double)right / (double)c->battery.requests : 0;
    return c->has_battery;
}

static bool get_exact(const struct kd_check *c, double *v)
{
    return share(c, c->battery.exact.dst_right, v);
}

static bool get_calls(const struct kd_check *c, double *v)
{
    return share(c, c->battery.calls.dst_right, v);
}

static const struct figure figures[] = {
    {"kld", true, get_kld},
    {"kld.median", true, get_median},
    {"kld.p95", true, get_p95},
    {"kld.p99", true, get_p99},
    {"control.kld", true, get_control},
    {"ppl.ratio", true, get_ppl},
    {"bits.file", true, get_file},
    {"top1", false, get_top1},
    {"router", false, get_router},
    {"router.min", false, get_router_min},
    {"battery.exact", false, get_exact},
    {"battery.calls", false, get_calls},
};

static const struct figure *find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (strlen(figures[i].name) == bytes && !memcmp(figures[i].name, name, bytes))
            return &figures[i];
    return NULL;
}

static int add(struct kd_verdict *v, const struct figure *f, double bound, struct kd_err *err)
{
    for (int i = 0; i < v->count; i++)
        if (!strcmp(v->r[i].figure, f->name)) {
            if (f->at_most ? bound < v->r[i].bound : bound > v->r[i].bound)
                v->r[i].bound = bound;
            return 0;
        }
    if (v->count == KD_REQUIRE_MAX)
        return kd_fail(err, KD_EUSAGE, "too many requirements");
    struct kd_require *r = &v->r[v->count++];
    *r = (struct kd_require){.at_most = f->at_most, .bound = bound};
    snprintf(r->figure, sizeof r->figure, "%s", f->name);
    return 0;
}

int kd_verdict_parse(struct kd_verdict *v, const char *list, struct kd_err *err)
{
    for (const char *at = list;;) {
        size_t n = strcspn(at, ","), name = strcspn(at, "=,");
        const struct figure *f = find(at, name);
        char number[64];
        double bound;
        if (!f)
            return kd_fail(err, KD_EUSAGE,
                           "'%.*s' cannot be required (kld, kld.median, kld.p95, kld.p99, "
                           "control.kld, ppl.ratio, bits.file, top1, router, router.min, "
                           "battery.exact, battery.calls)",
                           (int)name, at);
        if (name == n || n - name - 1 >= sizeof number)
            return kd_fail(err, KD_EUSAGE, "'%.*s' needs a bound, as in %s=0.1", (int)n, at,
                           f->name);
        snprintf(number, sizeof number, "%.*s", (int)(n - name - 1), at + name + 1);
        if (kd_parse_num(number, &bound, err) || add(v, f, bound, err))
            return kd_wrap(err, "%s", f->name);
        if (!at[n])
            return 0;
        at += n + 1;
    }
}

int kd_verdict_profile(struct kd_verdict *v, const char *name, double experts_k, struct kd_err *err)
{
    if (strcmp(name, "k3") != 0)
        return kd_fail(err, KD_EUSAGE, "'%s' is not a profile (k3)", name);
    /* An average meant to be 2.3 comes out a little under it. */
    int64_t hundredths = (int64_t)(experts_k * 100 + 0.5);
    double kld = hundredths >= 230 ? 0.050 : 0.070;
    if (add(v, find("kld", 3), kld, err) || add(v, find("router", 6), 0.90, err) ||
        add(v, find("router.min", 10), 0.85, err))
        return -1;
    return 0;
}

void kd_verdict_judge(struct kd_verdict *v, const struct kd_check *c)
{
    v->pass = true;
    for (int i = 0; i < v->count; i++) {
        struct kd_require *r = &v->r[i];
        const struct figure *f = find(r->figure, strlen(r->figure));
        r->measured = f && f->value(c, &r->value);
        /* Written so that NaN fails. */
        r->pass = r->measured && (r->at_most ? r->value <= r->bound : r->value >= r->bound);
        v->pass = v->pass && r->pass;
    }
}

int kd_verdict_fail(const struct kd_verdict *v, struct kd_err *err)
{
    char text[400] = "";
    size_t used = 0;
    if (v->pass)
        return 0;
    for (int i = 0; i < v->count && used < sizeof text - 1; i++) {
        const struct kd_require *r = &v->r[i];
        if (r->pass)
            continue;
        const char *sep = used ? ", " : "";
        int n = r->measured ? snprintf(text + used, sizeof text - used, "%s%s %.6g is %s %.6g", sep,
                                       r->figure, r->value, r->at_most ? "over" : "under", r->bound)
                            : snprintf(text + used, sizeof text - used, "%s%s was not measured",
                                       sep, r->figure);
        used += n > 0 ? (size_t)n : 0;
    }
    return kd_fail(err, KD_EGATE, "requirement not met: %s", text);
}

static const char lead[] = "\n  \"verdict\": ";

/* The member with `lead` in front, one level deep in a file that indents by two. */
static void verdict_json(struct kd_buf *out, const struct kd_verdict *v, const struct kd_check *c)
{
    struct kd_jw w = {.out = out, .depth = 1};
    kd_jw_open(&w, "verdict", '{');
    kd_report_verdict_members(&w, v);
    kd_report_members(&w, c);
    kd_jw_close(&w, '}');
}

/* A file that is no JSON object stays as it is. Scanned, not parsed: a K3 receipt has a million
 * entries. */
static int check_object(const struct kd_buf *old, struct kd_err *err)
{
    struct kd_jscan_limits limits = {
        .depth = 32, .string_bytes = 1 << 20, .total_bytes = RECEIPT_MAX};
    struct kd_jscan s;
    kd_jscan_open(&s, old->data ? old->data : "", old->size_bytes, &limits);
    int rc = kd_jscan_next(&s, err);
    if (!rc && s.tok != KD_JT_OBJECT)
        rc = kd_fail(err, KD_ECORRUPT, "not a JSON object");
    while (!rc && s.tok != KD_JT_END)
        rc = kd_jscan_next(&s, err);
    kd_jscan_close(&s);
    return rc ? -1 : 0;
}

static int splice(struct kd_buf *out, const struct kd_buf *old, const struct kd_buf *member,
                  struct kd_err *err)
{
    const char *text = old->data;
    size_t start = kd_span_skip_space(text, old->size_bytes, 0);
    struct kd_span at;
    bool found;
    if (kd_span_member(text, old->size_bytes, start, "verdict", &at, &found, err))
        return -1;
    if (found) {
        kd_buf_add(out, text, at.begin);
        kd_buf_add(out, member->data + strlen(lead), member->size_bytes - strlen(lead));
        kd_buf_add(out, text + at.end, old->size_bytes - at.end);
    } else {
        size_t body = at.begin; /* up to the last member, without the space before the brace */
        while (body > start + 1 && strchr(" \n\r\t", text[body - 1]))
            body--;
        kd_buf_add(out, text, body);
        kd_buf_str(out, body > start + 1 ? "," : "");
        kd_buf_add(out, member->data, member->size_bytes);
        kd_buf_str(out, "\n");
        kd_buf_add(out, text + at.begin, old->size_bytes - at.begin);
    }
    return kd_buf_ok(out, "kondense.json", err);
}

int kd_verdict_write(const struct kd_verdict *v, const struct kd_check *c, const char *dir,
                     struct kd_err *err)
{
    char path[4096];
    const size_t limit = RECEIPT_MAX;
    struct kd_buf old, value, out;
    kd_buf_init(&old, limit);
    kd_buf_init(&value, 16 << 20);
    kd_buf_init(&out, limit + (16 << 20));
    verdict_json(&value, v, c);
    int rc = kd_buf_ok(&value, "verdict", err) ||
             kd_path_join(path, sizeof path, dir, "kondense.json", err);
    if (!rc && kd_file_exists(path))
        rc = kd_file_read(&old, path, limit, err);
    else if (!rc)
        kd_buf_str(&old, "{\n}\n");
    if (!rc && (check_object(&old, err) || splice(&out, &old, &value, err)))
        rc = kd_wrap(err, "%s", path);
    if (!rc)
        rc = kd_file_write(path, out.data, out.size_bytes, err);
    kd_buf_release(&old);
    kd_buf_release(&value);
    kd_buf_release(&out);
    return rc ? -1 : 0;
}
