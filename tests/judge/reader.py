#!/usr/bin/env python3
"""The Python package gguf reads what `convert --to gguf` wrote: SRC FILE. Every key the loader of llama.cpp asks
for, and every tensor's values against the source's, by the formulas of the format written again here."""
import json
import pathlib
import struct
import sys

try:
    import gguf
    import numpy as np
except ImportError as e:
    print(f"skipped: {e.name} is not there (tools/judges.sh installs it)")
    sys.exit(77)

src, reader = pathlib.Path(sys.argv[1]), gguf.GGUFReader(sys.argv[2])
cfg = json.loads((src / "config.json").read_text())["text_config"]
lin, heads, layers = cfg["linear_attn_config"], cfg["num_attention_heads"], cfg["num_hidden_layers"]


def source():
    out = {}
    for path in sorted(src.glob("model-*.safetensors")):
        raw = path.read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        for name, t in json.loads(raw[8:8 + n]).items():
            if name == "__metadata__":
                continue
            a, b = t["data_offsets"]
            data = np.frombuffer(raw, np.uint8, b - a, 8 + n + a)
            if t["dtype"] == "BF16":
                data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            elif t["dtype"] == "F32":
                data = data.view(np.float32)
            out[name.removeprefix("language_model.")] = data.reshape(t["shape"])
    return out


S = source()
FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def expert(name):
    packed, scale = S[name + ".weight_packed"], S[name + ".weight_scale"]
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return FP4[codes] * np.repeat(np.ldexp(np.float32(1), scale.astype(np.int32) - 127), 32, 1)


def want(name):
    """The values a tensor should have, outermost dimension first."""
    if not name.startswith("blk."):
        return {"token_embd.weight": lambda: S["model.embed_tokens.weight"], "output.weight": lambda: S["lm_head.weight"],
                "output_norm.weight": lambda: S["model.norm.weight"],
                "output_res_score.weight": lambda: S["model.output_attn_res_norm.weight"] * S["model.output_attn_res_proj.weight"][0]
                }[name]()
    _, layer, rest = name.split(".", 2)
    p = f"model.layers.{layer}."
    mla = int(layer) + 1 in lin["full_attn_layers"]
    if rest.endswith("_exps.weight"):
        w = {"ffn_gate": "w1", "ffn_up": "w3", "ffn_down": "w2"}[rest[:-12]]
        return np.stack([expert(f"{p}block_sparse_moe.experts.{e}.{w}") for e in range(cfg["num_experts"])])
    if rest in ("attn_res_score.weight", "ffn_res_score.weight"):
        k = p + ("self_attention_res_" if rest.startswith("attn") else "mlp_res_")
        return S[k + "norm.weight"] * S[k + "proj.weight"][0]
    if rest in ("attn_k_b.weight", "attn_v_b.weight"):
        nope, kv = cfg["qk_nope_head_dim"], S[p + "self_attn.kv_b_proj.weight"].reshape(heads, -1, cfg["kv_lora_rank"])
        return kv[:, :nope].transpose(0, 2, 1) if rest == "attn_k_b.weight" else kv[:, nope:]
    if rest == "ssm_a":
        return -np.exp(S[p + "self_attn.A_log"].reshape(-1)[:heads].astype(np.float64)).astype(np.float32)
    a, m = "self_attn.", "block_sparse_moe."
    table = {"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
             "attn_q.weight": a + "q_proj.weight", "attn_k.weight": a + "k_proj.weight", "attn_v.weight": a + "v_proj.weight",
             "ssm_g.weight": a + "g_proj.weight", "attn_gate.weight": a + "g_proj.weight", "attn_output.weight": a + "o_proj.weight",
             "ssm_f_a.weight": a + "f_a_proj.weight", "ssm_f_b.weight": a + "f_b_proj.weight", "ssm_beta.weight": a + "b_proj.weight",
             "ssm_dt.bias": a + "dt_bias", "ssm_norm.weight": a + "o_norm.weight", "attn_q_a.weight": a + "q_a_proj.weight",
             "attn_q_a_norm.weight": a + "q_a_layernorm.weight", "attn_q_b.weight": a + "q_b_proj.weight",
             "attn_kv_a_mqa.weight": a + "kv_a_proj_with_mqa.weight", "attn_kv_a_norm.weight": a + "kv_a_layernorm.weight",
             "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
             "ffn_gate_inp.weight": m + "gate.weight", "exp_probs_b.bias": m + "gate.e_score_correction_bias",
             "ffn_routed_down.weight": m + "routed_expert_down_proj.weight", "ffn_routed_norm.weight": m + "routed_expert_norm.weight",
             "ffn_routed_up.weight": m + "routed_expert_up_proj.weight"}
    for x in "qkv":
        table[f"ssm_conv1d_{x}.weight"] = f"{a}{x}_conv1d.weight"
    for x in ("gate", "up", "down"):
        table[f"ffn_{x}_shexp.weight"] = f"{m}shared_experts.{x}_proj.weight"
    assert mla == (rest == "attn_gate.weight") or rest not in ("attn_gate.weight", "ssm_g.weight"), name
    return S[p + table[rest]]


def value(key):
    f = reader.fields[key]
    return f.contents()


P = "kimi-k3."
keys = {"block_count": layers, "embedding_length": cfg["hidden_size"], "feed_forward_length": cfg["intermediate_size"],
        "attention.head_count": heads, "attention.key_length": cfg["kv_lora_rank"] + cfg["qk_rope_head_dim"],
        "attention.value_length": cfg["kv_lora_rank"], "attention.key_length_mla": cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"],
        "attention.value_length_mla": cfg["v_head_dim"], "attention.q_lora_rank": cfg["q_lora_rank"],
        "attention.kv_lora_rank": cfg["kv_lora_rank"], "rope.dimension_count": cfg["qk_rope_head_dim"], "kda.head_dim": lin["head_dim"],
        "ssm.conv_kernel": lin["short_conv_kernel_size"], "kda.gate_lower_bound": lin["gate_lower_bound"],
        "expert_count": cfg["num_experts"], "expert_used_count": cfg["num_experts_per_token"],
        "expert_shared_count": cfg["num_shared_experts"], "expert_feed_forward_length": cfg["moe_intermediate_size"],
        "expert_latent_length": cfg["routed_expert_hidden_size"], "expert_weights_scale": cfg["routed_scaling_factor"],
        "expert_weights_norm": cfg["moe_renormalize"], "expert_gating_func": 2, "vocab_size": cfg["vocab_size"],
        "leading_dense_block_count": cfg["first_k_dense_replace"], "attn_res.block_size": cfg["attn_res_block_size"],
        "activation.situ_beta": cfg["activation_situ_beta"], "activation.situ_linear_beta": cfg["activation_situ_linear_beta"]}
for k, v in keys.items():
    assert value(P + k) == v, (k, value(P + k), v)
assert value(P + "attention.head_count_kv") == [int(i + 1 in lin["full_attn_layers"]) for i in range(layers)]
assert value("general.architecture") == "kimi-k3" and value("general.file_type") == 38
assert len(value("tokenizer.ggml.tokens")) == cfg["vocab_size"] == len(value("tokenizer.ggml.token_type"))
assert value("tokenizer.ggml.eos_token_id") == cfg["eos_token_id"] and value("tokenizer.ggml.pre") == "kimi-k2"

rounded = gguf.GGMLQuantizationType.Q8_0
for t in reader.tensors:
    w = want(t.name)
    got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(-1)
    assert got.size == w.size, (t.name, t.shape, w.shape)
    # Extents are innermost first; those of 1 may be written or not.
    assert [int(n) for n in reversed(t.shape) if n > 1] == [n for n in w.shape if n > 1], (t.name, t.shape, w.shape)
    w = w.reshape(-1)
    if t.name.endswith("ssm_a"):
        assert np.allclose(got, w, rtol=2e-7, atol=0), t.name
    elif t.tensor_type == rounded:
        assert np.array_equal(got, gguf.quants.dequantize(gguf.quants.quantize(w.reshape(-1, 32), rounded), rounded).reshape(-1)), t.name
    else:
        assert np.array_equal(got, w), t.name
print(f"{len(reader.tensors)} tensors, {len(reader.fields)} keys: as they should be")
