/* Messages and blobs there and back; what is out of bounds is refused with its name.
 *
 * labels: heavy */
#include "base/hash.h"
#include "base/mem.h"
#include "farm/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "farm_util.h"

static void make_claim(const struct farm_layer *l, struct kd_wire_claim *c, struct kd_buf *text)
{
    struct kd_err err;
    struct kd_buf b;
    *c = (struct kd_wire_claim){.count = 1};
    c->layer = (struct kd_wire_layer){.layer = 3,
                                      .experts = FARM_EXPERTS,
                                      .inter = FARM_INTER,
                                      .in = l->in,
                                      .hess_rows = l->h.rows,
                                      .digest = 0xfedcba9876543210u};
    int64_t bytes[3] = {FARM_T * FARM_LATENT * 2, FARM_LATENT * (FARM_LATENT + 1) * 2,
                        FARM_T * FARM_TOPK * 6};
    struct kd_blob_ref *refs[3] = {&c->layer.z, &c->layer.hess, &c->layer.routing};
    for (int i = 0; i < 3; i++) {
        refs[i]->bytes = bytes[i];
        assert_int_equal(kd_sha256_of(&i, sizeof i, refs[i]->sha256, &err), 0);
    }
    struct kd_wire_job *j = &c->job[0];
    assert_int_equal(kd_wire_weights_put(&b, &l->task[1], &err), 0);
    *j = (struct kd_wire_job){.expert = 1,
                              .attempt = 2,
                              .lease_s = 30,
                              .type = {KD_MAT_BF16, KD_MAT_BF16, KD_MAT_BF16},
                              .unit_bytes = kd_farm_unit_bytes(&l->task[1])};
    j->weights.bytes = (int64_t)b.size_bytes;
    assert_int_equal(kd_sha256_of(b.data, b.size_bytes, j->weights.sha256, &err), 0);
    memcpy(j->spec, l->task[1].spec, sizeof j->spec);
    j->spec[2].seed = 0xffffffffffffffffu;
    j->spec[1].recipe.row_power = 0.1f;
    kd_buf_release(&b);
    kd_buf_init(text, 1 << 20);
    struct kd_jw w = {.out = text};
    kd_wire_claim_write(&w, c);
}

/* What makes a claim another message, and a word of why that one is refused. */
struct change {
    const char *from, *to, *why;
};

static void refuses_changed(struct kd_wire_claim *d, const struct kd_buf *text,
                            const struct change *bad, size_t count)
{
    struct kd_err err;
    for (size_t i = 0; i < count; i++) {
        char copy[16384];
        const char *at = strstr(text->data, bad[i].from);
        assert_non_null(at);
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - text->data), text->data, bad[i].to,
                 at + strlen(bad[i].from));
        assert_int_equal(kd_wire_claim_read(d, copy, strlen(copy), &err), -1);
        if (!strstr(err.msg, bad[i].why))
            fail_msg("'%s' does not say %s", err.msg, bad[i].why);
    }
}

static void a_claim_comes_back(void **state)
{
    (void)state;
    struct farm_layer l;
    struct kd_wire_claim c, d;
    struct kd_err err;
    struct kd_buf text;
    farm_layer_make(&l);
    make_claim(&l, &c, &text);
    if (kd_wire_claim_read(&d, text.data, text.size_bytes, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(d.count, 1);
    assert_true(d.layer.digest == c.layer.digest && d.layer.in.T == FARM_T);
    assert_string_equal(d.layer.hess.sha256, c.layer.hess.sha256);
    assert_memory_equal(d.job[0].spec, c.job[0].spec, sizeof c.job[0].spec);
    assert_int_equal(d.job[0].unit_bytes, c.job[0].unit_bytes);
    static const struct change bad[] = {
        {"\"expert\": 1", "\"expert\": 9", "expert"},
        {"\"rate16\": 32", "\"rate16\": 999", "rate16"},
        {"\"tokens\": 64", "\"tokens\": 65", "bytes where"},
        {"\"stored\": \"bf16\"", "\"stored\": \"bf17\"", "stored as"},
        {"\"seam\": 128", "\"seam\": -1", "seam"},
        {"fedcba98", "fedcba9x", "hex"}};
    refuses_changed(&d, &text, bad, sizeof bad / sizeof *bad);
    kd_buf_release(&text);
    farm_layer_drop(&l);
}

static void a_tensor_comes_back(void **state)
{
    (void)state;
    struct farm_layer l;
    struct kd_wire_claim c = {.count = 1}, d;
    struct kd_err err = {0};
    struct kd_buf text, b;
    int64_t bytes;
    farm_layer_make(&l);
    struct kd_farm_task t = farm_tensor(&l), got = {.hess = &l.h, .digest = 5};
    c.layer = (struct kd_wire_layer){
        .layer = 2, .trunk = true, .in.latent = FARM_LATENT, .hess_rows = l.h.rows, .digest = 7};
    assert_int_equal(kd_wire_hess_put(&b, &l.h, &err), 0);
    c.layer.hess.bytes = (int64_t)b.size_bytes;
    assert_int_equal(kd_sha256_of(b.data, b.size_bytes, c.layer.hess.sha256, &err), 0);
    kd_buf_release(&b);
    c.job[0] = (struct kd_wire_job){.expert = KD_JOB_TRUNK + 3,
                                    .attempt = 1,
                                    .rows = FARM_INTER,
                                    .type = {KD_MAT_BF16},
                                    .spec = {t.spec[0]},
                                    .unit_bytes = kd_farm_unit_bytes(&t)};
    const void *flat = kd_wire_weights_flat(&t, &bytes);
    assert_ptr_equal(flat, t.w1.data);
    assert_int_equal(kd_wire_weights_put(&b, &t, &err), 0);
    assert_int_equal(b.size_bytes, bytes);
    assert_memory_equal(b.data, flat, b.size_bytes);
    c.job[0].weights.bytes = bytes;
    assert_int_equal(kd_sha256_of(b.data, b.size_bytes, c.job[0].weights.sha256, &err), 0);
    kd_buf_init(&text, 1 << 20);
    struct kd_jw w = {.out = &text};
    kd_wire_claim_write(&w, &c);
    if (kd_wire_claim_read(&d, text.data, text.size_bytes, &err))
        fail_msg("%s", err.msg);
    assert_true(d.layer.trunk && d.job[0].expert == KD_JOB_TRUNK + 3 &&
                d.job[0].rows == FARM_INTER);
    assert_int_equal(kd_wire_weights_get(&got, &d.layer, &d.job[0], (const uint8_t *)b.data,
                                         (int64_t)b.size_bytes, &err),
                     0);
    memcpy(got.spec, d.job[0].spec, sizeof got.spec);
    struct kd_run run = {.kern = &farm_kern};
    struct kd_buf one, two;
    assert_int_equal(kd_farm_encode(&run, NULL, &t, &one, &err), 0);
    assert_int_equal(kd_farm_encode(&run, NULL, &got, &two, &err), 0);
    assert_int_equal(one.size_bytes, two.size_bytes);
    assert_memory_equal(one.data, two.data, one.size_bytes);
    kd_buf_release(&one);
    kd_buf_release(&two);
    static const struct change bad[] = {{"\"expert\": 65283", "\"expert\": 3", "expert"},
                                        {"\"rows\": 128", "\"rows\": 129", "bytes where"},
                                        {"\"latent\": 128", "\"latent\": 40000", "would have"}};
    refuses_changed(&d, &text, bad, sizeof bad / sizeof *bad);
    kd_buf_release(&text);
    kd_buf_release(&b);
    farm_layer_drop(&l);
}

static void blobs_come_back(void **state)
{
    (void)state;
    struct farm_layer l;
    struct kd_wire_claim c;
    struct kd_err err;
    struct kd_buf text, b;
    struct kd_hess h;
    int32_t *ids;
    float *w;
    char a[65], z[65];
    farm_layer_make(&l);
    make_claim(&l, &c, &text);
    assert_int_equal(kd_wire_hess_put(&b, &l.h, &err), 0);
    assert_int_equal(b.size_bytes, c.layer.hess.bytes);
    assert_int_equal(kd_wire_hess_get(&h, &c.layer, (const uint8_t *)b.data, &err), 0);
    assert_memory_equal(h.h, l.h.h, sizeof(float) * (size_t)(h.k * h.k));
    assert_int_equal(kd_hess_digest(&h, a, &err) || kd_hess_digest(&l.h, z, &err), 0);
    assert_string_equal(a, z);
    kd_hess_release(&h);
    kd_buf_release(&b);
    assert_int_equal(kd_wire_routing_put(&b, &l.in, &err), 0);
    assert_int_equal(b.size_bytes, c.layer.routing.bytes);
    assert_int_equal(kd_wire_routing_get(&ids, &w, &c.layer, (const uint8_t *)b.data, &err), 0);
    assert_memory_equal(ids, l.ids, sizeof(int32_t) * FARM_T * FARM_TOPK);
    assert_memory_equal(w, l.wts, sizeof(float) * FARM_T * FARM_TOPK);
    kd_mem_free(ids);
    kd_mem_free(w);
    b.data[1] = 1; /* expert 256 and more of 3 */
    assert_int_equal(kd_wire_routing_get(&ids, &w, &c.layer, (const uint8_t *)b.data, &err), -1);
    kd_mem_free(ids);
    kd_mem_free(w);
    kd_buf_release(&b);
    /* Encoded from what came over the wire: the same unit. */
    struct kd_run run = {.kern = &farm_kern};
    struct kd_farm_task t = l.task[1];
    struct kd_buf one, two;
    assert_int_equal(kd_wire_weights_put(&b, &l.task[1], &err), 0);
    assert_int_equal(kd_wire_weights_get(&t, &c.layer, &c.job[0], (const uint8_t *)b.data,
                                         (int64_t)b.size_bytes, &err),
                     0);
    assert_int_equal(kd_farm_encode(&run, &l.in, &l.task[1], &one, &err), 0);
    assert_int_equal(kd_farm_encode(&run, &l.in, &t, &two, &err), 0);
    assert_int_equal(one.size_bytes, two.size_bytes);
    assert_memory_equal(one.data, two.data, one.size_bytes);
    kd_buf_release(&one);
    kd_buf_release(&two);
    kd_buf_release(&b);
    kd_buf_release(&text);
    farm_layer_drop(&l);
}

static void addresses(void **state)
{
    (void)state;
    struct kd_err err;
    struct kd_wire_put p;
    char text[200], sha[65];
    int64_t part;
    const char *d = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    snprintf(text, sizeof text, "12.345.6.%s.7890", d);
    assert_int_equal(kd_wire_put_read(&p, text, &err), 0);
    assert_true(p.layer == 12 && p.expert == 345 && p.attempt == 6 && p.ms == 7890);
    snprintf(text, sizeof text, "%s.3", d);
    assert_int_equal(kd_wire_blob_read(sha, &part, text, &err), 0);
    assert_true(part == 3 && !strcmp(sha, d));
    static const char *const bad[] = {
        "", "1.2.3", "1.2.3.../../etc/passwd.1", "99999.1.1.x.1", "..", "1.2.3.0123.4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kd_wire_put_read(&p, bad[i], &err), -1);
        assert_int_equal(kd_wire_blob_read(sha, &part, bad[i], &err), -1);
    }
}

int main(void)
{
    struct kd_err err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_claim_comes_back), cmocka_unit_test(a_tensor_comes_back),
        cmocka_unit_test(blobs_come_back), cmocka_unit_test(addresses)};
    if (kd_kern_pick(&farm_kern, &err))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
