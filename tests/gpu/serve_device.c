/* The engine of `kondense serve` over a device, k3-nano: a request's tokens and their logprobs are
 * the same bits alone, beside others, with its prompt's state kept in memory and read from disk;
 * nothing is drafted, and memory that is not there is refused in one sentence. Skipped (77) without
 * a device. */
#include "base/file.h"
#include "gpu/gpu.h"
#include "gpu/must.h"
#include "serve/engine.h"

#include <stdlib.h>
#include <string.h>

enum { MADE = 4, PROMPT = 69, KEPT = 64, OTHERS = 3 };

static struct kd_err err;
static int failures;

static void hold(bool good, const char *what)
{
    if (good)
        return;
    printf("WRONG: %s\n", what);
    failures++;
}

struct answer {
    int32_t ids[MADE];
    float logprob[MADE];
    int64_t count;
    struct kd_usage usage;
};

/* A prompt of its own for every number. */
static struct kd_request *ask(struct kd_engine *e, int64_t number, int64_t count)
{
    int32_t ids[PROMPT];
    struct kd_refused no;
    struct kd_request *r;
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(((i + 3) * 7919 + number * 104729 + i * i * 31) % 3500);
    const struct kd_request_spec spec = {.prompt = ids,
                                         .prompt_count = count,
                                         .max_tokens = MADE,
                                         .logprobs = 1,
                                         .ignore_eos = true};
    must(kd_engine_submit(e, &spec, &r, &no, &err));
    return r;
}

static struct answer answer_of(struct kd_request *r)
{
    struct answer a = {.count = 0};
    struct kd_event ev[8];
    int64_t n;
    while ((n = kd_request_wait(r, ev, 8, 30)) >= 0)
        for (int64_t i = 0; i < n; i++)
            if (ev[i].id >= 0 && a.count < MADE) {
                a.logprob[a.count] = ev[i].logprob;
                a.ids[a.count++] = ev[i].id;
            }
    kd_request_usage(r, &a.usage);
    kd_request_release(r);
    return a;
}

static bool same(const struct answer *a, const struct answer *b)
{
    bool all = a->count == MADE && b->count == MADE;
    for (int64_t i = 0; all && i < MADE; i++)
        all = a->ids[i] == b->ids[i] && a->logprob[i] == b->logprob[i];
    return all;
}

static struct kd_engine *engine(const char *dir, const char *disk, int64_t cache)
{
    const struct kd_k3_open model = {.device = 1, .fast = true};
    const struct kd_engine_options o = {.threads = 2,
                                        .cache_bytes = cache,
                                        .disk_dir = disk,
                                        .disk_min_tokens = 64,
                                        .no_idle_prefill = true,
                                        .model = &model};
    struct kd_engine *e;
    must(kd_engine_open(&e, dir, &o, &err));
    return e;
}

static void check_answers(const char *dir, const char *disk)
{
    struct kd_request *r[OTHERS + 1];
    struct kd_engine *e = engine(dir, disk, 0);
    struct kd_engine_metrics m;
    const struct answer alone = answer_of(ask(e, 1, PROMPT)), warm = answer_of(ask(e, 1, PROMPT));
    hold(same(&alone, &warm), "a prompt that was read before");
    hold(alone.usage.cached_tokens == 0 && warm.usage.cached_tokens == KEPT, "what was kept");
    for (int64_t i = 0; i <= OTHERS; i++)
        r[i] = ask(e, i == 2 ? 1 : 10 + i, i == 2 ? PROMPT : 5 + 9 * i);
    for (int64_t i = 0; i <= OTHERS; i++) {
        const struct answer a = answer_of(r[i]);
        hold(a.count == MADE, "all tokens of a request");
        hold(i != 2 || same(&alone, &a), "a request beside others");
    }
    kd_engine_metrics(e, &m);
    hold(m.draft_tokens == 0, "nothing is drafted");
    kd_engine_close(e);

    e = engine(dir, disk, 0);
    const struct answer read = answer_of(ask(e, 1, PROMPT));
    hold(same(&alone, &read) && read.usage.cached_tokens == KEPT, "a state from disk");
    kd_engine_close(e);

    e = engine(dir, NULL, -1);
    const struct answer bare = answer_of(ask(e, 1, PROMPT));
    hold(same(&alone, &bare), "without a cache");
    kd_engine_close(e);
}

static void check_refusal(const char *dir)
{
    const struct kd_k3_open model = {.device = 1, .fast = true};
    const struct kd_engine_options o = {.memory_bytes = (int64_t)1 << 50, .model = &model};
    struct kd_engine *e;
    hold(kd_engine_open(&e, dir, &o, &err) && !e && strstr(err.msg, "the device has"),
         "more memory than the device has");
}

int main(void)
{
    const char *data = getenv("KONDENSE_TEST_DATA");
    char dir[512], disk[] = "/tmp/kondense-serve-device-XXXXXX";
    if (!kd_gpu_count()) {
        printf("no device: skipped\n");
        return 77;
    }
    snprintf(dir, sizeof dir, "%s/k3-nano", data ? data : "tests/data");
    if (!mkdtemp(disk))
        return 1;
    check_answers(dir, disk);
    check_refusal(dir);
    must(kd_dir_remove(disk, &err));
    printf(failures ? "%d WRONG\n" : "all as it should be\n", failures);
    return failures != 0;
}
