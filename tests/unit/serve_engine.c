/* The engine's promise: what a request gets depends on the request alone. */
#include "unit/serve_util.h"

#include <dirent.h>
#include <stdatomic.h>
#include <sys/stat.h>

static const struct kd_engine_options plain = {
    .threads = 1, .max_running = 4, .cache_bytes = -1, .draft_max = -1};
static const struct kd_engine_options full = {
    .threads = 3, .max_running = 16, .cache_bytes = 64 << 20, .chunk = 128};

enum { CROWD = 12 };

/* Requests as unlike as can be: lengths around multiples of 64, greedy and drawn, penalties. */
static void crowd_spec(struct kd_request_spec *s, int32_t *ids, int64_t i)
{
    static const int64_t lengths[CROWD] = {1, 63, 64, 65, 127, 128, 129, 200, 20, 300, 64, 191};
    memset(s, 0, sizeof *s);
    make_prompt(ids, lengths[i], i % 10);
    s->prompt = ids;
    s->prompt_count = lengths[i];
    s->max_tokens = 12 + i;
    s->ignore_eos = true;
    s->logprobs = 1;
    s->sampling.top_p = 1;
    if (i % 3 == 1) {
        s->sampling.temperature = 0.9;
        s->sampling.top_p = 0.95;
        s->sampling.seed = (uint64_t)(1000 + i);
    }
    if (i % 3 == 2) {
        s->repetition = 1.2;
        s->frequency = 0.3;
        s->presence = 0.2;
    }
    if (i == 7)
        s->experts_used = 2;
    if (i == 8)
        s->expert_mass = 0.7;
}

static void alone_and_in_a_crowd(void **state)
{
    struct kd_engine *one = engine_on_nano(&plain), *many = engine_on_nano(&full);
    struct kd_request_spec spec[CROWD];
    struct kd_request *r[CROWD];
    struct answer *alone, crowd;
    int32_t ids[CROWD][300];
    (void)state;
    must(kd_mem_zero(&alone, CROWD, sizeof *alone, "answers", &err));
    for (int i = 0; i < CROWD; i++) {
        crowd_spec(&spec[i], ids[i], i);
        ask(one, &spec[i], &alone[i]);
        assert_int_equal(alone[i].count[0], spec[i].max_tokens);
        assert_int_equal(alone[i].last[0].finish, KD_FINISH_LENGTH);
    }
    for (int round = 0; round < 2; round++) { /* the second finds a warm cache */
        for (int i = 0; i < CROWD; i++)
            r[i] = submit(many, &spec[i]);
        for (int i = 0; i < CROWD; i++) {
            collect(r[i], &crowd);
            same_choice(&alone[i], 0, &crowd, 0, "crowd");
            if (round && spec[i].prompt_count > 64)
                assert_int_equal(crowd.usage.cached_tokens, (spec[i].prompt_count - 1) / 64 * 64);
            kd_request_release(r[i]);
        }
    }
    assert_string_equal(kd_engine_model_hash(one), kd_engine_model_hash(many));
    kd_mem_free(alone);
    kd_engine_close(one);
    kd_engine_close(many);
}

/* A conversation: each turn's prompt holds the last one's answer. */
static void turns(struct kd_engine *e, struct answer *a, int64_t *cached, const char *owner)
{
    int32_t ids[400];
    int64_t n = 100;
    make_prompt(ids, n, 77);
    for (int t = 0; t < 3; t++) {
        struct kd_request_spec s = {
            .prompt = ids, .prompt_count = n, .max_tokens = 30, .logprobs = 1, .ignore_eos = true};
        snprintf(s.owner, sizeof s.owner, "%s", owner);
        ask(e, &s, &a[t]);
        cached[t] = a[t].usage.cached_tokens;
        memcpy(ids + n, a[t].ids[0], (size_t)a[t].count[0] * sizeof *ids);
        n += a[t].count[0];
        make_prompt(ids + n, 40, 5 + t);
        n += 40;
    }
}

static void warm_is_cold(void **state)
{
    struct kd_engine *one = engine_on_nano(&plain);
    struct kd_engine_options o = full;
    struct answer *cold, *warm;
    int64_t cached[3];
    (void)state;
    must(kd_mem_zero(&cold, 6, sizeof *cold, "answers", &err));
    warm = cold + 3;
    turns(one, cold, cached, "");
    for (int t = 0; t < 3; t++)
        assert_int_equal(cached[t], 0);
    kd_engine_close(one);
    o.no_idle_prefill = true;
    struct kd_engine *e = engine_on_nano(&o);
    for (int round = 0; round < 3; round++) {
        turns(e, warm, cached, round == 2 ? "somebody-else" : "");
        for (int t = 0; t < 3; t++)
            same_choice(&cold[t], 0, &warm[t], 0, "warm");
        /* turn 1 was cut at 64, turn 2 (170 tokens) at 128, turn 3 (240) at 192 */
        assert_int_equal(cached[0], round == 1 ? 64 : 0);
        assert_int_equal(cached[1], round == 1 ? 128 : 64);
        assert_int_equal(cached[2], round == 1 ? 192 : 128);
    }
    struct kd_engine_metrics m;
    kd_engine_metrics(e, &m);
    assert_int_equal(m.cache_hits, 2 + 3 + 2);
    assert_int_equal(m.cached_tokens, 2 * (64 + 128) + 64 + 128 + 192);
    assert_int_equal(m.cache_entries, 6);
    kd_engine_close(e);
    kd_mem_free(cold);
}

/* In idle time an answer is prefilled again, so the next turn starts behind it, with a cold one's
 * bits. */
static void idle_prefill(void **state)
{
    struct kd_engine *one = engine_on_nano(&plain), *e = engine_on_nano(&full);
    int32_t ids[400];
    struct answer *a;
    struct kd_engine_metrics m;
    (void)state;
    must(kd_mem_zero(&a, 3, sizeof *a, "answers", &err));
    make_prompt(ids, 100, 3);
    struct kd_request_spec s = {
        .prompt = ids, .prompt_count = 100, .max_tokens = 60, .ignore_eos = true, .logprobs = 1};
    ask(e, &s, &a[0]);
    memcpy(ids + 100, a[0].ids[0], 60 * sizeof *ids);
    make_prompt(ids + 160, 20, 4);
    s.prompt_count = 180;
    double until = kd_clock_s() + 20;
    do { /* the state is there a little before its step is counted */
        usleep(1000);
        kd_engine_metrics(e, &m);
    } while ((m.cache_entries < 2 || !m.idle_prefill_tokens) && kd_clock_s() < until);
    assert_int_equal(m.idle_prefill_tokens, 64);
    ask(one, &s, &a[1]);
    ask(e, &s, &a[2]);
    same_choice(&a[1], 0, &a[2], 0, "after idle prefill");
    assert_int_equal(a[2].usage.cached_tokens, 128);
    kd_mem_free(a);
    kd_engine_close(one);
    kd_engine_close(e);
}

static void branches_are_found(void **state)
{
    struct kd_engine *e = engine_on_nano(&full);
    int32_t ids[300];
    struct answer a;
    (void)state;
    struct kd_request_spec s = {.prompt = ids, .prompt_count = 300, .max_tokens = 1};
    int64_t want[] = {0, 0, 192, 192}; /* the second branches off at 200, the third starts there */
    for (int i = 0; i < 4; i++) {
        make_prompt(ids, 200, 50);
        make_prompt(ids + 200, 100, 60 + i);
        ask(e, &s, &a);
        assert_int_equal(a.usage.cached_tokens, want[i]);
    }
    kd_engine_close(e);
}

/* Holds the worker at its first token until it is let go. */
static int gate(void *ctx, int32_t id, struct kd_buf *visible, struct kd_err *e)
{
    atomic_int *open = ctx;
    (void)id;
    (void)visible;
    (void)e;
    while (!atomic_load(open))
        usleep(100);
    return 0;
}

/* Many with one beginning, at the same time: it is prefilled once. */
static void common_beginning(void **state)
{
    struct kd_engine *one = engine_on_nano(&plain), *e = engine_on_nano(&full);
    int32_t ids[6][340];
    struct kd_request *r[6];
    struct answer *a;
    struct kd_engine_metrics m;
    atomic_int open = 0;
    struct kd_hooks h = {&open, NULL, gate};
    (void)state;
    must(kd_mem_zero(&a, 2, sizeof *a, "answers", &err));
    struct kd_request_spec s = {.max_tokens = 2, .ignore_eos = true, .logprobs = 1};
    int32_t first[3] = {1, 2, 3};
    s.prompt = first;
    s.prompt_count = 3;
    s.hooks = &h;
    struct kd_request *holder = submit(e, &s);
    s.hooks = NULL;
    s.max_tokens = 10;
    for (int i = 0; i < 6; i++) {
        make_prompt(ids[i], 300, 90);
        make_prompt(ids[i] + 300, 40, 91 + i);
        s.prompt = ids[i];
        s.prompt_count = 340;
        r[i] = submit(e, &s);
    }
    atomic_store(&open, 1);
    for (int i = 0; i < 6; i++) {
        collect(r[i], &a[0]);
        s.prompt = ids[i];
        ask(one, &s, &a[1]);
        same_choice(&a[0], 0, &a[1], 0, "common beginning");
        kd_request_release(r[i]);
    }
    kd_engine_metrics(e, &m);
    assert_int_equal(m.prefill_tokens, 3 + 340 + 5 * 84);
    assert_int_equal(m.cached_tokens, 5 * 256);
    kd_request_release(holder);
    kd_mem_free(a);
    kd_engine_close(one);
    kd_engine_close(e);
}

static int64_t files_in(const char *dir, int damage)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int64_t n = 0;
    while (d && (de = readdir(d))) {
        char path[1024];
        if (!strstr(de->d_name, ".kdprefix"))
            continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", dir, de->d_name);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        if (!damage)
            continue;
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        int64_t at = damage < 0 ? st.st_size + damage : damage;
        fseek(f, at, SEEK_SET);
        int c = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(c ^ 1, f);
        fclose(f);
    }
    if (d)
        closedir(d);
    return n;
}

static void disk(void **state)
{
    char dir[] = "/tmp/kd-serve-XXXXXX";
    struct kd_engine_options o = full;
    struct answer *cold, *warm;
    struct kd_engine_metrics m;
    int64_t cached[3];
    (void)state;
    assert_non_null(mkdtemp(dir));
    must(kd_mem_zero(&cold, 6, sizeof *cold, "answers", &err));
    warm = cold + 3;
    o.disk_dir = dir;
    o.disk_min_tokens = 64;
    o.no_idle_prefill = true;
    struct kd_engine *e = engine_on_nano(&o), *second;
    turns(e, cold, cached, "me");
    char nano[512];
    snprintf(nano, sizeof nano, "%s/k3-nano",
             getenv("KONDENSE_TEST_DATA") ? getenv("KONDENSE_TEST_DATA") : "tests/data");
    assert_int_equal(kd_engine_open(&second, nano, &o, &err), -1); /* the folder is locked */
    kd_engine_close(e);
    assert_int_equal(files_in(dir, 0), 3);

    /* after a restart; then for another owner; then with another model (other eps) or arithmetic;
     * damaged */
    e = engine_on_nano(&o);
    turns(e, warm, cached, "me");
    for (int t = 0; t < 3; t++)
        same_choice(&cold[t], 0, &warm[t], 0, "from disk");
    assert_int_equal(cached[0], 64);
    assert_int_equal(cached[2], 192);
    kd_engine_metrics(e, &m);
    assert_int_equal(m.disk_hits, 3);
    assert_int_equal(m.disk_refused, 0);
    turns(e, warm, cached, "other");
    assert_int_equal(cached[0], 0);
    kd_engine_close(e);
    assert_int_equal(files_in(dir, 0), 6);

    static const struct kd_k3_open others[] = {{.eps_latent = 1e-5f}, {.fast = true}};
    for (int i = 0; i < 2; i++) {
        o.model = &others[i];
        e = engine_on_nano(&o);
        kd_engine_metrics(e, &m);
        assert_int_equal(m.disk_refused, 6 + 3 * i);
        turns(e, warm, cached, "me");
        assert_int_equal(cached[0], 0);
        kd_engine_close(e);
    }
    o.model = NULL;

    static const int spots[] = {0, 100, 230, 600, -1};
    for (size_t i = 0; i < sizeof spots / sizeof *spots; i += KD_TEST_SLOW ? 2 : 1) {
        must(kd_dir_remove(dir, &err));
        e = engine_on_nano(&o);
        turns(e, warm, cached, "me");
        kd_engine_close(e);
        assert_int_equal(files_in(dir, spots[i] ? spots[i] : 1), 3);
        e = engine_on_nano(&o);
        turns(e, warm, cached, "me");
        for (int t = 0; t < 3; t++)
            same_choice(&cold[t], 0, &warm[t], 0, "damaged files");
        kd_engine_metrics(e, &m);
        assert_int_equal(m.disk_hits, 0);
        assert_int_equal(m.disk_refused, 3);
        kd_engine_close(e);
    }
    must(kd_dir_remove(dir, &err));
    kd_mem_free(cold);
}

static void budgets(void **state)
{
    char dir[] = "/tmp/kd-serve-XXXXXX";
    struct kd_engine_options o = full;
    struct answer a;
    struct kd_engine_metrics m;
    int32_t ids[100];
    (void)state;
    assert_non_null(mkdtemp(dir));
    struct kd_engine *e = engine_on_nano(&full);
    const struct kd_k3_cfg *c = kd_engine_config(e);
    int64_t one = kd_k3_state_bytes(c, 64) + 4096;
    kd_engine_close(e);
    o.cache_bytes = 3 * one;
    o.disk_dir = dir;
    o.disk_bytes = 2 * one;
    o.disk_min_tokens = 64;
    o.no_idle_prefill = true;
    e = engine_on_nano(&o);
    struct kd_request_spec s = {.prompt = ids, .prompt_count = 100, .max_tokens = 1};
    for (int i = 0; i < 6; i++) {
        make_prompt(ids, 100, 200 + i);
        ask(e, &s, &a);
        kd_engine_metrics(e, &m);
        assert_true(m.cache_bytes <= o.cache_bytes && m.disk_bytes <= o.disk_bytes);
    }
    assert_int_equal(m.cache_entries, 3);
    assert_int_equal(m.cache_evicted, 3);
    make_prompt(ids, 100, 203); /* of the last three in memory, the oldest */
    ask(e, &s, &a);
    assert_int_equal(a.usage.cached_tokens, 64);
    make_prompt(ids, 100, 206);
    ask(e, &s, &a);
    make_prompt(ids, 100, 203); /* used since, so 204 went */
    ask(e, &s, &a);
    assert_int_equal(a.usage.cached_tokens, 64);
    make_prompt(ids, 100, 200);
    ask(e, &s, &a);
    assert_int_equal(a.usage.cached_tokens, 0);
    kd_engine_close(e);
    assert_int_equal(files_in(dir, 0), 2);
    must(kd_dir_remove(dir, &err));
}

static void choices(void **state)
{
    struct kd_engine *one = engine_on_nano(&plain), *e = engine_on_nano(&full);
    int32_t ids[100];
    struct answer *a;
    struct kd_engine_metrics m;
    (void)state;
    must(kd_mem_zero(&a, 4, sizeof *a, "answers", &err));
    make_prompt(ids, 100, 8);
    struct kd_request_spec s = {
        .prompt = ids,
        .prompt_count = 100,
        .max_tokens = 20,
        .ignore_eos = true,
        .logprobs = 1,
        .choices = 3,
        .sampling = {.temperature = 1.3, .top_p = 1, .seed = 42},
    };
    ask(e, &s, &a[3]);
    kd_engine_metrics(e, &m);
    assert_int_equal(m.prefill_tokens, 100); /* one prefill for all */
    s.choices = 1;
    for (uint64_t i = 0; i < 3; i++) { /* each as if it had been asked for alone */
        s.sampling.choice = i;
        ask(one, &s, &a[i]);
        same_choice(&a[i], 0, &a[3], (int64_t)i, "choice");
    }
    assert_true(memcmp(a[0].ids[0], a[1].ids[0], 20 * sizeof(int32_t)) != 0);
    assert_int_equal(a[3].usage.made_tokens, 60);
    s.choices = 17;
    struct kd_request *r;
    struct kd_refused no;
    assert_int_equal(kd_engine_submit(e, &s, &r, &no, &err), -1);
    assert_int_equal(no.why, KD_REFUSE_BAD);
    kd_mem_free(a);
    kd_engine_close(one);
    kd_engine_close(e);
}

/* The very same prompt again is not read at all, whatever its length, and its answers have the same
 * bits; one token more, or another owner, and it is. */
static void same_prompt_again(void **state)
{
    enum { COUNT = 600 + 23 };
    struct kd_engine_options o = full;
    struct answer *a;
    int32_t ids[COUNT + 1];
    struct kd_engine_metrics before, after;
    (void)state;
    o.no_idle_prefill = true;
    must(kd_mem_zero(&a, 3, sizeof *a, "answers", &err));
    make_prompt(ids, COUNT + 1, 77);
    struct kd_engine *e = engine_on_nano(&o);
    struct kd_request_spec s = {.prompt = ids,
                                .prompt_count = COUNT,
                                .max_tokens = 20,
                                .choices = 2,
                                .ignore_eos = true,
                                .logprobs = 3,
                                .sampling = {.temperature = 0.9, .top_p = 1, .seed = 5}};
    ask(e, &s, &a[0]);
    assert_int_equal(a[0].usage.cached_tokens, 0);
    kd_engine_metrics(e, &before);
    ask(e, &s, &a[1]);
    kd_engine_metrics(e, &after);
    assert_int_equal(a[1].usage.cached_tokens, COUNT);
    assert_int_equal(after.prefill_tokens, before.prefill_tokens);
    for (int c = 0; c < 2; c++)
        same_choice(&a[0], c, &a[1], c, "the same prompt again");
    s.prompt_count = COUNT + 1;
    ask(e, &s, &a[2]);
    assert_int_equal(a[2].usage.cached_tokens, COUNT / 64 * 64);
    s.prompt_count = COUNT;
    snprintf(s.owner, sizeof s.owner, "another");
    ask(e, &s, &a[2]);
    assert_int_equal(a[2].usage.cached_tokens, 0);
    same_choice(&a[0], 0, &a[2], 0, "another owner");
    kd_engine_close(e);
    kd_mem_free(a);
}

/* Prompts that repeat themselves make drafts; the answer is the same, and drafts are accepted. */
static void drafts_change_nothing(void **state)
{
    struct kd_engine_options o = full;
    struct kd_engine *one = engine_on_nano(&plain);
    struct answer *a;
    int32_t ids[240];
    struct kd_engine_metrics m;
    (void)state;
    must(kd_mem_zero(&a, 2, sizeof *a, "answers", &err));
    o.draft_max = 8;
    struct kd_engine *e = engine_on_nano(&o);
    for (int i = 0; i < 4; i++) {
        for (int64_t j = 0; j < 240; j++)
            ids[j] = (int32_t)(300 + (j % (12 + i)) * 17);
        struct kd_request_spec s = {.prompt = ids,
                                    .prompt_count = 240,
                                    .max_tokens = 80,
                                    .ignore_eos = true,
                                    .logprobs = 1,
                                    .sampling = {.temperature = i == 3 ? 0.4 : 0.0, .top_p = 1}};
        ask(one, &s, &a[0]);
        ask(e, &s, &a[1]);
        same_choice(&a[0], 0, &a[1], 0, "drafts");
    }
    kd_engine_metrics(e, &m);
    assert_true(m.draft_tokens > 0);
    assert_true(m.draft_accepted > 0);
    assert_true(m.draft_accepted <= m.draft_tokens);
    kd_engine_metrics(one, &m);
    assert_int_equal(m.draft_tokens, 0);
    kd_mem_free(a);
    kd_engine_close(one);
    kd_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(alone_and_in_a_crowd),
                                       cmocka_unit_test(warm_is_cold),
                                       cmocka_unit_test(idle_prefill),
                                       cmocka_unit_test(branches_are_found),
                                       cmocka_unit_test(common_beginning),
                                       cmocka_unit_test(disk),
                                       cmocka_unit_test(budgets),
                                       cmocka_unit_test(choices),
                                       cmocka_unit_test(same_prompt_again),
                                       cmocka_unit_test(drafts_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, nothing_left);
}
