/* Values of made tensors: each is a function of the tensor's seed and its own number. */
#include "base/rand.h"
#include "convert/synth_int.h"
#include "num/half.h"

#include <string.h>

/* Counts of the 16 MXFP4 codes among 256 values, as 64 rows of a released expert have them
 * (229,376 codes: k3_l1_e0_w1_rows64); each is within 0.2 % of all values of what was counted. */
static const uint8_t code_counts[16] = {15, 28, 24, 20, 19, 14, 6, 1, 15, 29, 25, 20, 20, 13, 6, 1};
/* Their scales lie on three neighbouring exponents, 15.4 %, 84.1 % and 0.5 % of 7,168: in 256ths.
 */
static const uint8_t scale_counts[2] = {39, 215};

/* The code of each of 256 equally likely values. */
static void code_table(uint8_t table[256])
{
    int at = 0;
    for (int code = 0; code < 16; code++)
        for (int i = 0; i < code_counts[code] && at < 256; i++)
            table[at++] = (uint8_t)code;
}

static float value(const struct kd_synth_item *it, uint64_t i)
{
    switch (it->kind) {
    case KD_SYNTH_BELL:
        return kd_rand_bell(it->seed, i) * it->gain;
    case KD_SYNTH_NORM:
        return 1 + 0.1f * kd_rand_bell(it->seed, i);
    case KD_SYNTH_UNIT:
        return (float)kd_rand_unit(it->seed, i);
    case KD_SYNTH_SIGNS: {
        float x = (1 + 0.1f * kd_rand_bell(it->seed, i)) * it->gain;
        return kd_rand_u64(~it->seed, i) & 1 ? -x : x;
    }
    case KD_SYNTH_CODES:
    case KD_SYNTH_SCALES:
    case KD_SYNTH_BITS:
        break;
    }
    return 0;
}

static int width_of(const struct kd_synth_item *it)
{
    return it->type == 'f' ? 4 : it->type == 'u' ? 1 : 2;
}

int64_t kd_synth_row_bytes(const struct kd_synth_item *i)
{
    return i->cols * width_of(i);
}

/* Four bytes of codes from each random word. */
static void codes(const struct kd_synth_item *it, const uint8_t table[256], uint64_t first,
                  uint8_t *out)
{
    uint64_t x = 0;
    for (int64_t c = 0; c < it->cols; c++) {
        uint64_t i = first + (uint64_t)c;
        if (!c || i % 4 == 0)
            x = kd_rand_u64(it->seed, i / 4);
        uint64_t two = x >> (16 * (i % 4));
        out[c] = (uint8_t)(table[two & 0xff] | table[two >> 8 & 0xff] << 4);
    }
}

static void scales(const struct kd_synth_item *it, uint64_t first, uint8_t *out)
{
    for (int64_t c = 0; c < it->cols; c++) {
        uint64_t i = first + (uint64_t)c, u = kd_rand_u64(it->seed, i) & 0xff;
        int over = u < scale_counts[0] ? 0 : u < scale_counts[0] + scale_counts[1] ? 1 : 2;
        out[c] = (uint8_t)((int)it->gain + over);
    }
}

static void bits(const struct kd_synth_item *it, int64_t row, uint8_t *out)
{
    int64_t words = (it->cols + 7) / 8;
    int64_t tile = (it->row0 + row / it->grid) * it->whole_grid + it->col0 + row % it->grid;
    for (int64_t k = 0; k < words; k++) {
        uint64_t x = kd_rand_u64(it->seed, (uint64_t)(tile * words + k));
        memcpy(out + 8 * k, &x, (size_t)(it->cols - 8 * k < 8 ? it->cols - 8 * k : 8));
    }
}

static void values(const struct kd_synth_item *it, uint64_t first, uint8_t *out)
{
    for (int64_t c = 0; c < it->cols; c++) {
        float x = value(it, first + (uint64_t)c);
        uint16_t half = it->type == 'h' ? kd_f32_f16(x) : kd_f32_bf16(x);
        if (it->type == 'f')
            memcpy(out + 4 * c, &x, 4);
        else
            memcpy(out + 2 * c, &half, 2);
    }
}

void kd_synth_rows(const struct kd_synth_item *it, int64_t lo, int64_t hi, uint8_t *out)
{
    uint8_t table[256] = {0};
    int64_t bytes = kd_synth_row_bytes(it);
    if (it->kind == KD_SYNTH_CODES)
        code_table(table);
    for (int64_t r = lo; r < hi; r++, out += bytes) {
        uint64_t first = (uint64_t)((it->row0 + r) * it->whole_cols + it->col0);
        if (it->kind == KD_SYNTH_CODES)
            codes(it, table, first, out);
        else if (it->kind == KD_SYNTH_SCALES)
            scales(it, first, out);
        else if (it->kind == KD_SYNTH_BITS)
            bits(it, r, out);
        else
            values(it, first, out);
    }
}
