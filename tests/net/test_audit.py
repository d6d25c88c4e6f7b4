#!/usr/bin/env python3
# labels: fast
"""kondense audit: random experts over byte ranges, held against the source and the receipt; what is bad is found."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from range_server import RangeServer
from slice_check import Gguf
from test_slice import k3_head

KONDENSE = os.environ["KONDENSE"]
ROOT = pathlib.Path(os.environ.get("KONDENSE_TEST_ROOT", pathlib.Path(__file__).resolve().parents[2]))


def run(*args, rc=0, says=None, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    p = subprocess.run([KONDENSE, *map(str, args)], env={**clean, "HF_HOME": "/nonexistent", **env},
                       capture_output=True, text=True, timeout=200)
    text = p.stdout + p.stderr
    assert p.returncode == rc, "exit code %d, not %d: %s" % (p.returncode, rc, text)
    assert not says or says in text, "'%s' is not in: %s" % (says, text)
    return text


def model(d):
    c = json.loads((ROOT / "tests/data/awkward/config.json").read_text())
    c["text_config"].update(hidden_size=256, intermediate_size=160, num_hidden_layers=3, num_attention_heads=1,
                            num_key_value_heads=1, moe_intermediate_size=128, routed_expert_hidden_size=128, num_experts=8)
    c["text_config"]["linear_attn_config"].update(full_attn_layers=[2], kda_layers=[1, 3], num_heads=1)
    (d / "config.json").write_text(json.dumps(c))
    run("synth", d / "src", "--config", d / "config.json", "--seed", 3)
    run("convert", d / "src", d / "q", "--calib", ROOT / "tests/data/text/calib.txt", "--rows", 2, "--cols", 64,
        "--trunk-bpw", "stored", "--head-bpw", "stored", "--recipe", "plain", "--bpw", 2.3, "--quiet")


def damage(folder, name, size):
    """Other codes in the second half of one tensor of a model."""
    for p in folder.glob("model-*.safetensors"):
        b = bytearray(p.read_bytes())
        n = int.from_bytes(b[:8], "little")
        t = json.loads(b[8:8 + n]).get(name)
        if t:
            at = 8 + n + sum(t["data_offsets"]) // 2
            b[at:at + size] = bytes(x ^ 0x5a for x in b[at:at + size])
            p.write_bytes(b)
            return
    raise AssertionError(name)


def gguf(s, d, env):
    """Models in GGUF: split, chopped, of other types; one damaged slab; a whole K3 from a server that computes it."""
    run("convert", d / "src", d / "split", "--to", "gguf", "--split-size", "300K", "--quiet")
    assert len(list((d / "split").glob("*.gguf"))) > 3
    s.add_folder("/split", d / "split")
    text = run("audit", s.url + "/split", "--of", "hf:o/src", "-n", 99, "--json", d / "g.json", **env)
    a = json.loads((d / "g.json").read_text())
    assert a["bad"] == 0 and a["largest"] == 0 and not a["receipt"] and a["population"] == 16, a
    assert all(abs(e["bits"] - 4.25) < 1e-9 for e in a["sample"]) and "no receipt" in text, a
    part = next((d / "split").glob("*-00002-of-*"))
    run("audit", part, "--of", d / "split", "-n", 3, says="largest 0.0000", **env)

    # Another type, in pieces; the same from its folder; a receipt that lies beside it is not its own.
    run("slice", d / "split", d / "q1.gguf", "--requant", "Q1_0", "-q")
    data = (d / "q1.gguf").read_bytes()
    (d / "pieces").mkdir()
    for i in range(3):
        (d / ("pieces/q1.gguf.part%dof3" % (i + 1))).write_bytes(data[i * 70001:(i + 1) * 70001 if i < 2 else None])
    shutil.copy(d / "q/kondense.json", d / "pieces")
    s.add_folder("/pieces", d / "pieces")
    for name in s.url + "/pieces", d / "pieces", d / "pieces/q1.gguf.part2of3", d / "q1.gguf":
        run("audit", name, "--of", d / "src", "-n", 6, "--seed", 4, "--json", d / "h.json", **env)
        h = json.loads((d / "h.json").read_text())
        assert h["bad"] == 0 and 0.5 < h["median"] < 0.7 and not h["receipt"], h
        a = a if name != s.url + "/pieces" else h
        assert h["sample"] == a["sample"] and h["sample"][0]["bits"] == 1.125, (name, h)

    # The last expert of the last layer's up projection: its slab ends at a known place.
    g = Gguf(d / "q1.gguf", places=True)
    at, size = g.places["blk.2.ffn_up_exps.weight"]
    bad = bytearray(data)
    for i in range(at + size - size // 8, at + size, 18):
        bad[i + 2:i + 18] = bytes(x ^ 0xff for x in bad[i + 2:i + 18])
    (d / "bad.gguf").write_bytes(bad)
    s.add("/one/bad.gguf", bytes(bad))
    for name in s.url + "/one/bad.gguf", d / "bad.gguf":
        run("audit", name, "--of", "hf:o/src", "-n", 99, rc=3, says="layer 2 expert 7: error", **env)

    # Of 594 GB, the head and the slabs of two experts.
    head, size = k3_head()
    s.add_computed("/K3-UD-IQ1_S.gguf", size=len(head) + size, seed=1, head=head)
    run("audit", s.url + "/K3-UD-IQ1_S.gguf", "--of", s.url + "/K3-UD-IQ1_S.gguf", "-n", 2, "--json", d / "k.json", **env)
    k = json.loads((d / "k.json").read_text())
    assert k["population"] == 92 * 896 and k["largest"] == 0 and k["sample"][0]["bits"] == 1.5625, k
    assert 6 * 2150400 < k["model_bytes_fetched"] <= 6 * 2150400 + 2 * (len(head) + (1 << 20)), (k, len(head))

    # What is refused.
    run("audit", s.url + "/split", "--of", d / "nothing", rc=1, says="is not there", **env)
    s.add_folder("/two", d / "pieces")
    s.add("/two/other.gguf", data)
    run("audit", s.url + "/two", "--of", d / "src", rc=1, says="more than one model", **env)
    s.add("/cut/q1.gguf", data[:-100])
    run("audit", s.url + "/cut/q1.gguf", "--of", d / "src", rc=1, says="cut short", **env)
    s.fault("/one/*", "off-by-one", None, after=1)
    run("audit", s.url + "/one/bad.gguf", "--of", d / "src", rc=1, **env)
    s.faults.clear()
    assert not list((d / "tmp").iterdir())


def main():
    with tempfile.TemporaryDirectory(prefix="kd-audit-") as d, RangeServer() as s:
        d = pathlib.Path(d)
        model(d)
        (d / "tmp").mkdir()
        env = {"HF_ENDPOINT": s.hub, "TMPDIR": str(d / "tmp")}
        s.add_repo("o/src", d / "src")
        s.add_folder("/q", d / "q")
        whole = sum(p.stat().st_size for p in (d / "src").glob("*.safetensors"))

        # Sound: the receipt's figures, the bound, few bytes, nothing left behind.
        text = run("audit", s.url + "/q", "--of", "hf:o/src", "-n", 5, "--seed", 1, "--json", d / "a.json", "--html", d / "a.html", **env)
        a = json.loads((d / "a.json").read_text())
        assert a["experts"] == 5 and a["population"] == 16 and a["bad"] == 0 and a["receipt"], a
        assert abs(a["bound_95"] - (1 - 0.05 ** (1 / 5))) < 1e-9, a["bound_95"]
        assert all(abs(e[w] - e["receipt_" + w]) < 1e-3 * e[w] for e in a["sample"] for w in ("w1", "w2", "w3")), a
        assert "supports" in text and a["source_bytes_fetched"] < whole / 2, (a["source_bytes_fetched"], whole)
        assert "<svg" in (d / "a.html").read_text() and not list((d / "tmp").iterdir())

        # The same from local folders, and the same choice by the same seed alone.
        run("audit", d / "q", "--of", d / "src", "-n", 5, "--seed", 1, "--json", d / "b.json", **env)
        b = json.loads((d / "b.json").read_text())
        assert a["sample"] == b["sample"], "remote and local differ"
        run("audit", d / "q", "--of", d / "src", "-n", 5, "--seed", 2, "--json", d / "c.json", **env)
        pairs = [[(e["layer"], e["expert"]) for e in x["sample"]] for x in (a, json.loads((d / "c.json").read_text()))]
        assert pairs[0] != pairs[1] and all(len(set(p)) == 5 for p in pairs), pairs

        # One damaged expert among all of them.
        shutil.copytree(d / "q", d / "bad")
        damage(d / "bad", "language_model.model.layers.2.block_sparse_moe.experts.3.w1.ktrellis", 64)
        s.add_folder("/bad", d / "bad")
        text = run("audit", s.url + "/bad", "--of", "hf:o/src", "-n", 99, rc=3, says="1 of 16 experts are bad", **env)
        assert "layer 2 expert 3: error" in text and "16 of 16" in text, text
        # Without a receipt it stands out by its error; the source's own experts are no error at all.
        (d / "bad/kondense.json").unlink()
        damage(d / "bad", "language_model.model.layers.2.block_sparse_moe.experts.3.w1.ktrellis", 2000)
        run("audit", d / "bad", "--of", d / "src", "-n", 99, rc=3, says="no receipt", **env)
        run("audit", d / "q", "--of", d / "src", "-n", 4, "--limit", 0.01, rc=3, says="4 of 4", **env)
        text = run("audit", d / "src", "--of", d / "src", "-n", 99, says="largest 0.0000", **env)

        gguf(s, d, env)

        # What is refused.
        run("audit", d / "q", rc=2, says="--of")
        run("audit", s.url + "/q", "--of", ROOT / "tests/data/k3-nano", rc=1, says="differ in shape", **env)
        run("audit", s.url + "/none", "--of", d / "src", rc=1, says="lists no files", **env)
        s.fault("/q/model-00002*", "ignore-range", None)
        run("audit", s.url + "/q", "--of", d / "src", rc=1, says="ignores byte ranges", **env)
        assert not list((d / "tmp").iterdir())
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
