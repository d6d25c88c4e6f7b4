/* Checkpoints of any legal shape with random weights, in the released layout: for tests and benches
 * of shapes that no small trained model has. Deterministic in (config, seed). Experts are MXFP4,
 * the rest BF16 and F32 as in the release; one shard a layer and one for the ends; a byte-level
 * tokenizer (256 ranks and 256 special slots). */
#ifndef KD_CONVERT_SYNTH_H
#define KD_CONVERT_SYNTH_H

#include "base/err.h"

#include <stdint.h>

/* Reads the config and writes the model into dst (made if missing). */
int kd_synth_write(const char *config_path, const char *dst, uint64_t seed,
                   struct kd_err *err) KD_MUST;

#endif
