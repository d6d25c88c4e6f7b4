/* Units of work on disk: read back as written, refused when damaged or of another job. */
#include "base/file.h"
#include "farm/unit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], path[128];

static struct kd_quant_out sample(unsigned rate16, int64_t k, int64_t n)
{
    struct kd_quant_out q = {.k = k,
                             .n = n,
                             .rows = n - 5,
                             .cols = k - 7,
                             .rate = kd_rate_from16(rate16),
                             .cb = KD_CB_MUL1,
                             .scale = 1.5f,
                             .mse = 0.0625,
                             .proxy = 0.02,
                             .rel_fro = 0.25};
    q.codes_bytes = k / 16 * (n / 16) * kd_rate_tile_bytes(q.rate);
    q.codes = malloc((size_t)q.codes_bytes);
    q.suh = malloc((size_t)k * 2);
    q.svh = malloc((size_t)n * 2);
    for (int64_t i = 0; i < q.codes_bytes; i++)
        q.codes[i] = (uint8_t)(i * 7 + rate16);
    for (int64_t i = 0; i < k; i++)
        q.suh[i] = (uint16_t)i;
    for (int64_t i = 0; i < n; i++)
        q.svh[i] = (uint16_t)(3 * i);
    return q;
}

static void drop(struct kd_quant_out *q)
{
    free(q->codes);
    free(q->suh);
    free(q->svh);
}

static void reads_back(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_quant_out a = sample(32, 128, 256), b = sample(37, 256, 128),
                        c = sample(128, 128, 128);
    const struct kd_quant_out *three[] = {&a, &b, &c};
    struct kd_unit_info info = {.routed_rows = 42, .few_rows = 1};
    assert_int_equal(kd_unit_write(path, 99, three, 3, &info, &err), 0);
    struct kd_unit u;
    if (kd_unit_open(&u, path, 99, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(u.count, 3);
    assert_int_equal(u.info.routed_rows, 42);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(u.mat[i].rows, three[i]->rows);
        assert_int_equal(u.mat[i].cols, three[i]->cols);
        assert_int_equal(kd_rate_to16(u.mat[i].rate), kd_rate_to16(three[i]->rate));
        assert_memory_equal(u.mat[i].data, three[i]->codes, (size_t)three[i]->codes_bytes);
        assert_memory_equal(u.mat[i].suh, three[i]->suh, (size_t)three[i]->k * 2);
        assert_memory_equal(u.mat[i].svh, three[i]->svh, (size_t)three[i]->n * 2);
        assert_true(u.figures[i].proxy == 0.02);
    }
    kd_unit_close(&u);
    assert_int_equal(kd_unit_open(&u, path, 98, &err), -1);
    assert_non_null(strstr(err.msg, "other settings"));
    drop(&a);
    drop(&b);
    drop(&c);
}

static void every_damage_is_seen(void **state)
{
    (void)state;
    struct kd_err err = {0};
    struct kd_quant_out a = sample(36, 128, 128);
    const struct kd_quant_out *one[] = {&a};
    assert_int_equal(kd_unit_write(path, 1, one, 1, NULL, &err), 0);
    struct kd_buf b;
    kd_buf_init(&b, 1 << 20);
    assert_int_equal(kd_file_read(&b, path, 1 << 20, &err), 0);
    struct kd_unit u;
    for (size_t i = 0; i < b.size_bytes; i += i < 512 ? 1 : 97) {
        b.data[i] ^= 0x10;
        assert_int_equal(kd_file_write(path, b.data, b.size_bytes, &err), 0);
        assert_int_equal(kd_unit_open(&u, path, 1, &err), -1);
        b.data[i] ^= 0x10;
    }
    for (size_t n = 0; n < b.size_bytes; n += 211) {
        assert_int_equal(kd_file_write(path, b.data, n, &err), 0);
        assert_int_equal(kd_unit_open(&u, path, 1, &err), -1);
    }
    kd_buf_release(&b);
    drop(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_back),
                                       cmocka_unit_test(every_damage_is_seen)};
    snprintf(dir, sizeof dir, "/tmp/kondense-unit-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/x.unit", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    rmdir(dir);
    return rc;
}
