#!/usr/bin/env python3
# timeout: 120
"""kondense slice against a second reader (slice_check.py): GGUF and safetensors, near and far, one list for router,
bias and experts, layers with one and two digits, killed and resumed, a server that errs, and the plan of a file of
600 GB of which only the head exists."""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from range_server import RangeServer
from slice_check import Gguf, St, check_gguf, check_st

KONDENSE = os.environ["KONDENSE"]
ROOT = pathlib.Path(os.environ.get("KONDENSE_TEST_ROOT", pathlib.Path(__file__).resolve().parents[2]))
NANO = ROOT / "tests/data/k3-nano"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
ENV["HF_HOME"] = "/nonexistent"


def run(*args, rc=0, says=None, limit=100, **env):
    p = subprocess.run([KONDENSE, *map(str, args)], env={**ENV, **env}, capture_output=True, text=True, timeout=limit)
    text = p.stdout + p.stderr
    assert p.returncode == rc, "exit code %d, not %d: %s" % (p.returncode, rc, text)
    assert not says or says in text, "'%s' is not in: %s" % (says, text)
    return text


def files(d):
    return {p.name: p.read_bytes() for p in d.iterdir()}


def long_model(d):
    """13 layers, so that blk.1 and blk.11 are both there, and a short last block."""
    c = json.loads((ROOT / "tests/data/awkward/config.json").read_text())
    mla = [4, 8, 12, 13]
    c["text_config"].update(hidden_size=128, intermediate_size=160, num_hidden_layers=13, num_attention_heads=1,
                            num_key_value_heads=1, moe_intermediate_size=64, routed_expert_hidden_size=64,
                            num_experts=6, num_experts_per_token=2, attn_res_block_size=4)
    c["text_config"]["linear_attn_config"].update(full_attn_layers=mla, num_heads=1,
                                                  kda_layers=[i for i in range(1, 14) if i not in mla])
    (d / "config.json").write_text(json.dumps(c))
    run("synth", d / "long", "--config", d / "config.json", "--seed", 3)
    run("convert", d / "long", d / "long.gguf", "--to", "gguf", "-q")


def cases(d):
    """Each slice of both kinds, tensor for tensor."""
    ids = {l: sorted(random.Random(l).sample(range(32), 8)) for l in range(1, 9)}
    (d / "ids.json").write_text(json.dumps(ids))
    trace = [(l, e) for l in ids for e in ids[l] for _ in range(1 + e % 3)] + [(l, 31 - l) for l in ids for _ in range(9)]
    (d / "trace.bin").write_bytes(b"".join(struct.pack("<II", *t) for t in trace))
    tops = {}
    for l in ids:
        count = [sum(1 for t in trace if t == (l, e)) for e in range(32)]
        tops[l] = sorted(sorted(range(32), key=lambda e: (-count[e], e))[:4])
    all_of = lambda ex: {**ex, 0: list(range(len(ex[1])))}
    nano = [(["--layers", "4", "--experts", "16"], range(4), range(16), None),
            (["--layers", "0-3,8", "--experts", "1,5,7-9,31", "--experts-used", "3"], [0, 1, 2, 3, 8],
             [1, 5, 7, 8, 9, 31], 3),
            (["--layers", "4-7", "--experts", "28-31"], range(4, 8), range(28, 32), None),
            (["--layers", "2-5", "--break-blocks"], range(2, 6), range(32), None),
            (["--experts", "top:%s" % (d / "ids.json")], range(9), all_of(ids), None),
            (["--experts", "top:%s" % (d / "trace.bin")], range(9), all_of(tops), None)]
    long = [(["--layers", "0-3,8-11,12", "--experts", "0,2,5"], [0, 1, 2, 3, 8, 9, 10, 11, 12], [0, 2, 5], None),
            (["--layers", "8-12", "--experts", "3-5"], range(8, 13), [3, 4, 5], None)]
    n = 0
    for st, gguf, table in ((NANO, d / "nano.gguf", nano), (d / "long", d / "long.gguf", long)):
        whole, whole_gguf = St(st), Gguf(gguf)
        for args, layers, experts, used in table:
            layers = list(layers)
            experts = experts if isinstance(experts, dict) else list(experts)
            n += 1
            run("slice", st, d / ("st%d" % n), "-q", *args)
            check_st(whole, St(d / ("st%d" % n)), layers, experts, used)
            run("slice", gguf, d / ("g%d.gguf" % n), "-q", *args)
            check_gguf(whole_gguf, Gguf(d / ("g%d.gguf" % n)), layers, experts, used)
            assert not list(d.glob("*.part"))


def by_id(d):
    """Every weight of an expert is its id: router row, bias, matrices must still agree after slicing."""
    shutil.copytree(NANO, d / "ids")
    for shard in (d / "ids").glob("model-*.safetensors"):
        data = bytearray(shard.read_bytes())
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if ".block_sparse_moe." not in name:
                continue
            a, b = (8 + n + x for x in t["data_offsets"])
            if ".experts." in name:
                e = int(name.split(".experts.")[1].split(".")[0])
                data[a:b] = bytes([e]) * (b - a)
            elif ".gate." in name:
                row = (b - a) // 32
                data[a:b] = b"".join(bytes([e]) * row for e in range(32))
        shard.write_bytes(data)
    run("convert", d / "ids", d / "ids.gguf", "--to", "gguf", "-q")
    keep = [2, 3, 11, 17, 29]
    run("slice", d / "ids", d / "ids-st", "-q", "--experts", "2,3,11,17,29", "--layers", "8")
    for name, (_, shape, data) in St(d / "ids-st").tensors.items():
        if ".experts." in name:
            e = int(name.split(".experts.")[1].split(".")[0])
            assert set(data) == {keep[e]}, name
        elif ".block_sparse_moe.gate." in name:
            assert [data[len(data) // 5 * i] for i in range(5)] == keep and shape[0] == 5, name
    run("slice", d / "ids.gguf", d / "ids5.gguf", "-q", "--experts", "2,3,11,17,29", "--layers", "8")
    t = Gguf(d / "ids5.gguf").tensors
    for l in range(1, 8):
        bias = t["blk.%d.exp_probs_b.bias" % l][2]
        assert [bias[4 * i] for i in range(5)] == keep
        for m in ("gate", "up", "down"):
            data = t["blk.%d.ffn_%s_exps.weight" % (l, m)][2]
            assert [data[len(data) // 5 * i] for i in range(5)] == keep  # the scale byte


def requantized(d):
    """Blocks whose scale is lost are counted; the key that a quantized file has is made where nobody wrote it."""
    data = bytearray((d / "nano.gguf").read_bytes())
    at, _ = Gguf(d / "nano.gguf", places=True).places["blk.1.ffn_up_exps.weight"]
    for i in range(4):  # a block of Q1_0 is four of MXFP4: values of 2^-88
        data[at + 17 * i:at + 17 * i + 17] = bytes([40]) + b"\x22" * 16
    key = b"general.quantization_version"
    assert data.count(key) == 1
    (d / "tiny.gguf").write_bytes(data.replace(key, key[:-1] + b"x"))
    text = run("slice", d / "tiny.gguf", d / "tiny-q1.gguf", "-q", "--requant", "Q1_0", "--json", d / "tiny.json")
    assert json.loads((d / "tiny.json").read_text())["zero_scales"] == 1 and "1 blocks have so small values" in text, text
    made = Gguf(d / "tiny-q1.gguf").keys
    assert made[key.decode()] == 2 and made["general.file_type"] == 40, made
    run("slice", d / "tiny.gguf", d / "tiny-f16.gguf", "-q", "--requant", "F16")
    assert key.decode() not in Gguf(d / "tiny-f16.gguf").keys, "no type of it is quantized"


def far_is_near(d, s):
    """The same bytes from a server, in no more bytes than the plan says."""
    s.add_folder("/set", d / "set")
    s.add_folder("/k3-nano", NANO)
    s.add_repo("owner/k3-nano", NANO)
    args = ["-q", "--layers", "0-3,8", "--experts", "3,9,10,30"]
    for src, near, out in ((s.url + "/k3-nano/", NANO, "far"), (s.url + "/set/", d / "set", "far.gguf")):
        tail = "" if out == "far" else ".gguf"
        plan = json.loads(run("slice", src, d / out, *args, "--dry-run", "--json", "-"))
        assert not (d / out).exists() and not plan["written"]
        del s.log[:]
        done = json.loads(run("slice", src, d / out, *args, "--json", "-"))
        run("slice", near, d / ("near" + tail), *args)
        a, b = (d / out), (d / ("near" + tail))
        assert (files(a) == files(b)) if a.is_dir() else (a.read_bytes() == b.read_bytes())
        assert done["plan_sha256"] == plan["plan_sha256"] and done["written"]
        got = sum(int(r["range"].split("-")[1]) - int(r["range"].split("=")[1].split("-")[0]) + 1
                  for r in s.log if r["range"] and r["path"].endswith((".safetensors", ".gguf")))
        data = plan["wanted_bytes"] + plan["gap_bytes"] + plan["head_bytes"]
        assert data <= got <= data + 4096, (got, plan)
        assert plan["tensors"] == plan["tensors_copied"] + plan["tensors_sliced"] + plan["tensors_dropped"]


def from_hub(d, s):
    """A hub's repository: the commit is in the record, the weights are the same."""
    run("slice", "hf:owner/k3-nano", d / "hub", "-q", "--layers", "0-3,8", "--experts", "3,9,10,30",
        HF_ENDPOINT=s.hub, HF_TOKEN="secret")
    hub, near = files(d / "hub"), files(d / "near")
    record = json.loads(hub.pop("slice.json"))
    near.pop("slice.json")
    assert hub == near and record["source_repo"] == "owner/k3-nano" and len(record["source_commit"]) == 40
    text = run("receipt", d / "hub")
    assert record["source_commit"] in text and "slice record INTACT" in text, text
    assert not [r for r in s.log if r["auth"] and r["role"] == "cdn"]
    # Lists that differ in layers that are dropped afterwards.
    run("slice", NANO, d / "l1", "-q", "--experts", "top:%s" % (d / "ids.json"))
    run("slice", d / "l1", d / "l2", "-q", "--layers", "4", "--experts", "6")
    (d / "ids2.json").write_text(json.dumps({l: ids[:6] for l, ids in json.loads((d / "ids.json").read_text()).items()}))
    run("slice", NANO, d / "l3", "-q", "--layers", "4", "--experts", "top:%s" % (d / "ids2.json"))
    assert files(d / "l2") == files(d / "l3")


def killed(d, s):
    """kill -9 at any moment, bad answers in between: the same bytes."""
    want = (d / "near.gguf").read_bytes()
    args = ["slice", s.url + "/set/", d / "kill.gguf", "-q", "--layers", "0-3,8", "--experts", "3,9,10,30",
            "--request", "262144"]
    for kind in ("cut", "503"):
        s.fault("/set/*", kind, times=1, after=3)
    work, kills = d / "kill.gguf.part", 0
    for i in range(8):
        p = subprocess.Popen([KONDENSE, *map(str, args)], env=ENV, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        if i < 3:  # at any moment, the first ones too
            time.sleep(0.03 * (i + 1))
        else:  # in the middle, however slow the disk is
            asked = len(s.log)
            while p.poll() is None and not (len(s.log) > asked + 2 * i and (work / "model.gguf").exists()):
                time.sleep(0.002)
        p.kill()
        p.wait()
        kills += p.returncode == -9
        if (d / "kill.gguf").exists():
            break
    s.faults = []
    if not (d / "kill.gguf").exists():
        # What the journal calls done and is not, is not believed.
        with open(work / "model.gguf", "r+b") as f:
            f.seek(400000)
            f.write(b"damage")
        run("slice", s.url + "/set/", d / "kill.gguf", "-q", "--layers", "4", rc=2, says="remove")
        run(*args)
    assert kills and (d / "kill.gguf").read_bytes() == want
    assert not (d / "kill.gguf.part").exists()


def refused(d, s):
    run("slice", NANO, d / "no", "--layers", "5", rc=2, says="block 4-7 is not kept whole (5 is missing)")
    run("slice", NANO, d / "no", "--layers", "0-2", "--break-blocks", rc=2, says="none of those kept is MLA")
    run("slice", NANO, d / "no", "--layers", "8", "--experts", "40", rc=2, says="experts")
    run("slice", NANO, d / "no", "--experts", "2", rc=2, says="name --experts-used")
    run("slice", NANO, d / "no", "--experts", "4,4", rc=2, says="listed twice")
    run("slice", NANO, d / "no", "--requant", "Q1_0", rc=2, says="only a GGUF is requantized")
    run("slice", NANO, d / "no.gguf", rc=2, says="is a folder")
    run("slice", d / "nano.gguf", d / "no", rc=2, says="ends in .gguf")
    run("slice", d / "nano.gguf", d / "nano.gguf", rc=1, says="is there already")
    (d / "uneven.json").write_text('{"1": [1, 2], "2": [3]}')
    run("slice", NANO, d / "no", "--layers", "4", "--experts", "top:%s" % (d / "uneven.json"), rc=1, says="layer 1 keeps 2")
    (d / "odd.bin").write_bytes(b"12345")
    run("slice", NANO, d / "no", "--experts", "top:%s" % (d / "odd.bin"), rc=1, says="no whole pairs")
    one = (d / "set").glob("*.gguf")
    (d / "half").mkdir()
    for p in sorted(one)[1:]:
        shutil.copy(p, d / "half")
    run("slice", d / "half", d / "no.gguf", rc=1, says="parts are there")
    data = bytearray((d / "nano.gguf").read_bytes())
    at = data.index(b"blk.3.attn_k_b")
    data[at + 6:at + 14] = b"attn_zzz"
    (d / "strange.gguf").write_bytes(data)
    run("slice", d / "strange.gguf", d / "no.gguf", "--layers", "4", rc=1, says="would be a guess")
    assert not list(d.glob("no*"))


def k3_head():
    """The head of a whole UD-IQ1_S, one part: 2,573 tensors, 594 GB."""
    def s(t):
        return struct.pack("<Q", len(t)) + t.encode()
    P, keys, infos, at = "kimi-k3.", [], [], 0
    u32 = dict(block_count=93, context_length=1048576, embedding_length=7168, feed_forward_length=33792,
               vocab_size=163840, expert_count=896, expert_used_count=16, expert_shared_count=2,
               expert_feed_forward_length=3072, expert_latent_length=3584, expert_gating_func=2,
               leading_dense_block_count=1)
    u32.update({"attention.head_count": 96, "attention.key_length": 576, "attention.value_length": 512,
                "attention.key_length_mla": 192, "attention.value_length_mla": 128, "attention.q_lora_rank": 1536,
                "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "ssm.conv_kernel": 4, "kda.head_dim": 128,
                "attn_res.block_size": 12})
    f32 = {"attention.layer_norm_rms_epsilon": 1e-5, "kda.gate_lower_bound": -5, "expert_weights_scale": 1,
           "activation.situ_beta": 4, "activation.situ_linear_beta": 25}
    keys.append(s("general.architecture") + struct.pack("<I", 8) + s("kimi-k3"))
    keys += [s(P + k) + struct.pack("<II", 4, v) for k, v in u32.items()]
    keys += [s(P + k) + struct.pack("<If", 6, v) for k, v in f32.items()]
    keys.append(s(P + "expert_weights_norm") + struct.pack("<IB", 7, 1))
    mla = [int(l % 4 == 3 or l == 92) for l in range(93)]
    keys.append(s(P + "attention.head_count_kv") + struct.pack("<IIQ", 9, 5, 93) + struct.pack("<93i", *mla))
    F32, Q8, IQ1 = (0, 1, 4), (8, 32, 34), (19, 256, 50)

    def put(name, kind, *ne):
        nonlocal at
        infos.append(s(name) + struct.pack("<I%dQIQ" % len(ne), len(ne), *ne, kind[0], at))
        n = kind[2]
        for x in ne:
            n *= x
        at += (n // kind[1] + 31) // 32 * 32
    put("output.weight", Q8, 7168, 163840)
    put("output_norm.weight", F32, 7168)
    put("output_res_score.weight", F32, 7168)
    put("token_embd.weight", Q8, 7168, 163840)
    for l in range(93):
        b = "blk.%d." % l
        t = [("attn_norm.weight", F32, 7168), ("ffn_norm.weight", F32, 7168), ("attn_res_score.weight", F32, 7168),
             ("ffn_res_score.weight", F32, 7168), ("attn_output.weight", Q8, 12288, 7168)]
        if mla[l]:
            t += [("attn_q_a.weight", Q8, 7168, 1536), ("attn_q_a_norm.weight", F32, 1536),
                  ("attn_q_b.weight", Q8, 1536, 18432), ("attn_kv_a_mqa.weight", Q8, 7168, 576),
                  ("attn_kv_a_norm.weight", F32, 512), ("attn_k_b.weight", Q8, 128, 512, 96),
                  ("attn_v_b.weight", Q8, 512, 128, 96), ("attn_gate.weight", Q8, 7168, 12288)]
        else:
            t += [("attn_%s.weight" % x, Q8, 7168, 12288) for x in "qkv"]
            t += [("ssm_conv1d_%s.weight" % x, F32, 4, 1, 12288) for x in "qkv"]
            t += [("ssm_g.weight", Q8, 7168, 12288), ("ssm_f_a.weight", Q8, 7168, 128),
                  ("ssm_f_b.weight", Q8, 128, 12288), ("ssm_beta.weight", F32, 7168, 96), ("ssm_a", F32, 96),
                  ("ssm_dt.bias", F32, 12288), ("ssm_norm.weight", F32, 128)]
        if l:
            t += [("ffn_gate_inp.weight", F32, 7168, 896), ("exp_probs_b.bias", F32, 896),
                  ("ffn_gate_exps.weight", IQ1, 3584, 3072, 896), ("ffn_up_exps.weight", IQ1, 3584, 3072, 896),
                  ("ffn_down_exps.weight", IQ1, 3072, 3584, 896), ("ffn_routed_down.weight", Q8, 7168, 3584),
                  ("ffn_routed_up.weight", Q8, 3584, 7168), ("ffn_routed_norm.weight", F32, 3584),
                  ("ffn_gate_shexp.weight", Q8, 7168, 6144), ("ffn_up_shexp.weight", Q8, 7168, 6144),
                  ("ffn_down_shexp.weight", Q8, 6144, 7168)]
        else:
            t += [("ffn_gate.weight", Q8, 7168, 33792), ("ffn_up.weight", Q8, 7168, 33792),
                  ("ffn_down.weight", Q8, 33792, 7168)]
        for x in sorted(t):
            put(b + x[0], *x[1:])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % 32), at


def plan_of_600_gb(d, s):
    head, data = k3_head()
    assert data == 593990834560
    s.add_computed("/big/K3-UD-IQ1_S.gguf", size=len(head) + data, seed=1, head=head)
    src = s.url + "/big/K3-UD-IQ1_S.gguf"
    plan = json.loads(run("slice", src, d / "big.gguf", "--layers", "12", "--experts", "16", "--dry-run", "--json", "-"))
    assert plan["tensors_copied"] + plan["tensors_sliced"] == 329 and plan["tensors"] == 2573
    assert 11.4e9 < plan["wanted_bytes"] < 11.8e9, plan  # 11.56 GB with sliced routers
    assert plan["head_bytes"] <= 4 << 20 and plan["parameters_kept"] == 15599198864
    assert plan["wanted_bytes"] + plan["gap_bytes"] + plan["head_bytes"] + plan["never_requested_bytes"] >= len(head) + data
    # A prefix of experts is one run a tensor; a scattered list is a slab each.
    big = ["--dry-run", "--json", "-", "--request", "64M"]
    near = json.loads(run("slice", src, d / "big.gguf", "--experts", "16", *big))
    far = json.loads(run("slice", src, d / "big.gguf", "--experts", ",".join(str(56 * i) for i in range(16)), *big))
    assert near["wanted_bytes"] == far["wanted_bytes"] and near["plan_sha256"] != far["plan_sha256"]
    assert far["planned_requests"] > 3 * 92 * 15 > near["planned_requests"], (near, far)
    again = json.loads(run("slice", src, d / "big.gguf", "--experts", "16", *big))
    assert again["plan_sha256"] == near["plan_sha256"]
    # The other plan: what of it fits where, from the head alone.
    sent = s.sent
    fits = json.loads(run("plan", src, "-m", "gb300", "-m", "spark:8", "--json", "-", TMPDIR=str(d)))
    assert fits["forms"][0]["name"] == "as stored" and fits["forms"][0]["file_bytes"] >= data, fits["forms"][0]
    assert s.sent - sent < 4 << 20 and not list(d.glob("kondense-plan*"))
    s.add_repo("o/nano", NANO)
    fits = json.loads(run("plan", "hf:o/nano", "-m", "pc", "--json", "-", TMPDIR=str(d), HF_ENDPOINT=s.hub))
    here = json.loads(run("plan", NANO, "-m", "pc", "--json", "-"))
    assert fits["forms"] == here["forms"], (fits["forms"], here["forms"])
    run("plan", "hf:o/none", "-m", "pc", rc=1, says="none", TMPDIR=str(d), HF_ENDPOINT=s.hub)
    assert not list(d.glob("kondense-plan*"))


def main():
    with tempfile.TemporaryDirectory(prefix="kd-slice-") as d:
        d = pathlib.Path(d)
        run("convert", NANO, d / "nano.gguf", "--to", "gguf", "-q")
        run("convert", NANO, d / "set", "--to", "gguf", "--split-size", "4M", "-q")
        long_model(d)
        steps = [(cases, False), (by_id, False), (requantized, False), (far_is_near, True), (from_hub, True), (killed, True),
                 (refused, True), (plan_of_600_gb, True)]
        with RangeServer() as s:
            for step, serves in steps:
                began = time.monotonic()
                step(*([d, s] if serves else [d]))
                print("%s: %.1f s" % (step.__name__, time.monotonic() - began))
    print("test_slice: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
