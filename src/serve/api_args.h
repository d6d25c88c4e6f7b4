/* Tool arguments between what the model wrote and what the tool's schema asks for. */
#ifndef KD_SERVE_API_ARGS_H
#define KD_SERVE_API_ARGS_H

#include "text/jtree.h"

enum {
    KD_TYPE_NULL = 1,
    KD_TYPE_BOOL = 2,
    KD_TYPE_INT = 4,
    KD_TYPE_NUM = 8,
    KD_TYPE_STR = 16,
    KD_TYPE_ARRAY = 32,
    KD_TYPE_OBJECT = 64,
    KD_TYPE_ALL = 127
};

/* Types that the schema (of "parameters") gives an argument: 0 when it does not say. */
unsigned kd_arg_types(const struct kd_jtree *t, const struct kd_jnode *schema, const char *key);
/* The value as JSON: text is what the model wrote, `string` whether it called it one. */
void kd_arg_value(struct kd_buf *out, const char *text, size_t bytes, bool string, unsigned types);

#endif
