/* Any bytes as config.json: refused, or every size is inside its bounds, and names are parsed with
 * it. */
#include "model/k3_names.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {
        "model.layers.1.block_sparse_moe.experts.0.w2.weight_packed",
        "model.layers.0.self_attn.A_log", "lm_head.trellis", "vision_tower.patch_embed.proj.weight",
        "mm_projector.proj.0.weight"};
    struct kd_json *root;
    struct kd_k3_cfg c;
    struct kd_k3_map m;
    struct kd_err err;
    struct kd_buf unknown;
    if (kd_json_parse(&root, (const char *)data, bytes, "fuzz", &err))
        return 0;
    kd_buf_init(&unknown, 1 << 20);
    if (!kd_k3_cfg_parse(&c, root, &unknown, &err)) {
        if (c.layers < 1 || c.layers > KD_K3_LAYERS_MAX || c.topk > c.experts || c.eos >= c.vocab ||
            c.dense_layers > c.layers || memchr(c.arch, 0, sizeof c.arch) == NULL)
            abort();
        if (!kd_k3_cfg_check(&c, root, &err) && (!c.block || !c.latent || kd_k3_banks(&c) < 1))
            abort();
        if (!kd_k3_map_init(&m, &c, root, &err))
            for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                struct kd_k3_name n;
                if (kd_k3_name_parse(&m, names[i], &n) && n.params < 0)
                    abort();
            }
    }
    kd_buf_release(&unknown);
    kd_json_free(root);
    return 0;
}
