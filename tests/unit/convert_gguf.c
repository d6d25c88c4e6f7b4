/* convert/to_gguf: a model written as GGUF is the model it was made of, whole or in parts, after a
 * stop too; and its tokenizer. */
#include "convert/synth.h"
#include "convert/to_gguf.h"
#include "fmt/gguf.h"
#include "text/tok.h"
#include "unit/model_util.h"

#include <unistd.h>

enum { IDS = 40 };

static char dir[] = "/tmp/kd_to_gguf_XXXXXX";
static int stop_after; /* calls of stopped() until it says yes; 0: never */

static bool stopped(void)
{
    return stop_after && !--stop_after;
}

static const char *in_dir(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", dir, name);
    return out;
}

static int convert(const char *src, const char *dst, struct kd_to_gguf set,
                   struct kd_to_gguf_done *done)
{
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_kern kern;
    struct kd_run run = {.kern = &kern};
    set.stopped = stopped;
    must(kd_kern_pick(&kern, &err));
    must(kd_pool_open(&run.pool, 2, &err));
    must(kd_ckpt_open(&ck, src, false, &err));
    must(kd_k3_cfg_parse(&cfg, kd_ckpt_config(ck), NULL, &err));
    int rc = kd_to_gguf(ck, &cfg, src, dst, &set, &run, done, &err);
    kd_ckpt_close(ck);
    kd_pool_close(run.pool);
    return rc;
}

/* Logits of all positions of a fixed row of ids. */
static float *logits_of(const char *path, int64_t *vocab)
{
    struct fixture f;
    struct kd_k3_seq *s;
    int32_t ids[IDS];
    fixture_open(&f, path, KD_ISA_COUNT, 2, NULL);
    *vocab = kd_k3_config(f.m)->vocab;
    for (int i = 0; i < IDS; i++)
        ids[i] = (int32_t)((37 * i * i + 11 * i + 5) % *vocab);
    must(kd_k3_seq_open(&s, f.m, &err));
    float *out = new_floats(IDS * *vocab);
    struct kd_k3_feed feed = {.seq = s, .ids = ids, .count = IDS, .want = 2};
    must(kd_k3_forward(f.m, &feed, 1, NULL, out, &err));
    kd_k3_seq_close(s);
    fixture_close(&f);
    return out;
}

/* Relative, over all of them. */
static double distance(const char *a, const char *b)
{
    int64_t va, vb;
    float *x = logits_of(a, &va), *y = logits_of(b, &vb);
    assert_int_equal(va, vb);
    double off = 0, all = 0;
    for (int64_t i = 0; i < IDS * va; i++) {
        double d = (double)x[i] - (double)y[i];
        off += d * d;
        all += (double)x[i] * (double)x[i];
    }
    free(x);
    free(y);
    return sqrt(off / all);
}

static void same_file(const char *a, const char *b)
{
    struct kd_map x, y;
    must(kd_file_map(&x, a, &err));
    must(kd_file_map(&y, b, &err));
    assert_int_equal(x.size_bytes, y.size_bytes);
    assert_memory_equal(x.data, y.data, (size_t)x.size_bytes);
    kd_map_release(&x);
    kd_map_release(&y);
}

/* Not one bit of any logit changes where nothing is rounded. */
static void same_model(void **state)
{
    char src[512], dst[512];
    struct kd_to_gguf_done done;
    (void)state;
    data_path(src, "k3-nano");
    must(convert(src, in_dir(dst, "bf16.gguf"), (struct kd_to_gguf){.trunk_type = KD_GT_BF16},
                 &done));
    assert_int_equal(done.parts, 1);
    assert_int_equal(done.tensors, 242);
    /* Experts to the byte: 8 layers of 32 experts of 3 matrices of 128 x 128. */
    assert_int_equal(done.mxfp4_bytes, 8 * 32 * 3 * 128 * 128 / 32 * 17);
    assert_int_equal(kd_file_size(dst, &err), done.file_bytes);
    assert_true(distance(src, dst) == 0);
    must(
        convert(src, in_dir(dst, "f32.gguf"), (struct kd_to_gguf){.trunk_type = KD_GT_F32}, &done));
    assert_true(distance(src, dst) == 0);
    must(
        convert(src, in_dir(dst, "q8.gguf"), (struct kd_to_gguf){.trunk_type = KD_GT_Q8_0}, &done));
    double q8 = distance(src, dst);
    printf("Q8_0 trunk: logits %.4f apart\n", q8);
    assert_true(q8 > 0 && q8 < 0.1);
    /* There already. */
    assert_int_equal(convert(src, dst, (struct kd_to_gguf){.trunk_type = KD_GT_Q8_0}, &done), -1);
    assert_non_null(strstr(err.msg, "is there already"));
}

static void in_parts(void **state)
{
    char src[512], dst[512], first[600], path[600];
    struct kd_to_gguf set = {.trunk_type = KD_GT_BF16, .split_bytes = 5000000};
    struct kd_to_gguf_done done, again;
    (void)state;
    data_path(src, "k3-nano");
    must(convert(src, in_dir(dst, "parts"), set, &done));
    assert_true(done.parts >= 5);
    snprintf(first, sizeof first, "%s/k3-nano-BF16-00001-of-%05d.gguf", dst, (int)done.parts);
    assert_string_equal(done.path, first);
    snprintf(path, sizeof path, "%s/k3-nano-BF16-00003-of-%05d.gguf", dst, (int)done.parts);
    assert_true(distance(in_dir(src, "bf16.gguf"), path) == 0);
    assert_true(distance(src, dst) == 0);
    /* Stopped twice and resumed, without what it had made before being made again. */
    data_path(src, "k3-nano");
    in_dir(dst, "stopped");
    stop_after = 120;
    assert_int_equal(convert(src, dst, set, &again), -1);
    assert_int_equal(err.code, KD_ECANCEL);
    snprintf(first, sizeof first, "%s/k3-nano-BF16-00001-of-%05d.gguf", dst, (int)done.parts);
    assert_true(kd_file_exists(first));
    stop_after = 0;
    assert_int_equal(convert(src, dst, set, &again), -1);
    assert_non_null(strstr(err.msg, "add --resume"));
    set.resume = true;
    set.split_bytes = 6000000;
    assert_int_equal(convert(src, dst, set, &again), -1);
    assert_non_null(strstr(err.msg, "with other settings"));
    set.split_bytes = 5000000;
    stop_after = 60;
    assert_int_equal(convert(src, dst, set, &again), -1);
    stop_after = 0;
    must(convert(src, dst, set, &again));
    for (int i = 1; i <= done.parts; i++) {
        snprintf(path, sizeof path, "%s/parts/k3-nano-BF16-%05d-of-%05d.gguf", dir, i,
                 (int)done.parts);
        snprintf(first, sizeof first, "%s/stopped/k3-nano-BF16-%05d-of-%05d.gguf", dir, i,
                 (int)done.parts);
        same_file(path, first);
    }
}

/* Odd widths, a softplus gate's absence, rows that are no blocks of 32, no tokenizer. */
static void awkward(void **state)
{
    char config[512], src[512], dst[512];
    struct kd_to_gguf_done done;
    (void)state;
    struct kd_synth_opts opts = {.last = -1, .seed = 3};
    const struct kd_run one = {0};
    struct kd_json *shape;
    struct kd_synth *s;
    must(kd_json_load(&shape, data_path(config, "awkward/config.json"), 1 << 20, &err));
    must(kd_synth_open(&s, shape, "config", &opts, &err));
    must(kd_synth_write(s, &one, in_dir(src, "awkward"), &err));
    kd_synth_close(s);
    kd_json_free(shape);
    must(convert(src, in_dir(dst, "awkward.gguf"), (struct kd_to_gguf){.trunk_type = KD_GT_BF16},
                 &done));
    assert_true(distance(src, dst) == 0);
    must(convert(src, in_dir(dst, "awkward8.gguf"), (struct kd_to_gguf){.trunk_type = KD_GT_Q8_0},
                 &done));
    assert_true(distance(src, dst) < 0.2);
}

static void same_mat(const struct kd_mat *a, const struct kd_mat *b)
{
    const struct kd_run alone = {0};
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    float *x = new_floats(a->cols), *y = new_floats(a->cols);
    for (int64_t r = 0; r < a->rows; r++) {
        must(kd_mat_row(&alone, a, r, x, &err));
        must(kd_mat_row(&alone, b, r, y, &err));
        assert_memory_equal(x, y, (size_t)a->cols * sizeof *x);
    }
    free(x);
    free(y);
}

/* A rank's share of a layer is the same from both. */
static void ranks(void **state)
{
    char src[512], dst[512];
    struct kd_ckpt *ck[2];
    struct kd_k3_cfg cfg[2];
    const struct kd_k3_part part = {1, 2};
    (void)state;
    must(kd_ckpt_open(&ck[0], data_path(src, "k3-nano"), false, &err));
    must(kd_ckpt_open(&ck[1], in_dir(dst, "bf16.gguf"), false, &err));
    for (int i = 0; i < 2; i++)
        must(kd_k3_cfg_parse(&cfg[i], kd_ckpt_config(ck[i]), NULL, &err));
    for (int64_t l = 2; l < 4; l++) { /* KDA, MLA */
        struct kd_k3_layer L[2];
        for (int i = 0; i < 2; i++)
            must(kd_k3_layer_load(&L[i], &cfg[i], ck[i], l, &part, &err));
        assert_int_equal(L[0].heads, 1);
        assert_int_equal(L[1].heads, 1);
        same_mat(&L[0].g, &L[1].g);
        same_mat(&L[0].o, &L[1].o);
        same_mat(&L[0].gate, &L[1].gate);
        same_mat(&L[0].down, &L[1].down);
        if (L[0].mla) {
            same_mat(&L[0].q_b, &L[1].q_b);
            same_mat(&L[0].kv_b, &L[1].kv_b);
        } else {
            same_mat(&L[0].f_b, &L[1].f_b);
            assert_memory_equal(L[0].decay, L[1].decay, sizeof(float));
            assert_memory_equal(L[0].dt_bias, L[1].dt_bias, 128 * sizeof(float));
        }
        for (int i = 0; i < 2; i++)
            kd_k3_layer_release(&L[i]);
    }
    kd_ckpt_close(ck[0]);
    kd_ckpt_close(ck[1]);
}

static void tokenizer(void **state)
{
    static const char text[] =
        "def add(a, b):\n    return a + b  # caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd 12345\n";
    char src[512], dst[512];
    struct kd_tok *a, *b;
    struct kd_ids x = {0}, y = {0};
    size_t n, m;
    (void)state;
    must(kd_tok_open(&a, data_path(src, "k3-nano"), &err));
    must(kd_tok_open(&b, in_dir(dst, "bf16.gguf"), &err));
    assert_int_equal(kd_tok_vocab(a), kd_tok_vocab(b));
    for (int32_t id = 0; id < kd_tok_vocab(a); id++) {
        const char *s = kd_tok_bytes(a, id, &n), *t = kd_tok_bytes(b, id, &m);
        assert_int_equal(n, m);
        assert_memory_equal(s, t, n);
    }
    must(kd_tok_encode(a, text, sizeof text - 1, &x, &err));
    must(kd_tok_encode(b, text, sizeof text - 1, &y, &err));
    assert_int_equal(x.count, y.count);
    assert_memory_equal(x.id, y.id, (size_t)x.count * sizeof *x.id);
    assert_int_equal(kd_tok_special(b, "<|end_of_msg|>"), kd_tok_special(a, "<|end_of_msg|>"));
    kd_ids_release(&x);
    kd_ids_release(&y);
    kd_tok_close(a);
    kd_tok_close(b);
}

/* Nothing is converted twice. */
static void refused(void **state)
{
    char src[512], dst[512];
    struct kd_to_gguf_done done;
    (void)state;
    in_dir(src, "bf16.gguf");
    assert_int_equal(convert(src, in_dir(dst, "twice.gguf"),
                             (struct kd_to_gguf){.trunk_type = KD_GT_BF16}, &done),
                     -1);
    assert_non_null(strstr(err.msg, "is a GGUF already"));
}

/* The n-th allocation fails: an error, and nothing under a final name. */
static void out_of_memory(void **state)
{
    char src[512], dst[512];
    struct kd_to_gguf_done done;
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    struct kd_kern kern;
    struct kd_run run = {.kern = &kern};
    struct kd_to_gguf set = {.trunk_type = KD_GT_BF16, .resume = true};
    (void)state;
    must(kd_kern_pick(&kern, &err));
    must(kd_ckpt_open(&ck, data_path(src, "k3-nano"), false, &err));
    must(kd_k3_cfg_parse(&cfg, kd_ckpt_config(ck), NULL, &err));
    in_dir(dst, "memory.gguf");
    for (int64_t n = 1; n < 400; n += n < 40 ? 1 : 23) {
        kd_mem_fail_nth(n);
        assert_int_equal(kd_to_gguf(ck, &cfg, src, dst, &set, &run, &done, &err), -1);
        assert_int_equal(err.code, KD_ENOMEM);
        assert_false(kd_file_exists(dst));
    }
    kd_mem_fail_nth(0);
    kd_ckpt_close(ck);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    return kd_dir_remove(dir, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_model),    cmocka_unit_test(in_parts),  cmocka_unit_test(awkward),
        cmocka_unit_test(ranks),         cmocka_unit_test(tokenizer), cmocka_unit_test(refused),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
