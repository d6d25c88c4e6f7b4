#include "plan/answer.h"

#include <math.h>
#include <string.h>

static const double gib = 1073741824.0;

/* Milliseconds of launches, sampling and what of the hidden gathers shows (serving 7.1, appendix
 * B): one for a group of devices, half for one. */
static const double fixed_group_ms = 1.0, fixed_one_ms = 0.5;

enum { PREFILL_CHUNK = 4096, CUT_MAX = 96 };

const char *kd_plan_verdict_text(enum kd_plan_verdict v)
{
    static const char *const text[] = {"fits", "runs from disk", "does not fit", "not supported"};
    return text[v];
}

/* Caches and states on one device. */
static double cache_bytes(const struct kd_plan_model *m, const struct kd_plan_use *use, int devices)
{
    double cache = use->context * (double)kd_plan_cache_token_bytes(m, use->cache_width);
    double state = (double)kd_plan_state_bytes(m);
    return use->sequences * (cache / (use->cut_cache ? devices : 1) + state / devices);
}

/* Puts `want` GiB into the tiers from the first on; *slot of each gets its part. What is left over
 * is returned. */
static double put(struct kd_plan_fit *f, int tiers, double want, size_t slot)
{
    for (int i = 0; i < tiers && want > 0; i++) {
        double part = want < f->place[i].free ? want : f->place[i].free;
        double *at = (double *)(void *)((char *)&f->place[i] + slot);
        *at += part;
        f->place[i].free -= part;
        want -= part;
    }
    return want;
}

#define SLOT(name) offsetof(struct kd_plan_place, name)

static void place_all(struct kd_plan_fit *f, const struct kd_machine *machine, double trunk,
                      double experts)
{
    double left = 0;
    for (int i = 0; i < machine->tiers; i++) {
        f->place[i] = (struct kd_plan_place){.reserve = machine->tier[i].reserve.v};
        f->place[i].free = machine->tier[i].gib.v - machine->tier[i].reserve.v;
    }
    left += put(f, machine->tiers, f->cache_gib, SLOT(cache));
    left += put(f, machine->tiers, trunk, SLOT(trunk));
    left += put(f, machine->tiers, experts, SLOT(experts));
    double on_disk = 0;
    for (int i = 0; i < machine->tiers; i++)
        if (machine->tier[i].kind == KD_MEM_NVME)
            on_disk += f->place[i].cache + f->place[i].trunk + f->place[i].experts;
    f->short_gib = f->cache_gib + trunk + experts - kd_machine_room_gib(machine);
    f->verdict = !machine->supported ? KD_PLAN_NOT_SUPPORTED
                 : left > 0          ? KD_PLAN_TOO_BIG
                 : on_disk > 0       ? KD_PLAN_FROM_DISK
                                     : KD_PLAN_FITS;
    /* Nothing that every token needs may lie on a drive alone with no room beside it. */
    if (f->verdict == KD_PLAN_FROM_DISK && f->cache_gib > kd_machine_room_gib(machine))
        f->verdict = KD_PLAN_TOO_BIG;
    f->tiered = experts > 0 && f->place[0].experts < experts * (1 - 1e-9);
    f->resident = experts > 0 ? f->place[0].experts / experts : 1;
}

static bool holds(const struct kd_plan_bytes *b, const struct kd_plan_model *m,
                  const struct kd_machine *machine, const struct kd_plan_use *use, int devices)
{
    double need = (double)kd_plan_cut_of(b, m, devices).bytes + cache_bytes(m, use, devices);
    return need / gib <= kd_machine_room_gib(machine);
}

/* More devices than attention heads cannot be used by cutting. */
static int devices_needed(const struct kd_plan_bytes *b, const struct kd_plan_model *m,
                          const struct kd_machine *machine, const struct kd_plan_use *use)
{
    int64_t most = m->cfg.heads < CUT_MAX ? m->cfg.heads : CUT_MAX;
    if (!(machine->link_gb_s.v > 0))
        most = 1;
    for (int n = 1; n <= most; n++)
        if (holds(b, m, machine, use, n))
            return n;
    return 0;
}

static void roof_of(struct kd_roof *r, const struct kd_plan_fit *f, const struct kd_plan_model *m,
                    const struct kd_machine *machine, const struct kd_plan_use *use, int curve,
                    double experts)
{
    const struct kd_k3_cfg *c = &m->cfg;
    const struct kd_plan_bytes *b = &f->bytes;
    memset(r, 0, sizeof *r);
    r->trunk_gb = (double)b->trunk / 1e9;
    r->token_expert_gb = b->token_expert / 1e9;
    r->all_expert_gb = (double)b->routed / 1e9;
    r->replicated_gb = (double)b->replicated / 1e9;
    r->state_gb = (double)kd_plan_state_bytes(m) / 1e9;
    r->cache_token_kb = (double)kd_plan_cache_token_bytes(m, use->cache_width) / 1e3;
    r->experts_over_topk = (double)c->experts / (double)c->topk;
    r->hidden = (double)c->hidden;
    r->row_sums = 2 * (double)c->layers;
    r->linear_gflop = 2 * (double)m->active_params / 1e9;
    r->context_mflop =
        2 * (double)c->heads * (double)(c->nope + c->rope + c->v_dim) * (double)m->mla_layers / 1e6;
    r->ranks = machine->count;
    r->gb_s = machine->tier[0].gb_s.v;
    r->tflops = machine->tflops.v;
    r->collectives = 2 * (double)c->layers + (double)m->moe_layers;
    r->collective_us = machine->collective_us.v;
    r->link_gb_s = machine->link_gb_s.v > 0 ? machine->link_gb_s.v : 1;
    r->payload_bytes = 4 * (double)(c->hidden + c->latent);
    r->fixed_ms = machine->count > 1 ? fixed_group_ms : fixed_one_ms;
    r->cut_cache = use->cut_cache ? machine->count : 1;
    r->sequences = use->sequences;
    r->context = use->at;
    r->imbalance = f->whole ? kd_roof_imbalance(machine->count) : 0;
    double sum = 0, before = 0, trunk = 0;
    for (int i = 0; i < machine->tiers; i++) {
        if (i && f->place[i].trunk > 0) {
            trunk += f->place[i].trunk;
            r->spill_gb_s = machine->tier[i].gb_s.v;
        }
        sum += experts > 0 ? f->place[i].experts / experts : 0;
        double hit = sum > 1 - 1e-9 ? 1 : kd_hit_rate(curve, sum);
        r->tier_store[i] = experts > 0 ? f->place[i].experts / experts : 0;
        r->tier_share[i] = hit - before;
        r->tier_gb_s[i] = machine->tier[i].gb_s.v;
        before = hit;
    }
    r->tiers = f->tiered ? machine->tiers : 0;
    r->trunk_spill_gb = trunk * gib / 1e9 * machine->count;
}

static void speeds(struct kd_plan_fit *f, const struct kd_plan_model *m,
                   const struct kd_machine *machine, const struct kd_plan_use *use, double experts)
{
    for (int h = 0; h < KD_HITS; h++) {
        struct kd_roof both, full;
        roof_of(&f->roof[h], f, m, machine, use, h, experts);
        f->hit[h] = f->tiered ? f->roof[h].tier_share[0] : 1;
        f->step[h] = kd_roof_decode(&f->roof[h]);
        both = f->roof[h];
        both.overlap = f->tiered;
        f->overlapped[h] = kd_roof_decode(&both).tokens_s;
        full = f->roof[h];
        full.context = use->context;
        if (h == 0 || h == KD_HITS - 1)
            f->full[h > 0] = kd_roof_decode(&full).tokens_s;
    }
    f->band[0] = f->step[0].tokens_s * kd_roof_band[0];
    f->band[1] = f->step[KD_HITS - 1].tokens_s * kd_roof_band[1];
    f->prefill_chunk = PREFILL_CHUNK;
    f->prefill = kd_roof_prefill(&f->roof[2], PREFILL_CHUNK, use->at);
}

static void costs(struct kd_plan_fit *f, const struct kd_machine *machine,
                  const struct kd_plan_use *use)
{
    f->watts = machine->watts.v * machine->count;
    f->price_usd = machine->price_usd.v * machine->count;
    double day = 86400, tokens = f->band[1] * day;
    double saved = tokens * use->api_usd_out / 1e6, power = f->watts / 1000 * 24 * use->usd_kwh;
    f->usd_per_mtok_power = tokens > 0 ? power / tokens * 1e6 : 0;
    f->break_even_days = saved > power ? f->price_usd / (saved - power) : -1;
}

int kd_plan_fit(struct kd_plan_fit *f, const struct kd_plan_model *m,
                const struct kd_plan_target *t, const struct kd_machine *machine,
                const struct kd_plan_use *use, struct kd_err *err)
{
    memset(f, 0, sizeof *f);
    if (kd_plan_count(&f->bytes, m, t, err))
        return -1;
    struct kd_plan_cut cut = kd_plan_cut_of(&f->bytes, m, machine->count);
    double experts = (double)cut.experts / gib;
    f->whole = cut.whole;
    f->device_gib = (double)cut.bytes / gib;
    f->cache_gib = cache_bytes(m, use, machine->count) / gib;
    place_all(f, machine, f->device_gib - experts, experts);
    f->devices_needed = devices_needed(&f->bytes, m, machine, use);
    if (f->verdict == KD_PLAN_TOO_BIG)
        return 0;
    speeds(f, m, machine, use, experts);
    for (int i = 0; i < machine->tiers; i++)
        if (machine->tier[i].kind == KD_MEM_NVME)
            f->load_s = (f->device_gib - f->place[i].experts - f->place[i].trunk) * gib /
                        (machine->tier[i].gb_s.v * 1e9);
    costs(f, machine, use);
    return 0;
}

int kd_plan_best_rate(double *bpw, const struct kd_plan_model *m, const struct kd_machine *machine,
                      const struct kd_plan_use *use, struct kd_err *err)
{
    /* Hundredths, by bisection: sizes grow with the rate. */
    int lo = 99, hi = 800;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        struct kd_plan_target t = kd_plan_exl3(mid / 100.0);
        struct kd_plan_bytes b;
        if (kd_plan_count(&b, m, &t, err))
            return -1;
        if (holds(&b, m, machine, use, machine->count))
            lo = mid;
        else
            hi = mid - 1;
    }
    *bpw = lo < 100 ? 0 : lo / 100.0;
    return 0;
}
