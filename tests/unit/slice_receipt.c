/* Receipts against the published figures: the 0.0086-bit file and its ladder, and the sizes of
 * published builds, all from files that are heads before holes. */
#include "base/file.h"
#include "base/json.h"
#include "slice/facts.h"
#include "unit/slice_util.h"

#include <stdlib.h>

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/kd_slice_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    struct kd_err err;
    (void)state;
    return kd_dir_remove(dir, &err);
}

/* As llama.cpp's quantizer makes it: Q1_0, the head in Q6_K. */
static struct k3_made stock(int64_t layers)
{
    return (struct k3_made){.layers = layers,
                            .experts = 16,
                            .used = 2,
                            .width = 3072,
                            .shared = 2,
                            .expert_type = KD_GT_Q1_0,
                            .matrix_type = KD_GT_Q1_0,
                            .embed_type = KD_GT_Q1_0,
                            .output_type = KD_GT_Q6_K,
                            .beta_type = KD_GT_Q1_0};
}

struct opened {
    struct kd_source *src;
    struct kd_heads *h;
    struct kd_facts f;
};

static void open_made(struct opened *o, const struct k3_made *m, const struct kd_facts_opts *fo)
{
    char path[128];
    struct kd_err err;
    struct kd_source_opts so = {.offline = true};
    snprintf(path, sizeof path, "%s/k3.gguf", dir);
    k3_write(path, m);
    if (kd_source_open(&o->src, path, &so, &err) || kd_heads_open(&o->h, o->src, &err) ||
        kd_facts_make(&o->f, o->h, fo, &err))
        fail_msg("%s", err.msg);
}

static void close_made(struct opened *o)
{
    kd_facts_release(&o->f);
    kd_heads_close(o->h);
    kd_source_close(o->src);
}

static void assert_near(double is, double should, double room)
{
    if (is < should - room || is > should + room)
        fail_msg("%.9g is not %.9g", is, should);
}

static void test_post(void **state)
{
    struct opened o;
    struct kd_err err;
    struct k3_made m = stock(12);
    struct kd_facts_opts fo = {.declared_params = 2.8e12, .tok_s = 83.65, .bandwidth = 200e9};
    struct kd_buf b;
    char text[32];
    (void)state;
    m.head_bytes = 6700000;
    open_made(&o, &m, &fo);
    assert_int_equal(o.f.tensors, 329);
    assert_int_equal(o.f.sum.params, INT64_C(15599198864));
    assert_int_equal(o.f.data_bytes, INT64_C(3003850816));
    assert_int_equal(o.f.file_bytes, INT64_C(3010550816));
    assert_int_equal(o.f.type_count, 3);
    assert_string_equal(o.f.types[0].name, "Q1_0");
    assert_int_equal(o.f.types[0].tensors, 185);
    assert_int_equal(o.f.types[0].bytes, INT64_C(2028049920));
    assert_int_equal(o.f.types[1].bytes, INT64_C(963379200));
    assert_int_equal(o.f.types[2].tensors, 143);
    assert_int_equal(o.f.types[2].bytes, INT64_C(12421696));
    assert_string_equal(kd_fact_bits(text, sizeof text, kd_facts_declared(&o.f)), "0.0086");
    assert_near(kd_facts_real(&o.f), 1.544, 0.0005);
    assert_string_equal(kd_fact_percent(text, sizeof text, kd_facts_missing(&o.f)), "99.44 %");
    /* 176 of the whole model's 82,432 experts, not 16 of 896. */
    assert_near(100 * kd_facts_routed(&o.f), 0.2135, 0.00005);
    /* Bytes a token reads with two experts: within what the memory gives. */
    assert_near((double)o.f.token_bytes / 1e9, 2.123, 0.0005);
    assert_int_equal(o.f.shape.kda, 9);
    assert_int_equal(o.f.shape.mla, 3);
    assert_int_equal(o.f.of, KD_OF_FAMILY);
    assert_int_equal(o.f.src_params, INT64_C(2779483135584));
    kd_buf_init(&b, 1 << 20);
    kd_facts_text(&b, &o.f);
    assert_non_null(strstr(b.data, "DECLARED bits/param      0.0086"));
    assert_non_null(strstr(b.data, "REAL bits/param           1.544"));
    assert_non_null(strstr(b.data, "99.44 %"));
    assert_non_null(strstr(b.data, "within the memory's 200.000 GB/s"));
    assert_non_null(strstr(b.data, "quality gate  NOT MEASURED"));
    kd_buf_release(&b);
    /* The headline is not a property of the file; the real number is. */
    assert_int_equal(kd_facts_claim(&o.f, "0.0086", &err), 0);
    assert_int_equal(kd_facts_judge(&o.f, &err), -1);
    assert_int_equal(err.code, KD_EGATE);
    assert_non_null(strstr(err.msg, "99.44 %"));
    o.f.claim_count = 0;
    assert_int_equal(kd_facts_claim(&o.f, "1.544", &err), 0);
    assert_int_equal(kd_facts_claim(&o.f, "15.6B", &err), 0);
    assert_int_equal(kd_facts_judge(&o.f, &err), 0);
    assert_int_equal(kd_facts_claim(&o.f, "2.8T", &err), 0);
    assert_int_equal(kd_facts_judge(&o.f, &err), -1);
    close_made(&o);
    /* With 16 experts used the same speed is more than the memory gives. */
    m.used = 16;
    open_made(&o, &m, &fo);
    assert_near((double)o.f.token_bytes / 1e9, 2.839, 0.0005);
    kd_buf_init(&b, 1 << 20);
    kd_facts_text(&b, &o.f);
    assert_non_null(strstr(b.data, "MORE THAN the memory's 200.000 GB/s"));
    kd_buf_release(&b);
    close_made(&o);
}

static void test_ladder(void **state)
{
    static const struct {
        int64_t layers, tensors, params, data;
        double real, declared, missing;
    } rungs[] = {{93, 2573, INT64_C(104782275104), INT64_C(15628370560), 1.1932, 0.0447, 96.26},
                 {48, 1328, 0, 0, 1.2476, 0.0246, 98.02},
                 {36, 995, 0, 0, 1.2838, 0.0193, 98.50},
                 {24, 662, INT64_C(28835011376), INT64_C(4877523136), 1.3532, 0.0139, 98.97},
                 {16, 440, 0, 0, 1.4506, 0.0104, 99.29},
                 {8, 218, 0, 0, 1.7014, 0.0068, 99.60}};
    struct kd_facts_opts fo = {.declared_params = 2.8e12};
    (void)state;
    for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++) {
        struct opened o;
        struct k3_made m = stock(rungs[i].layers);
        open_made(&o, &m, &fo);
        assert_int_equal(o.f.tensors, rungs[i].tensors);
        if (rungs[i].params) {
            assert_int_equal(o.f.sum.params, rungs[i].params);
            assert_int_equal(o.f.data_bytes, rungs[i].data);
        }
        double n = (double)o.f.sum.params, bits = 8 * (double)o.f.data_bytes;
        assert_near(bits / n, rungs[i].real, 0.00005);
        assert_near(bits / 2.8e12, rungs[i].declared, 0.00005);
        assert_near(100 * kd_facts_missing(&o.f), rungs[i].missing, 0.005);
        close_made(&o);
    }
}

static void test_sizes(void **state)
{
    static const struct {
        struct k3_made m;
        int64_t data, params;
        double gb, room;
    } builds[] = {
        /* layers, experts, used, width, shared; experts, matrices, embedding, output, beta */
        {{93, 896, 16, 3072, 2, KD_GT_IQ1_S, KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_F32, 0, NULL,
          NULL},
         INT64_C(593990834560),
         INT64_C(2779483135584),
         594.0,
         0.05},
        {{93, 896, 16, 1536, 4, KD_GT_IQ1_S, KD_GT_Q8_0, KD_GT_F16, KD_GT_F16, KD_GT_Q8_0, 0, NULL,
          NULL},
         INT64_C(330160710016),
         0,
         330.16,
         0.05},
        {{93, 640, 16, 3072, 2, KD_GT_IQ1_S, KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_F32, 0, NULL,
          NULL},
         0,
         0,
         441.38,
         0.01},
        {{93, 896, 16, 3072, 2, KD_GT_MXFP4, KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_Q8_0, 0,
          NULL, NULL},
         0,
         0,
         1508.5,
         0.1},
        {{93, 896, 16, 3072, 2, KD_GT_MXFP4, KD_GT_BF16, KD_GT_BF16, KD_GT_BF16, KD_GT_BF16, 0,
          NULL, NULL},
         0,
         0,
         1561.2,
         0.1},
    };
    struct kd_facts_opts fo = {0};
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
        struct opened o;
        open_made(&o, &builds[i].m, &fo);
        assert_int_equal(o.f.tensors, 2573);
        if (builds[i].data)
            assert_int_equal(o.f.data_bytes, builds[i].data);
        if (builds[i].params)
            assert_int_equal(o.f.sum.params, builds[i].params);
        assert_near((double)o.f.data_bytes / 1e9, builds[i].gb, builds[i].room);
        if (builds[i].m.width == 1536) { /* 896 of 896 experts, and half of each is gone */
            assert_near(kd_facts_routed(&o.f), 0.5, 1e-9);
            assert_near((double)o.f.sum.params / 1e9, 1418.1, 0.05);
            assert_int_equal(o.f.src_width, 3072);
        }
        close_made(&o);
    }
}

/* A mixed build's density, backed out of its 711.1 GB, predicts its pruned form. */
static void test_mixed(void **state)
{
    struct k3_made m = {93,         896,        16,        3072, 2,    KD_GT_IQ2_XXS, KD_GT_Q8_0,
                        KD_GT_Q8_0, KD_GT_Q8_0, KD_GT_F32, 0,    NULL, NULL};
    struct kd_facts_opts fo = {0};
    struct opened o;
    (void)state;
    open_made(&o, &m, &fo);
    double rest = (double)(o.f.data_bytes - o.f.sum.routed_bytes);
    double bits = 8 * (711.1e9 - rest) / (double)o.f.sum.routed_params;
    assert_near(bits, 1.907, 0.001);
    close_made(&o);
    m.experts = 576;
    open_made(&o, &m, &fo);
    rest = (double)(o.f.data_bytes - o.f.sum.routed_bytes);
    assert_near((rest + (double)o.f.sum.routed_params * bits / 8) / 1e9, 478.51, 0.05);
    close_made(&o);
}

static void test_names(void **state)
{
    static const struct {
        const char *name, *label;
        int claims, contradicted;
    } cases[] = {{"Kimi K3 2.8T", NULL, 1, 1},
                 {"Kimi-K3-2.8T-A50B", NULL, 2, 2},
                 {"Kimi K3", "15.6B", 1, 0},
                 {"K3-16B", "2.8T", 2, 1},
                 {"slice of Kimi K3 2.8T: 12 of 93 layers", "16B", 1, 0},
                 {"v2.1 Q4b 8x22Bx 3Tb", NULL, 0, 0},
                 {"\033[2Jclear", "", 0, 0}};
    struct kd_facts_opts fo = {0};
    struct kd_err err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opened o;
        struct k3_made m = stock(12);
        struct kd_buf b;
        m.name = cases[i].name;
        m.size_label = cases[i].label;
        open_made(&o, &m, &fo);
        int bad = 0;
        for (int k = 0; k < o.f.claim_count; k++)
            bad += !o.f.claims[k].holds;
        if (o.f.claim_count != cases[i].claims || bad != cases[i].contradicted)
            fail_msg("'%s': %d claims, %d contradicted", m.name, o.f.claim_count, bad);
        assert_int_equal(kd_facts_judge(&o.f, &err), 0); /* nobody asked */
        assert_int_equal(kd_facts_want(&o.f, "claims", &err), 0);
        assert_int_equal(kd_facts_judge(&o.f, &err), bad ? -1 : 0);
        kd_buf_init(&b, 1 << 20);
        kd_facts_text(&b, &o.f);
        kd_facts_html(&b, &o.f, 1);
        assert_int_equal(kd_buf_ok(&b, "receipt", &err), 0);
        assert_null(memchr(b.data, '\033', b.size_bytes));
        kd_buf_release(&b);
        close_made(&o);
    }
}

static void test_wants(void **state)
{
    static const struct {
        const char *list;
        int parsed, judged;
        const char *says;
    } cases[] = {{"missing=0.995,layers=0.1,experts=0.01,width=1", 0, 0, ""},
                 {"missing=0.99", 0, -1, "missing 0.994388 is over 0.99"},
                 {"routed=0.01", 0, -1, "routed 0.00213509 is under 0.01"},
                 {"active=1", 0, -1, "active is NOT MEASURED"},
                 {"gate", 0, -1, "gate is NOT MEASURED"},
                 {"missing.bytes=0.5", 0, -1, "missing.bytes is NOT MEASURED"},
                 {"beauty=1", -1, 0, "cannot be required"},
                 {"missing", -1, 0, "needs a bound"},
                 {"gate=1", -1, 0, "takes no number"},
                 {"", -1, 0, "cannot be required"}};
    struct kd_facts_opts fo = {0};
    struct k3_made m = stock(12);
    struct opened o;
    struct kd_err err;
    (void)state;
    open_made(&o, &m, &fo);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.f.want_count = 0;
        err.msg[0] = 0;
        assert_int_equal(kd_facts_want(&o.f, cases[i].list, &err), cases[i].parsed);
        if (!cases[i].parsed)
            assert_int_equal(kd_facts_judge(&o.f, &err), cases[i].judged);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("'%s': %s", cases[i].list, err.msg);
    }
    static const char *const no_claims[] = {"", "x", "1.5x", "-1", "2.8TB", "."};
    for (size_t i = 0; i < sizeof no_claims / sizeof *no_claims; i++)
        assert_int_equal(kd_facts_claim(&o.f, no_claims[i], &err), -1);
    close_made(&o);
}

/* The JSON is whole, and says NOT ... instead of leaving a place empty. */
static void test_json(void **state)
{
    struct kd_facts_opts fo = {.declared_params = 2.8e12};
    struct k3_made m = stock(8);
    struct opened o;
    struct kd_err err;
    struct kd_buf b;
    struct kd_json *root;
    (void)state;
    open_made(&o, &m, &fo);
    kd_buf_init(&b, 1 << 20);
    kd_facts_json(&b, &o.f, 1);
    if (kd_json_parse(&root, b.data, b.size_bytes, "receipt", &err))
        fail_msg("%s", err.msg);
    const struct kd_json *r = kd_json_at(kd_json_get(root, "receipts"), 0);
    const struct kd_json *bits = kd_json_get(r, "bits"), *gone = kd_json_get(r, "missing");
    assert_near(kd_json_num_value(kd_json_get(bits, "declared")), kd_facts_declared(&o.f), 1e-15);
    assert_int_equal(kd_json_kind(kd_json_get(gone, "bytes")), KD_JSON_NULL);
    assert_string_equal(kd_json_text(kd_json_get(kd_json_get(r, "quality"), "gate"), NULL),
                        "NOT MEASURED");
    assert_string_equal(kd_json_text(kd_json_get(r, "licence"), NULL), "NOT STATED");
    kd_json_free(root);
    kd_buf_release(&b);
    close_made(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_post),  cmocka_unit_test(test_ladder), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_mixed), cmocka_unit_test(test_names),  cmocka_unit_test(test_wants),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
