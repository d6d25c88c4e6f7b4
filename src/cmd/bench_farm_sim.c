/* How long a farm would take: a simulation by the plan document's rates, by those of machines that
 * plan knows or that are measured here, and by what was measured on a GPU. */
#include "base/mem.h"
#include "base/opt.h"
#include "cmd/bench.h"
#include "farm/sim.h"
#include "plan/probe.h"
#include "plan/times.h"

#include <stdio.h>
#include <string.h>

enum { LAYERS = 92, EXPERTS = 896, TOKENS = 512000, MACHINES_MAX = 8 };

static const char *const modes[] = {"serial", "streamed", "expert"};

static void put(const struct kd_bench *b, const char *name, const char *rates,
                enum kd_sim_mode mode, const struct kd_sim_out *o)
{
    const struct {
        const char *key;
        double h;
    } parts[] = {{"calibration", o->calib_h},     {"encoding", o->encode_h},
                 {"shipping", o->ship_h},         {"trunk", o->trunk_h},
                 {"inputs", o->inputs_h},         {"forward", o->forward_h},
                 {"checkpoints", o->checkpoint_h}};
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "name", "simulation");
    kd_jw_str(b->w, "machines", name);
    kd_jw_str(b->w, "rates", rates);
    kd_jw_str(b->w, "mode", modes[mode]);
    kd_jw_num(b->w, "hours", o->hours);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_h", parts[i].key);
        kd_jw_num(b->w, key, parts[i].h);
    }
    kd_jw_num(b->w, "idle_share", o->idle_share);
    kd_jw_str(b->w, "limit", o->limit);
    kd_jw_close(b->w, '}');
    if (!b->screen)
        return;
    printf("%-28s %-9s %-8s %7.1f h:", name, rates, modes[mode], o->hours);
    for (size_t i = 0, n = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].h >= 0.05)
            printf("%s %s %.1f", n++ ? "," : "", parts[i].key, parts[i].h);
    printf("; workers idle %.0f %%; limited by %s\n", 100 * o->idle_share, o->limit);
}

/* The plan's own rates (farm specification, section 3): a GB300 of `big` Sparks and 8 Sparks. */
static struct kd_sim plan(double big, double together_s, double calib_s)
{
    struct kd_sim s = {.layers = LAYERS, .jobs = EXPERTS, .units = 9};
    for (int i = 0; i < 9; i++) {
        double speed = i ? 1 : big;
        s.encode_s[i] = together_s * (big + 8) / speed;
        s.calib_s[i] = calib_s * big / speed;
    }
    return s;
}

static void simulate_plan(const struct kd_bench *b)
{
    static const char name[] = "GB300 + 8 Sparks";
    static const char *const what[2][2] = {{"plan low", "all, low"}, {"plan high", "all, high"}};
    struct kd_sim_out o;
    for (int high = 0; high < 2; high++) {
        struct kd_sim s = high ? plan(2.5, 447, 626) : plan(3, 317, 205);
        struct kd_sim t = s;
        t.ship_s = 12;
        t.checkpoint_s = high ? 3 : 2;
        kd_farm_sim(&t, KD_SIM_SERIAL, &o);
        put(b, name, what[high][0], KD_SIM_SERIAL, &o);
        for (int m = KD_SIM_STREAMED; m <= KD_SIM_EXPERT; m++) {
            kd_farm_sim(&s, (enum kd_sim_mode)m, &o);
            put(b, name, what[high][0], (enum kd_sim_mode)m, &o);
        }
        /* Decision 9's terms: inputs to 8 workers on 10 GbE, the trunk on the coordinator, the
         * quantized forward (0.54 PFLOP a layer at 60 TFLOP/s). */
        s.ship_s = 27;
        s.trunk_alone = 1;
        s.trunk_s[0] = high ? 51 : 27;
        s.forward_s = 9;
        s.checkpoint_s = high ? 3 : 2;
        kd_farm_sim(&s, KD_SIM_EXPERT, &o);
        put(b, name, what[high][1], KD_SIM_EXPERT, &o);
    }
}

/* Devices by what one H200 was measured at (docs/performance.md, which has the commands): the
 * trellis search at 2.3125 bits, a Spark's also by the way that its blocks have the shared memory
 * for; what a whole quantizing step keeps of its search's rate; sums in the CPU's order, for the
 * calibration; prefill through layers of K3's shape, for the quantized forward. Other devices' sums
 * and forward are scaled by their multiprocessors. */
static const double step_share = 0.866, sums_tflops = 35, layer_tokens_s = 645 * 12.0;
/* Farm 2.5: SHA-256 with the machine's instructions, one core. */
static const double hash_gb_s = 2.04;
enum { SPARK, GB300, H200 };
static const struct device {
    const char *name;
    int multiprocessors;
    struct {
        double v; /* tiles/s */
        const char *how;
    } search[2]; /* at best, and as the device searches */
} devices[] = {{"Spark",
                48,
                {{151438, "measured on 48 of an H200's 132 multiprocessors"},
                 {85948, "measured on 48 of them with as little shared memory as a Spark's"}}},
               {"GB300",
                160,
                {{393907.0 * 160 / 132, "an H200's, scaled by multiprocessors"},
                 {393907.0 * 160 / 132, "an H200's, scaled by multiprocessors"}}},
               {"H200", 132, {{393907, "measured"}, {393907, "measured"}}}};

static void say_device(const struct kd_bench *b, const struct device *d, int its_way)
{
    double size = d->multiprocessors / 132.0, tiles = d->search[its_way].v * step_share;
    const char *how = d->multiprocessors == 132 ? "measured" : "an H200's, scaled";
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "name", "rates");
    kd_jw_str(b->w, "machine", d->name);
    kd_jw_num(b->w, "tiles_per_s", tiles);
    kd_jw_str(b->w, "tiles_source", d->search[its_way].how);
    kd_jw_num(b->w, "sums_tflops", sums_tflops * size);
    kd_jw_num(b->w, "layer_tokens_per_s", layer_tokens_s * size);
    kd_jw_str(b->w, "others_source", how);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%s: %.4g tiles/s (search %.6g: %s; %.3g of it); sums %.3g TFLOP/s, forward %.4g "
               "tokens/s a layer (%s)\n",
               d->name, tiles, d->search[its_way].v, d->search[its_way].how, step_share,
               sums_tflops * size, layer_tokens_s * size, how);
}

/* `count` devices of a kind, the first of all being the coordinator. */
static void add_devices(struct kd_sim *s, const struct device *d, int count, int its_way,
                        const struct kd_plan_effort *e)
{
    double layers = (double)e->layers, size = d->multiprocessors / 132.0;
    double tiles = d->search[its_way].v * step_share, flop = sums_tflops * 1e12 * size;
    if (!s->units) {
        s->inputs_s = e->trunk_flop / flop / layers;
        s->forward_s = TOKENS / (layer_tokens_s * size) + e->sealed_gb / hash_gb_s;
    }
    for (; count--; s->units++) {
        s->encode_s[s->units] = e->tiles / tiles / layers;
        s->calib_s[s->units] = e->calibrate_flop / flop / layers;
        s->trunk_s[s->units] = e->trunk_tiles / tiles / layers;
    }
}

static void simulate_devices(const struct kd_bench *b, const struct kd_plan_effort *e)
{
    static const struct {
        const char *name;
        struct {
            int device, count;
        } of[2];
        int its_way; /* 1: this, too */
    } crews[] = {{"GB300 + 8 Sparks", {{GB300, 1}, {SPARK, 8}}, 1},
                 {"8 Sparks", {{SPARK, 8}, {0, 0}}, 1},
                 {"one Spark", {{SPARK, 1}, {0, 0}}, 1},
                 {"one H200", {{H200, 1}, {0, 0}}, 0}};
    struct kd_sim_out o;
    if (b->screen)
        printf("\nThe same by what an H200 was measured at:\n");
    say_device(b, &devices[H200], 0);
    say_device(b, &devices[GB300], 0);
    for (int m = 0; m < 2; m++)
        say_device(b, &devices[SPARK], m);
    for (size_t i = 0; i < sizeof crews / sizeof *crews; i++)
        for (int m = 0; m <= crews[i].its_way; m++) {
            struct kd_sim s = {.layers = LAYERS, .jobs = EXPERTS, .checkpoint_s = 2};
            for (int k = 0; k < 2; k++)
                add_devices(&s, &devices[crews[i].of[k].device], crews[i].of[k].count, m, e);
            s.ship_s = kd_plan_ship_s(e, s.units - 1);
            kd_farm_sim(&s, KD_SIM_EXPERT, &o);
            put(b, crews[i].name, m ? "its way" : "measured", KD_SIM_EXPERT, &o);
        }
}

/* Machines of a farm; the first device of the first is the coordinator. */
struct crew {
    const char *name;
    struct kd_machine m[MACHINES_MAX];
    int machines;
};

/* One layer of the crew, at plan's low or high reading of its rates (plan/times.h). Trunk: its
 * tensors at the encoder's rate; the rest of plan's figure is its inputs, on the coordinator. */
static int sim_of(struct kd_sim *s, const struct crew *c, const struct kd_plan_effort *e, int scale,
                  struct kd_err *err)
{
    double layer = 3600.0 / (double)e->layers, tensors = e->trunk_tiles / e->tiles;
    *s = (struct kd_sim){.layers = LAYERS, .jobs = EXPERTS, .checkpoint_s = scale ? 3 : 2};
    for (int i = 0; i < c->machines; i++) {
        struct kd_plan_hours one = kd_plan_hours_one(e, &c->m[i], scale);
        if (!(s->inputs_s > 0) && one.total > 0) {
            s->inputs_s = (one.trunk - one.encode * tensors) * layer;
            s->forward_s = one.serial * layer;
        }
        if (s->units + c->m[i].count > KD_SIM_UNITS_MAX)
            return kd_fail(err, KD_EUSAGE, "--units: at most %d devices", KD_SIM_UNITS_MAX);
        for (int k = 0; k < c->m[i].count; k++, s->units++) {
            s->encode_s[s->units] = one.encode * layer;
            s->calib_s[s->units] = one.calibrate * layer;
            s->trunk_s[s->units] = one.encode * tensors * layer;
        }
    }
    s->ship_s = kd_plan_ship_s(e, s->units - 1);
    return s->inputs_s > 0 ? 0 : kd_fail(err, KD_EUSAGE, "--units: nobody would encode");
}

static int simulate_crew(const struct kd_bench *b, const struct crew *c,
                         const struct kd_plan_effort *e, struct kd_err *err)
{
    static const char *const what[] = {"low", "high"};
    struct kd_sim s;
    struct kd_sim_out o;
    for (int scale = 0; scale < 2; scale++) {
        if (sim_of(&s, c, e, scale, err))
            return -1;
        kd_farm_sim(&s, KD_SIM_EXPERT, &o);
        put(b, c->name, what[scale], KD_SIM_EXPERT, &o);
    }
    return 0;
}

/* "351000/47": tiles/s and TFLOP/s in fp32; "0" encodes nothing. */
static bool by_rates(struct kd_machine *m, const char *text)
{
    char part[64];
    struct kd_err err;
    size_t n = strcspn(text, "/");
    snprintf(part, sizeof part, "%.*s", (int)n, text);
    *m = (struct kd_machine){.count = 1, .supported = true};
    if (n >= sizeof part || kd_parse_num(part, &m->tiles_s.v, &err) || !(m->tiles_s.v >= 0))
        return false;
    if (text[n] ? kd_parse_num(text + n + 1, &m->fp32_tflops.v, &err) : m->tiles_s.v > 0)
        return false;
    snprintf(m->title, sizeof m->title, "%.90s", text);
    snprintf(m->tiles_s.source, sizeof m->tiles_s.source, "--units");
    snprintf(m->fp32_tflops.source, sizeof m->fp32_tflops.source, "--units");
    return m->tiles_s.v <= 1e12 && m->fp32_tflops.v >= 0 && m->fp32_tflops.v <= 1e6;
}

static int read_units(struct crew *c, const char *list, struct kd_err *err)
{
    char part[512];
    double tiles_s = 0;
    c->name = list;
    c->machines = 0;
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        if (n >= sizeof part || c->machines == MACHINES_MAX)
            return kd_fail(err, KD_EUSAGE, "--units: at most %d machines (spark:8 is one)",
                           MACHINES_MAX);
        snprintf(part, sizeof part, "%.*s", (int)n, at);
        struct kd_machine *m = &c->m[c->machines++];
        if (!by_rates(m, part) && kd_machine_find(m, part, err))
            return kd_wrap(err, "--units");
        tiles_s += m->tiles_s.v;
        at += n + (at[n] == ',');
    }
    if (!c->machines)
        return kd_fail(err, KD_EUSAGE, "--units: no machine");
    return tiles_s > 0 ? 0 : kd_fail(err, KD_EUSAGE, "--units: nobody would encode");
}

int kd_bench_farm_units(const struct kd_bench *b, struct kd_err *err)
{
    struct crew *c;
    if (!b->units)
        return 0;
    if (kd_mem_zero(&c, 1, sizeof *c, "machines", err))
        return -1;
    int rc = read_units(c, b->units, err);
    kd_mem_free(c);
    return rc;
}

static void say_rates(const struct kd_bench *b, const struct kd_machine *m)
{
    kd_jw_open(b->w, NULL, '{');
    kd_jw_str(b->w, "name", "rates");
    kd_jw_str(b->w, "machine", m->title);
    kd_jw_num(b->w, "tiles_per_s", m->tiles_s.v);
    kd_jw_str(b->w, "tiles_source", m->tiles_s.source);
    kd_jw_num(b->w, "fp32_tflops", m->fp32_tflops.v);
    kd_jw_str(b->w, "fp32_source", m->fp32_tflops.source);
    kd_jw_close(b->w, '}');
    if (b->screen)
        printf("%s: %.4g tiles/s (%s); %.3g TFLOP/s (%s)\n", m->title, m->tiles_s.v,
               m->tiles_s.source, m->fp32_tflops.v, m->fp32_tflops.source);
}

/* K3's work as plan counts it, at 2.3 bits. */
static int effort(struct kd_plan_effort *e, struct kd_err *err)
{
    struct kd_plan_model *m;
    struct kd_plan_bytes bytes;
    struct kd_plan_target t = kd_plan_exl3(2.3);
    if (kd_mem_zero(&m, 1, sizeof *m, "K3", err))
        return -1;
    int rc = kd_plan_model_k3(m, err) || kd_plan_count(&bytes, m, &t, err);
    if (!rc)
        kd_plan_effort(e, m, &bytes, TOKENS);
    kd_mem_free(m);
    return rc ? -1 : 0;
}

int kd_bench_farm_sim(const struct kd_bench *b, struct kd_err *err)
{
    struct crew *c;
    struct kd_probe *p = NULL;
    struct kd_plan_effort e;
    struct kd_machine *here, *spark, *big;
    simulate_plan(b);
    if (kd_mem_zero(&c, 6, sizeof *c, "machines", err))
        return -1;
    here = &c[3].m[0];
    big = &c[0].m[0];
    spark = &c[1].m[0];
    int rc = kd_mem_zero(&p, 1, sizeof *p, "probe", err) || effort(&e, err) ||
             kd_probe_make(p, b->run, NULL, err) || kd_machine_find(big, "gb300", err) ||
             kd_machine_find(spark, "spark:8", err);
    if (!rc) {
        kd_probe_machine(here, p);
        c[0].m[1] = c[2].m[0] = *spark;
        c[2].m[0].count = here->count = 1;
        c[4].m[0] = *here;
        c[4].m[0].count = 8;
        const char *const names[] = {"GB300 + 8 Sparks", "8 Sparks", "one Spark", "this machine",
                                     "8 of this machine"};
        for (int i = 0; i < 5; i++) {
            c[i].name = names[i];
            c[i].machines = i ? 1 : 2;
        }
        if (b->screen)
            printf(
                "\nK3 at 2.3 bits, %d calibration tokens, by experts; from plan's rates (low) to "
                "a quarter of the encoder's and half of the products' (high):\n",
                TOKENS);
        say_rates(b, big);
        say_rates(b, spark);
        say_rates(b, here);
    }
    if (!rc && b->units)
        rc = read_units(&c[5], b->units, err);
    for (int i = 0; !rc && i < (b->units ? 6 : 5); i++)
        rc = simulate_crew(b, &c[i], &e, err);
    if (!rc)
        simulate_devices(b, &e);
    kd_mem_free(p);
    kd_mem_free(c);
    return rc ? -1 : 0;
}
