/* The shipped model, for targets that need a tokenizer or a model: its folder, and its tokenizer,
 * opened at the first call and kept. */
#ifndef KD_FUZZ_NANO_H
#define KD_FUZZ_NANO_H

#include "base/assert.h"
#include "text/tok.h"

#include <stdio.h>
#include <stdlib.h>

static inline const char *fuzz_nano(char dir[4096])
{
    const char *root = getenv("KONDENSE_TEST_DATA");
    snprintf(dir, 4096, "%s/k3-nano", root ? root : "tests/data");
    return dir;
}

static inline struct kd_tok *fuzz_tok(void)
{
    static struct kd_tok *tok;
    struct kd_err err;
    char dir[4096];
    if (!tok)
        KD_ASSERT(!kd_tok_open(&tok, fuzz_nano(dir), &err));
    return tok;
}

#endif
