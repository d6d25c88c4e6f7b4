/* plan/bytes: K3's true sizes, to the byte where the release or a conversion gives them. */
#include "plan/bytes.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kd_plan_model k3;
static struct kd_err err;

static struct kd_plan_bytes bytes_of(struct kd_plan_target t)
{
    struct kd_plan_bytes b;
    if (kd_plan_count(&b, &k3, &t, &err))
        fail_msg("%s", err.msg);
    return b;
}

static int setup(void **state)
{
    (void)state;
    return kd_plan_model_k3(&k3, &err);
}

/* K3 specification 2.4, "closes exactly". */
static void parameters(void **state)
{
    (void)state;
    assert_int_equal(k3.total_params, 2779931837184);
    assert_int_equal(k3.active_params, 104189614848);
    assert_int_equal(k3.params[KD_K3_ROUTED], 2722740830208);
    assert_int_equal(k3.params[KD_K3_KDA], 30618088704);
    assert_int_equal(k3.params[KD_K3_MLA], 5572706304);
    assert_int_equal(k3.params[KD_K3_VISION], 401214464);
    assert_int_equal(k3.params[KD_K3_PROJECTOR], 46144512);
    assert_int_equal(k3.expert_params, 33030144);
    assert_int_equal(k3.kda_layers, 69);
    assert_int_equal(k3.mla_layers, 24);
    assert_int_equal(k3.moe_layers, 92);
}

static void native(void **state)
{
    (void)state;
    struct kd_plan_bytes b = bytes_of(kd_plan_native());
    assert_int_equal(b.tensor_bytes, 1560860324864);
    assert_int_equal(b.routed, 1446456066048);
    assert_int_equal(b.kind[KD_K3_KDA], 61258257408);
    assert_int_equal(b.kind[KD_K3_VISION], 802428928);
    assert_int_equal(b.tensor_bytes - b.routed, 114404258816);
}

/* What `kondense convert release X --bpw R --dry-run` prints for the released index. */
static void converted(void **state)
{
    (void)state;
    assert_int_equal(bytes_of(kd_plan_exl3(2.3)).file_bytes, 821673926484);
    assert_true(bytes_of(kd_plan_exl3(2.0)).file_bytes < 821673926484);
    struct kd_plan_bytes b = bytes_of(kd_plan_exl3(2));
    /* 2.0097 bits with the side vectors (exl3 Decision 1). */
    assert_true(b.real_bpw > 2.0096 && b.real_bpw < 2.0098);
    /* 54.3 G of the trunk are quantized (Decision 2). */
    assert_in_range(b.trunk_quantized_weights, 54250000000, 54350000000);
}

static void documents(void **state)
{
    (void)state;
    assert_true(bytes_of(kd_plan_document(2.3)).file_bytes >> 30 == 758);
    assert_true(bytes_of(kd_plan_document(2.0)).file_bytes >> 30 == 663);
    assert_int_equal(bytes_of(kd_plan_document(2.3)).trunk, 28900000000);
}

static void published(void **state)
{
    (void)state;
    int n = 0;
    for (const struct kd_plan_target *t = kd_plan_published; *t->name; t++, n++) {
        struct kd_plan_bytes b = bytes_of(*t);
        assert_int_equal(b.file_bytes, t->file_bytes);
        assert_non_null(t->source);
        /* Backed-out densities of gguf-slicing 3.3. */
        if (!strcmp(t->name, "UD-IQ1_S"))
            assert_true(b.real_bpw > 1.555 && b.real_bpw < 1.58);
        if (!strcmp(t->name, "UD-Q2_K_XL"))
            assert_true(b.real_bpw > 2.33 && b.real_bpw < 2.36);
    }
    assert_int_equal(n, 8);
}

/* serving 3.1 and 5.2. */
static void caches_and_cuts(void **state)
{
    (void)state;
    assert_int_equal(kd_plan_cache_token_bytes(&k3, 2), 27648);
    assert_int_equal(kd_plan_state_bytes(&k3), 434110464 + 30523392);
    struct kd_plan_bytes b = bytes_of(kd_plan_document(2.3));
    double gib = (double)(1 << 30);
    assert_int_equal(kd_plan_cut_of(&b, &k3, 1).bytes, b.file_bytes);
    double eight = (double)kd_plan_cut_of(&b, &k3, 8).bytes / gib;
    /* An even eighth is 94.8; the embedding stays whole, the latent cut is uneven. */
    assert_true(eight > 96.5 && eight < 97.6);
    assert_false(kd_plan_cut_of(&b, &k3, 8).whole);
    /* 24 blocks of expert width over 7 leave one device 4, 17 % over the mean: 128 whole experts on
     * each are less. */
    assert_true(kd_plan_cut_of(&b, &k3, 7).whole);
    assert_int_equal(kd_plan_cut_of(&b, &k3, 7).experts, b.routed / 7);
    /* MXFP4 is cut in groups of 32: sixteen Sparks hold the release, 97.6 GB each and what all
     * have in full. */
    b = bytes_of(kd_plan_native());
    double sixteen = (double)kd_plan_cut_of(&b, &k3, 16).bytes / 1e9;
    assert_true(sixteen > 97.6 && sixteen < 101.5);
    assert_true(kd_plan_experts_touched(&k3, 1) > 0.999999 &&
                kd_plan_experts_touched(&k3, 1) < 1.000001);
    assert_true(kd_plan_experts_touched(&k3, 4) > 3.88 && kd_plan_experts_touched(&k3, 4) < 3.90);
}

static void other_shapes(void **state)
{
    (void)state;
    struct kd_plan_model m;
    struct kd_plan_bytes b;
    struct kd_plan_target t = kd_plan_document(2);
    char path[1200];
    const char *dir = getenv("KONDENSE_TEST_DATA");
    snprintf(path, sizeof path, "%s/k3-nano", dir ? dir : "tests/data");
    if (!kd_dir_exists(path))
        skip();
    assert_int_equal(kd_plan_model_load(&m, path, &err), 0);
    assert_int_equal(kd_plan_count(&b, &m, &t, &err), -1);
    assert_int_equal(err.code, KD_EINVAL);
    /* Counted from its own headers, a checkpoint has what its config says. */
    struct kd_ckpt *ck;
    assert_int_equal(kd_ckpt_open(&ck, path, false, &err), 0);
    struct kd_plan_target stored = {.form = KD_FORM_STORED, .ck = ck};
    struct kd_plan_bytes own;
    t = kd_plan_native();
    assert_int_equal(kd_plan_count(&own, &m, &stored, &err), 0);
    assert_int_equal(kd_plan_count(&b, &m, &t, &err), 0);
    assert_int_equal(own.tensor_bytes, b.tensor_bytes);
    for (int k = 0; k < KD_K3_KINDS; k++)
        assert_int_equal(own.kind[k], b.kind[k]);
    kd_ckpt_close(ck);
    assert_int_equal(kd_plan_model_load(&m, "/nowhere/config.json", &err), -1);
    assert_int_equal(err.code, KD_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters),   cmocka_unit_test(native),
        cmocka_unit_test(converted),    cmocka_unit_test(documents),
        cmocka_unit_test(published),    cmocka_unit_test(caches_and_cuts),
        cmocka_unit_test(other_shapes),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
