#include "farm/tally.h"

#include "base/clock.h"
#include "base/show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t jobs_of(const struct kd_layer_count *c)
{
    return c->ready + c->leased + c->done + c->poison;
}

void kd_farm_forecast_of(const struct kd_farm_status *s, int64_t layers_total,
                         struct kd_farm_forecast *f)
{
    double encoding = 0, wall = 0;
    int64_t known = 0, closed = 0;
    memset(f, 0, sizeof *f);
    for (int64_t i = 0; i < s->layer_count; i++) {
        const struct kd_layer_count *c = &s->layers[i];
        known += jobs_of(c);
        f->jobs_done += c->done;
        double end = c->closed > 0 ? c->closed : s->now;
        closed += c->closed > 0;
        if (end > c->opened)
            encoding += end - c->opened;
    }
    f->jobs_left = known - f->jobs_done;
    /* Layers to come are taken to be like those that were. The first layer is dense in K3; what was
     * seen is what counts. */
    if (s->layer_count && layers_total > s->layers[s->layer_count - 1].layer + 1)
        f->jobs_left +=
            known / s->layer_count * (layers_total - 1 - s->layers[s->layer_count - 1].layer);
    if (s->layer_count)
        wall = s->now - s->layers[0].opened;
    f->rate = encoding > 0 ? (double)f->jobs_done / encoding : 0;
    f->share = wall > 0 && encoding < wall ? encoding / wall : 1;
    if (f->rate > 0 && f->share > 0)
        f->left_s = (double)f->jobs_left / f->rate / f->share;
    (void)closed;
}

bool kd_farm_on(const struct kd_farm_status *s, const struct kd_farm_forecast *f, int64_t n,
                double *experts_s, double *rest_s)
{
    int64_t active = 0;
    for (int64_t i = 0; i < s->worker_count; i++)
        active += s->workers[i].done > 0;
    if (!(f->rate > 0) || !active)
        return false;
    double now = (double)(f->jobs_done + f->jobs_left) / f->rate;
    *experts_s = now * (double)active / (double)n;
    *rest_s = now / f->share - now;
    return true;
}

/* A character a layer: closed, tenths of the open one, to come. */
static void strip(struct kd_buf *out, const struct kd_farm_status *s, int64_t layers_total)
{
    int64_t at = 0;
    kd_buf_str(out, "layers    [");
    for (int64_t i = 0; i < layers_total && i < 128; i++) {
        while (at < s->layer_count && s->layers[at].layer < i)
            at++;
        const struct kd_layer_count *c = at < s->layer_count ? &s->layers[at] : NULL;
        bool begun = c && c->layer == i, before = c && c->layer > i;
        kd_buf_char(out, begun && c->poison                   ? '!'
                         : before || (begun && c->closed > 0) ? '#'
                         : begun && jobs_of(c) ? (char)('0' + 9 * c->done / jobs_of(c))
                                               : '.');
    }
    kd_buf_str(out, "]\n");
}

static const struct kd_layer_count *open_layer(const struct kd_farm_status *s)
{
    for (int64_t i = 0; i < s->layer_count; i++)
        if (!(s->layers[i].closed > 0))
            return &s->layers[i];
    return NULL;
}

static void bar(struct kd_buf *out, double share, int width)
{
    int full = (int)(share * width + 0.5);
    for (int i = 0; i < width; i++)
        kd_buf_char(out, i < full ? '#' : '.');
}

double kd_farm_idle(const struct kd_farm_status *s, const struct kd_worker_row *w)
{
    double there = (w->last_seen > w->joined ? w->last_seen : s->now) - w->joined;
    double lanes = w->card.lanes > 1 ? (double)w->card.lanes : 1;
    double idle = there > 0 ? 1 - w->busy_s / (there * lanes) : 0;
    return idle < 0 ? 0 : idle;
}

void kd_farm_text(struct kd_buf *out, const struct kd_farm_status *s, int64_t layers_total)
{
    struct kd_farm_forecast f;
    char text[64], down[32], up[32];
    const struct kd_layer_count *open = open_layer(s);
    int64_t closed = 0, all = 0, trunk = s->trunk_done + s->trunk_open;
    kd_farm_forecast_of(s, layers_total, &f);
    for (int64_t i = 0; i < s->layer_count; i++)
        closed += s->layers[i].closed > 0;
    for (int64_t i = 0; i < s->worker_count; i++)
        all += s->workers[i].done;
    kd_clock_human(text, sizeof text, s->now - s->created);
    kd_buf_printf(out, "%s, for %s, epoch %lld; %lld of %lld layers with experts closed\n",
                  s->state, text, (long long)s->epoch, (long long)closed,
                  (long long)s->layer_count);
    strip(out, s, layers_total);
    if (open && jobs_of(open)) {
        double share = (double)open->done / (double)jobs_of(open);
        kd_buf_printf(out, "layer %-3lld [", (long long)open->layer);
        bar(out, share, 40);
        kd_buf_printf(out, "] %lld done, %lld out, %lld waiting", (long long)open->done,
                      (long long)open->leased, (long long)open->ready);
        if (open->poison)
            kd_buf_printf(out, ", %lld POISON", (long long)open->poison);
        kd_buf_char(out, '\n');
    }
    if (trunk)
        kd_buf_printf(out, "%lld tensors of the trunk done, %lld under way\n",
                      (long long)s->trunk_done, (long long)s->trunk_open);
    if (f.rate > 0) {
        kd_clock_human(text, sizeof text, f.left_s);
        kd_buf_printf(out,
                      "%.2f experts/s while encoding, which is %.0f %% of the time; left: %s\n",
                      f.rate, 100 * f.share, text);
    }
    double experts_s, rest_s;
    for (int64_t n = 1; n <= 32 && kd_farm_on(s, &f, n, &experts_s, &rest_s); n *= 2) {
        kd_clock_human(text, sizeof text, experts_s + rest_s);
        kd_buf_printf(out, "%s%lld: %s%s",
                      n > 1 ? ", " : "the whole run on workers like these, on ", (long long)n, text,
                      n == 32 ? "\n" : "");
    }
    kd_buf_printf(out, "\n%-10s %-16s %-8s %-11s %6s %6s %6s %5s %5s %9s %9s %5s\n", "worker",
                  "host", "arch", "state", "done", "share", "s/job", "held", "fail", "down", "up",
                  "idle");
    for (int64_t i = 0; i < s->worker_count; i++) {
        const struct kd_worker_row *w = &s->workers[i];
        kd_show_bytes(down, sizeof down, w->down_bytes);
        kd_show_bytes(up, sizeof up, w->up_bytes);
        kd_buf_printf(
            out, "%-10s %-16.16s %-8.8s %-11s %6lld %5.1f%% %6.2f %5lld %5lld %9s %9s %4.0f%%\n",
            w->card.id, w->card.host, w->card.arch, w->state, (long long)w->done,
            all ? 100 * (double)w->done / (double)all : 0, w->rate_s, (long long)w->held,
            (long long)(w->failures + w->crashes), down, up, 100 * kd_farm_idle(s, w));
    }
}

void kd_farm_json(struct kd_jw *w, const struct kd_farm_status *s, int64_t layers_total)
{
    struct kd_farm_forecast f;
    kd_farm_forecast_of(s, layers_total, &f);
    kd_jw_open(w, NULL, '{');
    kd_jw_str(w, "state", s->state);
    kd_jw_int(w, "epoch", s->epoch);
    kd_jw_num(w, "seconds", s->now - s->created);
    kd_jw_int(w, "jobs_done", f.jobs_done);
    kd_jw_int(w, "jobs_left", f.jobs_left);
    kd_jw_int(w, "trunk_done", s->trunk_done);
    kd_jw_int(w, "trunk_open", s->trunk_open);
    kd_jw_num(w, "jobs_per_s", f.rate);
    kd_jw_num(w, "encoding_share", f.share);
    kd_jw_num(w, "left_s", f.left_s);
    double experts_s, rest_s;
    kd_jw_open(w, "on_workers", '[');
    for (int64_t n = 1; n <= 64 && kd_farm_on(s, &f, n, &experts_s, &rest_s); n *= 2) {
        kd_jw_open(w, NULL, '{');
        kd_jw_int(w, "workers", n);
        kd_jw_num(w, "experts_s", experts_s);
        kd_jw_num(w, "rest_s", rest_s);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "layers", '[');
    for (int64_t i = 0; i < s->layer_count; i++) {
        const struct kd_layer_count *c = &s->layers[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_int(w, "layer", c->layer);
        kd_jw_int(w, "ready", c->ready);
        kd_jw_int(w, "leased", c->leased);
        kd_jw_int(w, "done", c->done);
        kd_jw_int(w, "poison", c->poison);
        kd_jw_num(w, "opened", c->opened);
        kd_jw_num(w, "closed", c->closed);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "workers", '[');
    for (int64_t i = 0; i < s->worker_count; i++) {
        const struct kd_worker_row *r = &s->workers[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_str(w, "id", r->card.id);
        kd_jw_str(w, "host", r->card.host);
        kd_jw_str(w, "arch", r->card.arch);
        kd_jw_str(w, "device", r->card.device);
        kd_jw_int(w, "lanes", r->card.lanes);
        kd_jw_str(w, "state", r->state);
        kd_jw_int(w, "done", r->done);
        kd_jw_int(w, "again", r->again);
        kd_jw_int(w, "failures", r->failures);
        kd_jw_int(w, "crashes", r->crashes);
        kd_jw_int(w, "held", r->held);
        kd_jw_num(w, "seconds_per_job", r->rate_s);
        kd_jw_num(w, "idle_share", kd_farm_idle(s, r));
        kd_jw_int(w, "down_bytes", r->down_bytes);
        kd_jw_int(w, "up_bytes", r->up_bytes);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_open(w, "events", '[');
    for (int64_t i = 0; i < s->event_count; i++) {
        const struct kd_event_row *e = &s->events[i];
        kd_jw_open(w, NULL, '{');
        kd_jw_num(w, "at", e->at);
        kd_jw_int(w, "layer", e->layer);
        kd_jw_int(w, "expert", e->expert);
        kd_jw_int(w, "attempt", e->attempt);
        kd_jw_str(w, "worker", e->worker);
        kd_jw_str(w, "what", e->what);
        kd_jw_str(w, "detail", e->detail);
        kd_jw_close(w, '}');
    }
    kd_jw_close(w, ']');
    kd_jw_close(w, '}');
}
