/* bench serve --text: what drafts from the text so far are worth, on texts of the user's choice.
 * Each passage goes to an engine without drafts, to one with them and to another one without, in
 * turns; the answers must be the same, token for token. What the two without differ by is what the
 * machine did. */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cmd/bench_serve.h"
#include "cmd/cmd.h"
#include "serve/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PROMPT = 512, ANSWER = 192, TEXT_BYTES_MAX = 64 << 20 };
enum { PLAIN, WITH, AGAIN, ENGINES };

struct draft {
    const struct kd_bench *b;
    struct kd_engine *engine[ENGINES];
    struct kd_ids text;
};

struct made {
    struct kd_ids ids;
    double seconds, cpu; /* from the first token to the last: the clock's, the engine's threads' */
    struct kd_usage usage;
};

static double cpu_of(struct kd_engine *e)
{
    struct kd_engine_metrics m;
    kd_engine_metrics(e, &m);
    return m.cpu_s;
}

static int make(struct kd_engine *e, const int32_t *prompt, double temperature, uint64_t seed,
                struct made *out, struct kd_err *err)
{
    struct kd_request *r;
    struct kd_refused refused;
    struct kd_event ev[64];
    struct kd_request_spec spec = {
        .prompt = prompt,
        .prompt_count = PROMPT,
        .max_tokens = ANSWER,
        .sampling = {.temperature = temperature, .top_p = 0.95, .seed = seed},
        .ignore_eos = true};
    int64_t n;
    int rc = 0;
    double cpu = 0;
    if (kd_engine_submit(e, &spec, &r, &refused, err))
        return -1;
    while (!rc && (n = kd_request_wait(r, ev, 64, 0.2)) >= 0) {
        if (n && cpu <= 0)
            cpu = cpu_of(e);
        for (int64_t i = 0; i < n && !rc; i++)
            rc = ev[i].id >= 0 ? kd_ids_add(&out->ids, ev[i].id, err) : 0;
        if (!rc && kd_cmd_stop)
            rc = kd_fail(err, KD_ECANCEL, "stopped");
    }
    if (!rc && kd_request_error(r)->code != KD_OK) {
        *err = *kd_request_error(r);
        rc = -1;
    }
    kd_request_usage(r, &out->usage);
    kd_request_release(r);
    out->seconds = out->usage.total_s - out->usage.first_token_s;
    out->cpu = cpu_of(e) - cpu;
    return rc;
}

static int compare(const struct made *a, const struct made *b, struct kd_err *err)
{
    if (a->ids.count == b->ids.count &&
        !memcmp(a->ids.id, b->ids.id, (size_t)a->ids.count * sizeof *a->ids.id))
        return 0;
    return kd_fail(err, KD_EGATE, "answers with and without drafts differ");
}

/* All passages of the text at one temperature. */
static int row(struct draft *d, const char *name, double temperature, struct kd_err *err)
{
    double seconds[ENGINES] = {0}, cpu[ENGINES] = {0};
    int64_t made = 0, drafted = 0, accepted = 0, steps = 0;
    for (int64_t p = 0; p < d->b->passages; p++) {
        const int32_t *prompt = d->text.id + (d->text.count - PROMPT) / d->b->passages * p;
        struct made m[ENGINES] = {0};
        int rc = 0;
        for (int64_t i = p; i < p + ENGINES && !rc; i++) /* each comes first as often */
            rc = make(d->engine[i % ENGINES], prompt, temperature, (uint64_t)p, &m[i % ENGINES],
                      err);
        rc = rc || compare(&m[PLAIN], &m[WITH], err) || compare(&m[PLAIN], &m[AGAIN], err);
        for (int i = 0; i < ENGINES; i++) {
            seconds[i] += m[i].seconds;
            cpu[i] += m[i].cpu;
            kd_ids_release(&m[i].ids);
        }
        if (rc)
            return -1;
        made += m[WITH].usage.made_tokens - 1; /* the first one comes with the prompt */
        drafted += m[WITH].usage.draft_tokens;
        accepted += m[WITH].usage.draft_accepted;
        steps += m[WITH].usage.draft_steps;
    }
    double plain = 2 * (double)made / (seconds[PLAIN] + seconds[AGAIN]),
           with = (double)made / seconds[WITH], plain_cpu = (cpu[PLAIN] + cpu[AGAIN]) / 2;
    double acceptance = drafted ? (double)accepted / (double)drafted : 0;
    double depth = steps ? (double)drafted / (double)steps : 0;
    double share = (double)steps / (double)(made - accepted);
    kd_jw_open(d->b->w, NULL, '{');
    kd_jw_str(d->b->w, "text", name);
    kd_jw_num(d->b->w, "temperature", temperature);
    kd_jw_num(d->b->w, "tokens_s", plain);
    kd_jw_num(d->b->w, "tokens_s_drafts", with);
    kd_jw_num(d->b->w, "tokens_cpu_s", (double)made / plain_cpu);
    kd_jw_num(d->b->w, "tokens_cpu_s_drafts", (double)made / cpu[WITH]);
    kd_jw_num(d->b->w, "again", seconds[PLAIN] / seconds[AGAIN] - 1);
    kd_jw_num(d->b->w, "again_cpu", cpu[PLAIN] / cpu[AGAIN] - 1);
    kd_jw_num(d->b->w, "acceptance", acceptance);
    kd_jw_num(d->b->w, "depth", depth);
    kd_jw_num(d->b->w, "steps_with_drafts", share);
    kd_jw_close(d->b->w, '}');
    if (d->b->screen)
        printf("drafts on %-12s temperature %g: %6.1f tokens/s without, %6.1f with (%+.0f %%; "
               "%+.0f %% by CPU time; without once more: %+.0f %%, %+.0f %%); %2.0f %% accepted of "
               "%.2f at a time, in %2.0f %% of the steps\n",
               name, temperature, plain, with, 100 * (with / plain - 1),
               100 * (plain_cpu / cpu[WITH] - 1), 100 * (seconds[PLAIN] / seconds[AGAIN] - 1),
               100 * (cpu[PLAIN] / cpu[AGAIN] - 1), 100 * acceptance, depth, 100 * share);
    return 0;
}

static int one_text(struct draft *d, const char *path, struct kd_err *err)
{
    struct kd_buf text;
    const char *slash = strrchr(path, '/');
    kd_buf_init(&text, TEXT_BYTES_MAX);
    d->text.count = 0;
    int rc = kd_file_read(&text, path, TEXT_BYTES_MAX, err) ||
             kd_tok_encode(kd_engine_tok(d->engine[0]), text.data ? text.data : "", text.size_bytes,
                           &d->text, err);
    kd_buf_release(&text);
    if (rc)
        return -1;
    if (d->text.count < PROMPT)
        return kd_fail(err, KD_EINVAL, "%s: %" PRId64 " tokens, fewer than %d", path, d->text.count,
                       PROMPT);
    const char *name = slash ? slash + 1 : path;
    return row(d, name, 0, err) || row(d, name, 1, err) ? -1 : 0;
}

int kd_bench_drafts(const struct kd_bench *b, struct kd_err *err)
{
    struct draft d = {.b = b};
    int rc = 0;
    for (int i = 0; i < ENGINES && !rc; i++) {
        const struct kd_k3_open model = {.fast = true};
        struct kd_engine_options o = {.threads = kd_pool_threads(b->run->pool),
                                      .no_idle_prefill = true,
                                      .draft_max = i == WITH ? 0 : -1,
                                      .model = &model};
        rc = kd_engine_open(&d.engine[i], b->model, &o, err);
    }
    for (const char *at = b->texts; !rc && *at;) {
        size_t n = strcspn(at, ",");
        char path[4096];
        snprintf(path, sizeof path, "%.*s", (int)n, at);
        rc = one_text(&d, path, err);
        at += n + (at[n] == ',');
    }
    kd_ids_release(&d.text);
    for (int i = 0; i < ENGINES; i++)
        kd_engine_close(d.engine[i]);
    return rc ? -1 : 0;
}
