/* Any two receipts to mix by, and the other JSON files of the two models, a zero byte between them:
 * refused, or a mix of shards that both have, whose files are JSON. The input is also what a made
 * model says of itself. */
#include "base/assert.h"
#include "base/json.h"
#include "convert/mix.h"
#include "convert/synth.h"
#include "fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { SHARDS = 4 };

/* What is written is JSON, or the mix is refused. */
static void write_mix(const struct kd_mix *m, const char *a, const char *b)
{
    static const char *const made[] = {"kondense.json", "quantization_config.json",
                                       "model.safetensors.index.json", "config.json"};
    struct kd_json *root;
    struct kd_err err;
    char dst[100], path[200];
    for (int s = 0; s < m->shards; s++)
        for (int side = 0; side < 2; side++) {
            snprintf(path, sizeof path, "%s/model-%05d-of-%06d.safetensors", side ? "b" : "a",
                     s + 1, m->shards);
            fuzz_file(path, "", 0);
        }
    snprintf(dst, sizeof dst, "%s/mix", fuzz_dir());
    int rc = kd_mix_write(m, a, b, dst, &err);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dst, made[i]);
        if (kd_file_exists(path)) {
            KD_ASSERT(!kd_json_load(&root, path, 1 << 26, &err));
            kd_json_free(root);
        } else {
            KD_ASSERT(rc);
        }
    }
    KD_ASSERT(!kd_dir_remove(dst, &err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct kd_mix m;
    struct kd_synth_made made;
    struct kd_err err;
    char a[100], b[100];
    const int64_t size = 5000;
    static const char *const files[] = {
        "a/kondense.json",
        "b/kondense.json",
        "a/quantization_config.json",
        "b/quantization_config.json",
        "a/model.safetensors.index.json",
        "b/model.safetensors.index.json",
        "a/config.json",
    };
    snprintf(a, sizeof a, "%s/a", fuzz_dir());
    snprintf(b, sizeof b, "%s/b", fuzz_dir());
    KD_ASSERT(!kd_dir_make(a, &err) && !kd_dir_make(b, &err));
    fuzz_file("a/synth.json", data, bytes);
    if (kd_synth_made_of(a, &made))
        KD_ASSERT(made.first >= 0 && made.last >= made.first && made.last < made.of &&
                  made.rank >= 0 && made.rank < made.ranks);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        bytes = fuzz_next_file(files[i], &data, bytes);
    if (kd_mix_plan(&m, a, b, size, &err)) {
        KD_ASSERT(err.code == KD_ECORRUPT || err.code == KD_EINVAL || err.code == KD_EUSAGE);
        return 0;
    }
    KD_ASSERT(m.layers >= 1 && m.layers < m.shards && m.shards <= KD_MIX_SHARDS_MAX);
    KD_ASSERT(m.a_bytes >= 0 && m.a_bytes <= m.b_bytes && m.layers_from_b <= m.layers);
    if (m.shards <= SHARDS)
        write_mix(&m, a, b);
    return 0;
}
