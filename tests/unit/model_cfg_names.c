/* model/k3_names: names to kinds, shapes and counts; hostile numbers; the shipped model has exactly
 * what the table expects. */
#include "model/k3_names.h"

#include "fmt/ckpt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kd_ckpt *ck;
static struct kd_k3_cfg cfg;
static struct kd_k3_map map;
static struct kd_err err;

static int open_nano(void **state)
{
    (void)state;
    char path[1024];
    const char *dir = getenv("KONDENSE_TEST_DATA");
    snprintf(path, sizeof path, "%s/k3-nano", dir ? dir : "tests/data");
    if (kd_ckpt_open(&ck, path, false, &err) ||
        kd_k3_cfg_parse(&cfg, kd_ckpt_config(ck), NULL, &err) ||
        kd_k3_map_init(&map, &cfg, kd_ckpt_config(ck), &err)) {
        print_message("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int close_nano(void **state)
{
    (void)state;
    kd_ckpt_close(ck);
    return 0;
}

static void every_tensor_fits(void **state)
{
    (void)state;
    static int32_t seen[KD_K3_LAYERS_MAX + 1][KD_K3_ROWS_MAX];
    int64_t params = 0;
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < kd_ckpt_count(ck); i++) {
        const struct kd_tensor *t = kd_ckpt_at(ck, i);
        struct kd_k3_name n;
        if (!kd_k3_name_parse(&map, t->name, &n))
            fail_msg("%s is not known", t->name);
        if (n.rank != t->rank || memcmp(n.shape, t->shape, (size_t)n.rank * sizeof *n.shape) != 0 ||
            strcmp(n.dtype, t->dtype_name) != 0)
            fail_msg("%s has another shape or dtype than the table says", t->name);
        params += n.params;
        seen[n.layer + 1][n.row] += n.part != KD_K3_SCALE;
    }
    assert_int_equal(params, 21071424);
    for (int64_t l = -1; l < KD_K3_LAYERS_MAX; l++)
        for (int r = 0; r < kd_k3_row_count(); r++)
            if (seen[l + 1][r] != kd_k3_row_expect(&map, r, l))
                fail_msg("layer %lld, %s: %d there, %lld expected", (long long)l, kd_k3_row_name(r),
                         seen[l + 1][r], (long long)kd_k3_row_expect(&map, r, l));
}

static struct kd_k3_name parsed(const char *name)
{
    struct kd_k3_name n;
    if (!kd_k3_name_parse(&map, name, &n))
        fail_msg("%s is not known", name);
    return n;
}

static void parts(void **state)
{
    (void)state;
    struct kd_k3_name n =
        parsed("language_model.model.layers.8.block_sparse_moe.experts.31.w2.weight_scale");
    assert_int_equal(n.kind, KD_K3_ROUTED);
    assert_int_equal(n.part, KD_K3_SCALE);
    assert_int_equal(n.layer, 8);
    assert_int_equal(n.expert, 31);
    assert_int_equal(n.shape[1], 4);
    assert_int_equal(n.params, 0);
    n = parsed("model.layers.8.block_sparse_moe.experts.0.w1.trellis");
    assert_int_equal(n.part, KD_K3_CODES);
    assert_int_equal(n.params, 128 * 128);
    assert_int_equal(n.rows, 128);
    n = parsed("language_model.model.layers.0.self_attn.o_proj.svh");
    assert_int_equal(n.part, KD_K3_SIDE);
    assert_int_equal(n.kind, KD_K3_KDA);
    assert_int_equal(parsed("language_model.model.layers.3.self_attn.o_proj.weight").kind,
                     KD_K3_MLA);
    assert_int_equal(parsed("language_model.model.layers.3.self_attn.g_proj.weight").kind,
                     KD_K3_MLA);
    assert_int_equal(parsed("model.layers.0.self_attn.g_proj.weight").kind, KD_K3_KDA);
    assert_int_equal(parsed("lm_head.trellis").kind, KD_K3_HEAD);
    assert_int_equal(parsed("model.layers.1.block_sparse_moe.gate.weight").kind, KD_K3_ROUTER);
    assert_int_equal(parsed("model.layers.1.block_sparse_moe.gate.e_score_correction_bias").kind,
                     KD_K3_ROUTER);
    assert_int_equal(parsed("mm_projector.proj.2.weight").kind, KD_K3_PROJECTOR);
    assert_int_equal(parsed("vision_tower.encoder.blocks.1.mlp.fc1.weight").layer, 1);
}

static void unknown(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",
        "language_model.",
        "model.layers.",
        "model.layers.0",
        "model.layers.0.",
        "lm_head",
        "lm_head.",
        "lm_head.weights",
        "lm_headweight",
        "model.norm.trellis",
        "model.layers.9.input_layernorm.weight",
        "model.layers.-1.input_layernorm.weight",
        "model.layers.00.input_layernorm.weight",
        "model.layers.01.input_layernorm.weight",
        "model.layers. 1.input_layernorm.weight",
        "model.layers.99999999999999999999.input_layernorm.weight",
        "model.layers.4294967296.input_layernorm.weight",
        "model.layers.1.block_sparse_moe.experts.32.w1.weight_packed",
        "model.layers.1.block_sparse_moe.experts.1.w4.weight_packed",
        "model.layers.1.block_sparse_moe.experts.1.w1",
        "model.layers.1.block_sparse_moe.experts.1.w1.weight_shape",
        "model.layers.1.block_sparse_moe.experts.*.w1.weight",
        "model.layers.0.block_sparse_moe.experts.1.w1.weight_packed",
        "model.layers.0.block_sparse_moe.gate.weight",
        "model.layers.1.mlp.gate_proj.weight",
        "model.layers.0.self_attn.q_a_proj.weight",
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.A_log",
        "model.layers.0.lm_head.weight",
        "model.layers.0.self_attn.A_log.weight",
        "model.layers.0.self_attn.A_log.trellis",
        "model.layers.0.self_attn.indexer.wq_b.weight",
        "norm0.weight",
        "model.layers.0.norm0.weight",
        "vision_tower.encoder.blocks.2.norm0.weight",
        "vision_tower.encoder.blocks.0.input_layernorm.weight",
        "input_layernorm.weight",
        "mm_projector.proj.1.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kd_k3_name n;
        if (kd_k3_name_parse(&map, names[i], &n))
            fail_msg("'%s' was taken for %s", names[i], kd_k3_row_name(n.row));
        assert_int_equal(n.kind, KD_K3_UNKNOWN);
        assert_int_equal(n.row, -1);
        assert_int_equal(n.layer, -1);
        assert_int_equal(n.params, 0);
    }
}

static void vision_bounds(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"vision_config\":{}}",
                                        "{\"vision_config\":{\"vt_num_hidden_layers\":-1}}",
                                        "{\"vision_config\":{\"vt_num_hidden_layers\":2,\"vt_"
                                        "hidden_size\":64,\"vt_intermediate_size\":128,"
                                        "\"patch_size\":14,\"init_pos_emb_height\":8,\"init_pos_"
                                        "emb_width\":8,\"merge_kernel_size\":[1000000,2]}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kd_json *c;
        struct kd_k3_map m;
        assert_int_equal(kd_json_parse(&c, texts[i], strlen(texts[i]), "t", &err), 0);
        assert_int_equal(kd_k3_map_init(&m, &cfg, c, &err), -1);
        assert_non_null(strstr(err.msg, "vision_config"));
        kd_json_free(c);
    }
    struct kd_json *c;
    struct kd_k3_map m;
    struct kd_k3_name n;
    assert_int_equal(kd_json_parse(&c, "{}", 2, "t", &err), 0);
    assert_int_equal(kd_k3_map_init(&m, &cfg, c, &err), 0);
    assert_false(kd_k3_name_parse(&m, "vision_tower.patch_embed.proj.weight", &n));
    kd_json_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_fits),
        cmocka_unit_test(parts),
        cmocka_unit_test(unknown),
        cmocka_unit_test(vision_bounds),
    };
    return cmocka_run_group_tests(tests, open_nano, close_nano);
}
