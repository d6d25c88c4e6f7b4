"""Writes the config of the small model that the farm's tests convert: 3 layers, 12 experts."""
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(os.environ.get("KONDENSE_TEST_ROOT", pathlib.Path(__file__).resolve().parents[2]))


def config(experts=12):
    c = json.loads((ROOT / "tests/data/awkward/config.json").read_text())
    t = c["text_config"]
    t.update(hidden_size=128, intermediate_size=128, moe_intermediate_size=128, num_experts=experts,
             num_hidden_layers=3, routed_expert_hidden_size=128, num_attention_heads=1,
             num_key_value_heads=1, q_lora_rank=64, kv_lora_rank=64)
    t["linear_attn_config"].update(kda_layers=[1, 3], full_attn_layers=[2], num_heads=1)
    return c


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(json.dumps(config(int(sys.argv[2]) if sys.argv[2:] else 12)))
