/* Which table a name gives, and that no table has holes. */
#include "unit/kern_util.h"

static void test_names(void **state)
{
    (void)state;
    const char *kept = getenv("KONDENSE_ISA");
    char name[16];
    struct kd_kern k;
    struct kd_err err = {0};
    snprintf(name, sizeof name, "%s", kept ? kept : "");
    assert_int_equal(setenv("KONDENSE_ISA", "sse9", 1), 0);
    assert_int_equal(kd_kern_pick(&k, &err), -1);
    assert_int_equal(err.code, KD_EUSAGE);
    assert_int_equal(setenv("KONDENSE_ISA", "ref", 1), 0);
    assert_int_equal(kd_kern_pick(&k, &err), 0);
    assert_string_equal(k.name, "ref");
    assert_int_equal(unsetenv("KONDENSE_ISA"), 0);
    assert_int_equal(kd_kern_pick(&k, &err), 0);
#if defined(__x86_64__)
    assert_int_equal(kd_kern_for(&k, KD_ISA_NEON, &err), -1);
#else
    assert_int_equal(kd_kern_for(&k, KD_ISA_AVX2, &err), -1);
#endif
    assert_int_equal(err.code, KD_ENOTSUP);
    if (*name)
        assert_int_equal(setenv("KONDENSE_ISA", name, 1), 0);
}

static void test_no_holes(void **state)
{
    (void)state;
    const struct kd_kern *k = &isa;
    assert_non_null(k->name);
    assert_string_equal(k->name, kd_isa_name(k->isa));
    assert_true(k->mm_f32 && k->mm_bf16 && k->mm_mxfp4 && k->mm_exl3 && k->gemm_tn && k->dot);
    assert_true(k->axpy && k->rmsnorm && k->exp && k->sigmoid && k->silu && k->situ && k->softmax);
    assert_true(k->hadamard && k->kda_step && k->trellis_decode && k->trellis_search);
}

int main(void)
{
    int rc = kern_open();
    if (rc)
        return rc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
