#include "cmd/cmd.h"
#include "convert/synth.h"

#include <stdio.h>

static struct {
    const char *config;
    int64_t seed;
} o;

static const struct kd_opt opts[] = {
    {"config", 'c', KD_OPT_STR, &o.config, "FILE",
     "config.json whose shape the model gets (required)"},
    {"seed", 0, KD_OPT_INT, &o.seed, "N", "of the weights (0)", .min = 0, .max = INT64_MAX},
    {0}};

static int run(int argc, const char **argv, struct kd_err *err)
{
    (void)argc;
    if (!o.config)
        return kd_fail(err, KD_EUSAGE,
                       "--config FILE is needed: the config.json whose shape to use");
    if (kd_synth_write(o.config, argv[0], (uint64_t)o.seed, err))
        return -1;
    printf("%s: random weights in the shape of %s\n", argv[0], o.config);
    return 0;
}

const struct kd_cmd kd_cmd_synth = {
    "synth", "write a checkpoint of any shape with random weights",
    "DST",   "kondense synth /tmp/awkward --config tests/data/awkward/config.json --seed 7",
    opts,    1,
    1,       run};
