/* A worker that is broken in a way the environment names, KONDENSE_TEST_FAULT:
 *   wrong     codes of every unit are changed, framing and figures are right
 *   subtle    encodes with another damping: a good unit, but not the one asked for
 *   nan       fails in its arithmetic, at expert KONDENSE_TEST_FAULT_EXPERT
 *   crash     dies there
 *   drift     fails like a device there, and computes otherwise from then on
 *   slow      takes KONDENSE_TEST_FAULT_MS more for each expert
 * Stands in for src/farm/encode.c in the program kondense_faulty. */
#include "base/hash.h"
#include "farm/task.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool fault(const char *name)
{
    const char *is = getenv("KONDENSE_TEST_FAULT");
    return is && !strcmp(is, name);
}

static bool drifted;

static bool at_expert(int64_t e)
{
    const char *which = getenv("KONDENSE_TEST_FAULT_EXPERT");
    return !which || strtoll(which, NULL, 10) == e;
}

static void spoil(struct kd_buf *b)
{
    uint64_t hash;
    size_t from = b->size_bytes / 3;
    for (size_t i = from; i < from + 1500 && i < b->size_bytes; i++)
        b->data[i] = (char)(b->data[i] ^ 0x55);
    hash = kd_xxh64(b->data + 40, b->size_bytes - 40, 0);
    memcpy(b->data + 16, &hash, 8);
}

int kd_farm_encode(const struct kd_run *run, const struct kd_layer_inputs *in,
                   const struct kd_farm_task *t, struct kd_buf *out, struct kd_err *err)
{
    struct kd_farm_task mine = *t;
    bool canary = t->digest == 1 || t->trunk; /* faults are those of experts */
    kd_buf_init(out, 0);
    if (!canary && fault("slow")) {
        const char *ms = getenv("KONDENSE_TEST_FAULT_MS");
        usleep((useconds_t)(1000 * (ms ? strtol(ms, NULL, 10) : 1000)));
    }
    if (!canary && fault("drift") && at_expert(t->expert)) {
        drifted = true;
        return kd_fail(err, KD_EGPU, "a device that failed");
    }
    if (!canary && fault("crash") && at_expert(t->expert))
        _exit(139);
    if (!canary && fault("nan") && at_expert(t->expert))
        return kd_fail(err, KD_EINVAL, "a value that is not finite");
    if (!canary && fault("subtle"))
        for (int i = 0; i < 3; i++)
            mine.spec[i].recipe.damping *= 1.5f;
    int rc = kd_farm_quantize(run, in, &mine, out, err);
    if (!rc && !t->trunk && ((!canary && fault("wrong")) || (canary && drifted)))
        spoil(out);
    return rc;
}
