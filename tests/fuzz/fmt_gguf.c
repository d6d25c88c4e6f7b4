/* Any bytes as the head of a GGUF: refused, asking for more, or each tensor lies inside the file
 * and a plan of what was read gives the same head again; then its keys as a config. */
#include "fmt/gguf.h"
#include "fmt/gguf_config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void plan_again(const struct kd_gguf *g, const uint8_t *data)
{
    struct kd_gguf_plan p;
    struct kd_err err;
    struct kd_buf head;
    kd_gguf_plan_init(&p);
    kd_buf_init(&head, KD_GGUF_HEAD_MAX);
    p.version = g->version;
    for (int64_t i = 0; i < g->kv_count; i++)
        kd_gguf_plan_copy(&p, &g->kv[i]);
    for (int64_t i = 0; i < g->tensor_count; i++) {
        const struct kd_gguf_tensor *t = &g->tensors[i];
        int64_t offset;
        if (kd_gguf_plan_tensor(&p, t->name, t->type, t->rank, t->ne, &offset, &err) ||
            offset != t->offset)
            abort();
    }
    if (kd_gguf_plan_head(&p, &head, &err) || (int64_t)head.size_bytes != g->data_offset ||
        memcmp(head.data, data, (size_t)g->head_bytes) != 0)
        abort();
    kd_buf_release(&head);
    kd_gguf_plan_release(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_gguf g;
    struct kd_err err;
    int64_t size = (int64_t)bytes, need;
    /* A remote file of which only this much is here. */
    if (!kd_gguf_parse(&g, data, size, INT64_C(1) << 50, "fuzz", &need, &err)) {
        if (need && need <= size)
            abort();
        kd_gguf_release(&g);
    }
    if (kd_gguf_parse(&g, data, size, size, "fuzz", NULL, &err))
        return 0;
    for (int64_t i = 0; i < g.tensor_count; i++) {
        const struct kd_gguf_tensor *t = &g.tensors[i];
        if (t->offset < 0 || t->bytes < 1 || t->bytes > size - g.data_offset - t->offset ||
            kd_gguf_find(&g, t->name) != t)
            abort();
    }
    for (int64_t i = 0; i < g.kv_count; i++) {
        const char *text;
        int64_t at = 0, n, number, sum = 0;
        (void)!kd_gguf_item(&g.kv[i], g.kv[i].count - 1, &number);
        while (kd_gguf_next_str(&g.kv[i], &at, &text, &n))
            for (int64_t c = 0; c < n; c++)
                sum += text[c];
        if (sum > INT64_C(255) * size)
            abort();
    }
    plan_again(&g, data);
    char path[] = "fuzz";
    struct kd_gguf_part part = {.path = path, .head = g};
    struct kd_gguf_set set = {.parts = &part, .part_count = 1};
    struct kd_json *config;
    if (!kd_gguf_config(&config, &set, &err))
        kd_json_free(config);
    const struct kd_gguf *heads[] = {&g};
    (void)!kd_gguf_set_check(heads, 1, &err);
    kd_gguf_release(&g);
    return 0;
}
