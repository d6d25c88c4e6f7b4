/* The keys of a GGUF of architecture "kimi-k3" told as the config.json of the same model, so that
 * whoever reads a config reads both. Keys without which a loader would go on with wrong defaults
 * are errors when they are missing. *config is NULL for any other architecture: the tensors can
 * still be listed. */
#ifndef KD_FMT_GGUF_CONFIG_H
#define KD_FMT_GGUF_CONFIG_H

#include "base/json.h"
#include "fmt/gguf.h"

int kd_gguf_config(struct kd_json **config, const struct kd_gguf_set *set,
                   struct kd_err *err) KD_MUST;

#endif
