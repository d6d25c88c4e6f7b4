/* Any bytes as a GGUF with a tokenizer in its keys: refused, or what it encodes decodes to itself.
 */
#include "base/mem.h"
#include "fmt/gguf.h"
#include "text/tok_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] = "Hello, w\xc3\xb6rld! 123  \n";
    struct kd_gguf g;
    struct kd_err err;
    if (kd_gguf_parse(&g, data, (int64_t)bytes, -1, "fuzz", NULL, &err))
        return 0;
    struct kd_tok *t;
    if (kd_mem_zero(&t, 1, sizeof *t, "tokenizer", &err) || kd_uclass_open(&t->classes, &err))
        abort();
    if (kd_gguf_key(&g, "tokenizer.ggml.tokens") && !kd_tok_read_gguf(t, &g, &err)) {
        struct kd_ids ids = {0};
        struct kd_buf back;
        kd_buf_init(&back, 1 << 16);
        if (kd_tok_encode(t, text, sizeof text - 1, &ids, &err) ||
            kd_tok_decode(t, ids.id, ids.count, &back, &err) ||
            back.size_bytes != sizeof text - 1 || memcmp(back.data, text, sizeof text - 1) != 0)
            abort();
        kd_buf_release(&back);
        kd_ids_release(&ids);
    }
    kd_tok_close(t);
    kd_gguf_release(&g);
    return 0;
}
