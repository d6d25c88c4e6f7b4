#include "cmd/convert_farm.h"

#include <stdio.h>
#include <string.h>

/* The address given must be the farm's: workers verify that name. */
static int same_address(const char *given, const struct kd_home *home, struct kd_err *err)
{
    size_t n = strlen(given);
    while (n && given[n - 1] == '/')
        n--;
    if (n == strlen(home->url) && !memcmp(given, home->url, n))
        return 0;
    return kd_fail(err, KD_EUSAGE, "--farm %s: the farm in '%s' was made for %s", given, home->dir,
                   home->url);
}

static int open_home(const struct kd_convert_farm *o, struct kd_home *home, struct kd_err *err)
{
    if (kd_home_open(home, o->dir, err))
        return -1;
    if (!same_address(o->url, home, err))
        return 0;
    kd_home_release(home);
    return -1;
}

int kd_convert_farm_check(const struct kd_convert_farm *o, int count, struct kd_err *err)
{
    struct kd_home home;
    if (!o->url)
        return o->only_workers || o->report
                   ? kd_fail(err, KD_EUSAGE, "--%s needs a farm (--farm URL)",
                             o->report ? "farm-report" : "only-workers")
                   : 0;
    if (count != 1)
        return kd_fail(err, KD_EUSAGE, "a farm makes one model at a time: give one --bpw");
    if ((o->report && kd_out_could(o->report, err)) || open_home(o, &home, err))
        return -1;
    kd_home_release(&home);
    return 0;
}

int kd_convert_farm_open(const struct kd_convert_farm *o, struct kd_job *jobs, struct kd_home *home,
                         struct kd_err *err)
{
    memset(home, 0, sizeof *home);
    if (!o->url)
        return 0;
    if (open_home(o, home, err))
        return -1;
    if (jobs[0].finished)
        return 0;
    struct kd_farm_opts f = {.ledger = home->ledger,
                             .rules = {.lease_s = o->lease_s, .spec_s = o->lease_s / 2},
                             .home = home,
                             .report = o->report,
                             .only_workers = o->only_workers,
                             .sample_every = o->sample};
    if (kd_job_farm(&jobs[0], &f, err))
        return -1;
    if (!o->silent)
        printf("  farm             %s, waiting for workers\n", home->url);
    fflush(stdout);
    return 0;
}
