/* Any bytes as a model's config.json, slice.json and kondense.json, a zero byte between them,
 * beside one shard: refused, or a receipt that can be judged and printed. */
#include "base/assert.h"
#include "fuzz/files.h"
#include "slice/facts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Of an expert of a model with MXFP4 codes, and an embedding. */
static const char header[] =
    "{\"model.layers.1.block_sparse_moe.experts.0.w1.weight_packed\":{\"dtype\":\"U8\",\"shape\":"
    "[4,16],\"data_offsets\":[0,64]},\"model.layers.1.block_sparse_moe.experts.0.w1.weight_scale\":"
    "{\"dtype\":\"U8\",\"shape\":[4,1],\"data_offsets\":[64,68]},\"model.embed_tokens.weight\":"
    "{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[68,76]}}";

static void put_shard(void)
{
    uint8_t file[8 + sizeof header - 1 + 76] = {0};
    uint64_t n = sizeof header - 1;
    memcpy(file, &n, 8);
    memcpy(file + 8, header, sizeof header - 1);
    fuzz_file("model.safetensors", file, sizeof file);
}

static void print(const struct kd_facts *f)
{
    struct kd_json *root;
    struct kd_buf b;
    struct kd_err err;
    kd_buf_init(&b, 16 << 20);
    kd_facts_text(&b, f);
    kd_facts_ladder(&b, f, 1);
    kd_buf_clear(&b);
    kd_facts_json(&b, f, 1);
    KD_ASSERT(!kd_buf_ok(&b, "receipt", &err) &&
              !kd_json_parse(&root, b.data, b.size_bytes, "receipt", &err));
    kd_json_free(root);
    kd_buf_clear(&b);
    kd_facts_html(&b, f, 1);
    KD_ASSERT(!kd_buf_ok(&b, "receipt", &err));
    kd_buf_release(&b);
}

static void record(const struct kd_facts *f)
{
    const struct kd_slice_record *r = &f->record;
    for (int64_t i = 0; i < r->layer_count; i++)
        KD_ASSERT(r->layers_kept[i] >= 0 && r->layers_kept[i] < r->layers);
    for (int64_t i = 0; i < r->lists * r->expert_count; i++)
        KD_ASSERT(r->experts_kept[i] >= 0 && r->experts_kept[i] < r->experts);
}

/* What the record says is believed when its hash is right: so it is written anew with one. */
static void seal(void)
{
    struct kd_slice_record r;
    struct kd_source *src;
    struct kd_heads *h;
    struct kd_buf b;
    struct kd_err err;
    bool found, intact;
    if (kd_source_open(&src, fuzz_dir(), NULL, &err))
        return;
    if (!kd_heads_open(&h, src, &err)) {
        if (!kd_slice_record_read(&r, h, &found, &intact, &err) && found) {
            kd_buf_init(&b, 64 << 20);
            KD_ASSERT(!kd_slice_record_json(&b, &r, &err));
            fuzz_file("slice.json", b.data, b.size_bytes);
            kd_buf_release(&b);
            kd_slice_record_release(&r);
        }
        kd_heads_close(h);
    }
    kd_source_close(src);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_facts_opts o = {.declared_params = 1e9};
    struct kd_source *src;
    struct kd_heads *h;
    struct kd_facts f;
    struct kd_err err;
    put_shard();
    bytes = fuzz_next_file("config.json", &data, bytes);
    bytes = fuzz_next_file("slice.json", &data, bytes);
    fuzz_next_file("kondense.json", &data, bytes);
    seal();
    if (kd_source_open(&src, fuzz_dir(), NULL, &err))
        return 0;
    if (!kd_heads_open(&h, src, &err)) {
        if (!kd_facts_make(&f, h, &o, &err)) {
            record(&f);
            KD_ASSERT(!kd_facts_want(&f, "missing=0.5,routed=0.1,active=0.1,claims,gate", &err));
            if (kd_facts_judge(&f, &err))
                KD_ASSERT(err.code == KD_EGATE);
            print(&f);
            kd_facts_release(&f);
        }
        kd_heads_close(h);
    }
    kd_source_close(src);
    return 0;
}
