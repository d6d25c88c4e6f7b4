/* The canary, and the checks of units that come from elsewhere.
 *
 * labels: heavy */
#include "base/hash.h"
#include "farm/task.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "farm_util.h"

static void the_canary_is_one_everywhere(void **state)
{
    (void)state;
    struct kd_err err = {0};
    char sha[65], again[65];
    struct kd_run one = {.kern = &farm_kern};
    assert_int_equal(kd_farm_canary(&one, sha, &err), 0);
    struct kd_pool *pool;
    assert_int_equal(kd_pool_open(&pool, 3, &err), 0);
    struct kd_run many = {.kern = &farm_kern, .pool = pool};
    assert_int_equal(kd_farm_canary(&many, again, &err), 0);
    kd_pool_close(pool);
    assert_string_equal(sha, again);
    /* Of class `exact`: every architecture. It changes when the codec does, on purpose. */
    assert_string_equal(sha, "00167286dd70f5e0c651cb6419fa45b06af18a6eafc9287e94acfc6f63b08ec9");
}

/* A unit whose bytes at `at` are changed and whose hash is made right again. */
static void tamper(struct kd_buf *b, size_t at, unsigned char mask)
{
    uint64_t hash;
    b->data[at] = (char)(b->data[at] ^ mask);
    hash = kd_xxh64(b->data + 40, b->size_bytes - 40, 0);
    memcpy(b->data + 16, &hash, 8);
}

static void wrong_units_are_refused(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct farm_layer l;
    struct kd_run run = {.kern = &farm_kern};
    struct kd_buf b;
    struct kd_unit u;
    farm_layer_make(&l);
    assert_int_equal(kd_farm_encode(&run, &l.in, &l.task[0], &b, &err), 0);
    assert_int_equal(b.size_bytes, kd_farm_unit_bytes(&l.task[0]));
    assert_int_equal(kd_unit_view(&u, b.data, (int64_t)b.size_bytes, "unit", 5, &err), 0);
    if (kd_farm_check(&run, &l.in, &l.task[0], &u, 16, &err))
        fail_msg("a sound unit: %s", err.msg);
    /* The same unit for another expert, and asked for at another rate. */
    assert_int_equal(kd_farm_check(&run, &l.in, &l.task[1], &u, 16, &err), -1);
    struct kd_farm_task other = l.task[0];
    other.spec[1].rate = kd_rate_from16(48);
    assert_int_equal(kd_farm_check(&run, &l.in, &other, &u, 16, &err), -1);
    assert_non_null(strstr(err.msg, "rate"));
    /* Wrong codes with right framing, in each matrix; then a scale that is infinite. */
    for (int i = 0; i < 3; i++) {
        size_t at = (size_t)((const char *)u.mat[i].data - b.data);
        for (size_t k = 0; k < 2000; k += 2)
            tamper(&b, at + k, 0x5a);
        struct kd_unit bad;
        assert_int_equal(kd_unit_view(&bad, b.data, (int64_t)b.size_bytes, "unit", 5, &err), 0);
        assert_int_equal(kd_farm_check(&run, &l.in, &l.task[0], &bad, 16, &err), -1);
        assert_non_null(strstr(err.msg, "relative error"));
        for (size_t k = 0; k < 2000; k += 2)
            tamper(&b, at + k, 0x5a);
    }
    size_t at = (size_t)((const char *)u.mat[2].svh - b.data);
    b.data[at] = 0, b.data[at + 1] = 0x7c;
    tamper(&b, at, 0);
    assert_int_equal(kd_unit_view(&u, b.data, (int64_t)b.size_bytes, "unit", 5, &err), 0);
    assert_int_equal(kd_farm_check(&run, &l.in, &l.task[0], &u, 16, &err), -1);
    assert_non_null(strstr(err.msg, "finite"));
    kd_buf_release(&b);
    farm_layer_drop(&l);
}

static void a_tensor_of_the_trunk(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct farm_layer l;
    struct kd_run run = {.kern = &farm_kern};
    struct kd_quant_out q;
    struct kd_buf b, again;
    struct kd_unit u;
    farm_layer_make(&l);
    struct kd_farm_task t = farm_tensor(&l);
    assert_true(kd_farm_takes(&t));
    assert_int_equal(kd_farm_encode(&run, NULL, &t, &b, &err), 0);
    assert_int_equal(b.size_bytes, kd_farm_unit_bytes(&t));
    /* What a conversion on one machine writes. */
    assert_int_equal(kd_quant_tensor(&run, &t.w1, &l.h, &t.spec[0], &q, &err), 0);
    const struct kd_quant_out *one = &q;
    assert_int_equal(kd_unit_bytes(&again, 5, &one, 1, NULL, &err), 0);
    assert_int_equal(b.size_bytes, again.size_bytes);
    assert_memory_equal(b.data, again.data, b.size_bytes);
    kd_quant_release(&q);
    kd_buf_release(&again);
    assert_int_equal(kd_unit_view(&u, b.data, (int64_t)b.size_bytes, "unit", 5, &err), 0);
    if (kd_farm_check(&run, NULL, &t, &u, 16, &err))
        fail_msg("a sound unit: %s", err.msg);
    assert_int_equal(kd_farm_check(&run, &l.in, &l.task[0], &u, 16, &err), -1);
    size_t at = (size_t)((const char *)u.mat[0].data - b.data);
    for (size_t k = 0; k < 2000; k += 2)
        tamper(&b, at + k, 0x5a);
    assert_int_equal(kd_unit_view(&u, b.data, (int64_t)b.size_bytes, "unit", 5, &err), 0);
    assert_int_equal(kd_farm_check(&run, NULL, &t, &u, 16, &err), -1);
    assert_non_null(strstr(err.msg, "relative error"));
    kd_buf_release(&b);
    /* Too large for the wire: lm_head's weights, and a Hessian of 33,792 inputs. */
    t.w1.rows = 163840;
    t.w1.cols = 7168;
    assert_false(kd_farm_takes(&t));
    t.w1.rows = 7168;
    t.w1.cols = 33792;
    assert_false(kd_farm_takes(&t));
    t.w1.cols = 12288;
    assert_true(kd_farm_takes(&t));
    farm_layer_drop(&l);
}

int main(void)
{
    struct kd_err err;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_canary_is_one_everywhere),
                                       cmocka_unit_test(wrong_units_are_refused),
                                       cmocka_unit_test(a_tensor_of_the_trunk)};
    if (kd_kern_pick(&farm_kern, &err))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
