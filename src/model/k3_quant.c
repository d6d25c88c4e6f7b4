#include "model/k3_quant.h"

#include "fmt/exl3_file.h"

#include <math.h>
#include <string.h>

/* What of the trunk is quantized (Decision 2); everything else stays as stored. */
static const struct {
    const char *row;
    int extra_bits; /* over --trunk-bpw */
} linears[] = {
    {"self_attn.q_proj", 0},
    {"self_attn.k_proj", 0},
    {"self_attn.v_proj", 0},
    {"self_attn.g_proj", 0},
    {"self_attn.o_proj", 1},
    {"self_attn.q_a_proj", 0},
    {"self_attn.q_b_proj", 0},
    {"mlp.gate_proj", 0},
    {"mlp.up_proj", 0},
    {"mlp.down_proj", 0},
    {"block_sparse_moe.shared_experts.gate_proj", 0},
    {"block_sparse_moe.shared_experts.up_proj", 0},
    {"block_sparse_moe.shared_experts.down_proj", 0},
    {"block_sparse_moe.routed_expert_down_proj", 2},
    {"block_sparse_moe.routed_expert_up_proj", 2},
};

unsigned kd_k3_rate16(double bits)
{
    double x = floor(bits * 16 + 0.5);
    return x < KD_RATE16_MIN ? KD_RATE16_MIN : x > KD_RATE16_MAX ? KD_RATE16_MAX : (unsigned)x;
}

unsigned kd_k3_trunk_rate16(const char *row, size_t n, double trunk_bpw)
{
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        if (strlen(linears[i].row) == n && !memcmp(row, linears[i].row, n))
            return trunk_bpw > 0 ? kd_k3_rate16(trunk_bpw + linears[i].extra_bits) : 0;
    return 0;
}

bool kd_k3_pads_well(int64_t rows, int64_t cols)
{
    return kd_exl3_pad(rows) * kd_exl3_pad(cols) * 4 <= rows * cols * 5;
}
