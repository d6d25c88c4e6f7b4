/* EXL3 on disk: names and shapes of one quantized linear, and finding it in a checkpoint (EXL3
 * specification 1.1). Whole rates are stored as KEY.trellis [k/16, n/16, 16*K] I16. A masked rate
 * is Kondense's own extension and is stored under another name, KEY.ktrellis [k/16, n/16,
 * sixteenths] with KEY.kmask (I32 scalar), so that a loader that does not know it refuses the file.
 * kd_rate half rates written by others (fractional K in .trellis) are read too.
 *
 * The rows and cols of the model's matrix come from the caller (the config), the stored sizes are
 * those padded to 128. */
#ifndef KD_FMT_EXL3_FILE_H
#define KD_FMT_EXL3_FILE_H

#include "fmt/ckpt.h"
#include "fmt/st_write.h"
#include "num/trellis_step.h"

struct kd_exl3_tensor {
    int64_t k, n; /* padded inputs, outputs */
    struct kd_rate rate;
    enum kd_codebook cb;
    const uint8_t *codes;
    const uint16_t *suh, *svh;
    int64_t codes_bytes;
    int64_t bytes; /* all stored tensors of the group */
};

/* key without suffix ("...experts.3.w1"). *found = false when KEY has no trellis at all. */
int kd_exl3_find(const struct kd_ckpt *ck, const char *key, struct kd_exl3_tensor *out, bool *found,
                 struct kd_err *err) KD_MUST;

int64_t kd_exl3_pad(int64_t dim); /* to a multiple of 128 */
/* Adds the group's tensors to a plan, in the order kd_exl3_put writes them: trellis|ktrellis, suh,
 * svh, mul1|mcg, kmask. */
int kd_exl3_plan(struct kd_st_plan *p, const char *key, int64_t k, int64_t n, struct kd_rate rate,
                 enum kd_codebook cb, struct kd_err *err) KD_MUST;
int kd_exl3_put(struct kd_st_writer *w, const struct kd_exl3_tensor *t, struct kd_err *err) KD_MUST;
/* Its last part, the scalars that name codebook and mask, for who streams the others. */
int kd_exl3_put_marks(struct kd_st_writer *w, struct kd_rate rate, enum kd_codebook cb,
                      struct kd_err *err) KD_MUST;
/* Bytes of the group's tensors (no header). */
int64_t kd_exl3_bytes(int64_t k, int64_t n, struct kd_rate rate, enum kd_codebook cb);

#endif
