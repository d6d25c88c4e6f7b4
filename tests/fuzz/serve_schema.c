/* Any bytes as a JSON schema (after a byte of flags and two of seed): refused with a reason, or
 * rules that a walk through their masks can follow. */
#include "base/assert.h"
#include "base/rand.h"
#include "fuzz/nano.h"
#include "serve/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct kd_tok *tok;
static struct kd_vocab *vocab;

static void open_vocab(void)
{
    struct kd_err err;
    if (vocab)
        return;
    tok = fuzz_tok();
    KD_ASSERT(!kd_vocab_open(&vocab, tok, &err));
}

static void walk(const struct kd_grammar *g, uint64_t seed)
{
    static uint64_t bits[1 << 10];
    int64_t n = kd_tok_vocab(tok);
    struct kd_turn_rule *r;
    struct kd_err err;
    if (kd_turn_rule_open(&r, g, &err))
        return;
    for (uint64_t i = 0; i < 40 && !kd_turn_rule_done(r); i++) {
        memset(bits, 0xff, sizeof bits);
        if (kd_turn_rule_mask(r, bits, n, &err)) /* a number's bounds too narrow to spell */
            break;
        int32_t id = (int32_t)(kd_rand_u64(seed, i) % (uint64_t)n);
        while (!(bits[id / 64] >> (id % 64) & 1))
            id = (int32_t)((id + 1) % n);
        KD_ASSERT(!kd_turn_rule_take(r, id, &err));
    }
    kd_turn_rule_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kd_jtree t;
    struct kd_grammar *g;
    struct kd_err err;
    open_vocab();
    if (bytes < 3 || bytes > 4096 || kd_jtree_parse(&t, (const char *)data + 3, bytes - 3, &err))
        return 0;
    const struct kd_jnode *root = kd_jtree_root(&t);
    struct kd_grammar_tool tool = {"f", &t, root->kind == KD_JSON_OBJECT ? root : NULL};
    bool calls = data[0] & 1;
    struct kd_grammar_spec s = {.think = data[0] & 2,
                                .answer = calls ? KD_ANSWER_TEXT : KD_ANSWER_SCHEMA,
                                .tree = &t,
                                .schema = root,
                                .calls = calls ? KD_CALLS_MUST : KD_CALLS_NONE,
                                .tools = &tool,
                                .tool_count = 1};
    err.msg[0] = 0;
    if (kd_grammar_compile(&g, vocab, &s, &err)) {
        KD_ASSERT(err.msg[0]);
    } else {
        KD_ASSERT(kd_grammar_states(g) <= KD_GRAMMAR_STATES_MAX);
        walk(g, data[1] + 256u * data[2]);
        kd_grammar_close(g);
    }
    kd_jtree_release(&t);
    return 0;
}
