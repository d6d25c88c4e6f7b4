#!/usr/bin/env python3
"""kondense convert --discard-source: the bytes of a local conversion and the figures of a separate check, with
three shards of the source on disk at most and each byte fetched once, whatever happens on the way."""
import filecmp
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

from range_server import RangeServer

KONDENSE = os.environ["KONDENSE"]
ROOT = pathlib.Path(os.environ.get("KONDENSE_TEST_ROOT", pathlib.Path(__file__).resolve().parents[2]))
TEXT = ROOT / "tests/data/text"
FEW = ["--calib", TEXT / "calib.txt", "--rows", 4, "--cols", 64, "--trunk-bpw", "stored", "--head-bpw", "stored", "--recipe", "plain",
       "--quiet"]
CHECK = ["--check-text", TEXT / "eval.txt", "--check-rows", 4, "--check-cols", 64]


def run(*args, rc=0, says=None, timeout=200, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    p = subprocess.run([KONDENSE, *map(str, args)], env={**clean, "HF_HOME": "/nonexistent", **env},
                       capture_output=True, text=True, timeout=timeout)
    text = p.stdout + p.stderr
    assert p.returncode == rc, "exit code %d, not %d: %s" % (p.returncode, rc, text)
    assert not says or says in text, "'%s' is not in: %s" % (says, text)
    return text


def same_model(a, b):
    names = sorted(p.name for p in a.iterdir() if p.name != "convert.log")
    other = sorted(p.name for p in b.iterdir() if p.name not in ("convert.log", "check.json", "check.html"))
    assert names == other, (names, other)
    for n in names:
        if not filecmp.cmp(a / n, b / n, shallow=False):
            lines = zip((a / n).read_bytes().split(b"\n"), (b / n).read_bytes().split(b"\n"))
            raise AssertionError("%s differs: %s" % (n, [x for x in lines if x[0] != x[1]][:3]))


def small_model(d):
    """Four layers, so five shards, small enough to be converted many times in a test."""
    c = json.loads((ROOT / "tests/data/awkward/config.json").read_text())
    c["text_config"].update(hidden_size=256, intermediate_size=160, num_hidden_layers=4, num_attention_heads=1,
                            num_key_value_heads=1, moe_intermediate_size=128, routed_expert_hidden_size=128,
                            num_experts=2, num_experts_per_token=1)
    c["text_config"]["linear_attn_config"].update(full_attn_layers=[2, 4], kda_layers=[1, 3], num_heads=1)
    (d / "config.json").write_text(json.dumps(c))
    run("synth", d / "src", "--config", d / "config.json", "--seed", 7)


class Watch(threading.Thread):
    """The most bytes of the source's shards that ever lie under a folder."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.peak, self.on = folder / ".source/shards", 0, True
        self.start()

    def run(self):
        while self.on:
            total = 0
            for p in self.folder.glob("*.safetensors*"):
                try:
                    total += p.stat().st_blocks * 512
                except OSError:
                    pass
            self.peak = max(self.peak, total)
            time.sleep(0.002)


def main():
    with tempfile.TemporaryDirectory(prefix="kd-discard-") as d:
        d = pathlib.Path(d)
        small_model(d)
        run("convert", d / "src", d / "local", *FEW, "--bpw", 2.3)
        run("check", d / "src", d / "local", "--text", TEXT / "eval.txt", "--rows", 4, "--cols", 64, "--json", d / "check.json")
        sizes = sorted((p.stat().st_size for p in (d / "src").glob("*.safetensors")), reverse=True)
        with RangeServer() as s:
            s.add_repo("o/n", d / "src")
            s.add_folder("/m", d / "src")
            hub = {"HF_ENDPOINT": s.hub}

            # From the hub, with the check.
            watch = Watch(d / "hub")
            text = run("convert", "hf:o/n", d / "hub", *FEW, "--bpw", 2.3, "--discard-source", *CHECK, "--json", d / "j", **hub)
            watch.on = False
            same_model(d / "local", d / "hub")
            assert (d / "check.json").read_text() == (d / "hub/check.json").read_text().replace('"hub"', '"local"').replace(
                '"n"', '"src"'), "the figures differ from those of a separate check"
            told = json.loads((d / "j").read_text())["source"]
            assert 0 < told["peak_disk_bytes"] <= sum(sizes[:3]) and told["peak_shards"] <= 3, told
            assert 0 < watch.peak <= sum(sizes[:3]) + 3 * 4096, (watch.peak, sizes)
            assert told["fetched_bytes"] == sum(sizes), told
            assert "never more than" in text and not (d / "hub/.source").exists() and not (d / "hub/.work").exists()

            # The model's half of the check keeps up: a layer's routers are compared before the next one is sealed.
            log = re.findall(r"layer=(\d+) .*msg=(sealed|checked)", (d / "hub/convert.log").read_text())
            moe = [(str(l), what) for l in range(4) for what in (("sealed", "checked") if l else ("sealed",))]
            assert log == moe, log

            # From a plain folder, whose digests nobody says; two rates in one pass; the reference is kept.
            run("convert", s.url + "/m", d / "web", *FEW, "--bpw", "2.3,3", "--discard-source", *CHECK, "--save-ref", d / "ref")
            same_model(d / "local", d / "web/2.3")
            run("check", "--ref", d / "ref", d / "local", "--json", d / "again.json")
            assert json.loads((d / "again.json").read_text())["kld"] == json.loads((d / "check.json").read_text())["kld"]

            # Killed at random points: the same bytes, and finished layers are not fetched again.
            kills, r = 0, random.Random(5)
            args = ["convert", "hf:o/n", d / "kill", *FEW, "--bpw", 2.3, "--discard-source", *CHECK, "--resume"]
            sent = s.sent
            env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | hub | {"HF_HOME": "/nonexistent"}
            for _ in range(10):
                p = subprocess.Popen([KONDENSE, *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                try:
                    out, _ = p.communicate(timeout=r.uniform(0.05, 0.5 + 0.1 * kills))
                    assert p.returncode == 0, out
                    break
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.communicate()
                    kills += 1
            else:
                run(*args, **hub)
            assert kills, "nothing was killed"
            same_model(d / "local", d / "kill")
            assert (d / "hub/check.json").read_text() == (d / "kill/check.json").read_text().replace('"kill"', '"hub"')
            print("%d kills, %.2f times the source sent" % (kills, (s.sent - sent) / sum(sizes)))

            # What is refused.
            run("convert", s.url + "/m", d / "x", *FEW, rc=2, says="--discard-source")
            run("convert", d / "src", d / "x", *FEW, "--discard-source", rc=2, says="can be had again")
            run("convert", d / "src", d / "x", *FEW, *CHECK, rc=2, says="--check-text")
            run("convert", "hf:o/n", d / "hub", *FEW, "--bpw", 2.3, "--discard-source", rc=2, says="finished model", **hub)
            s.fault("*-00003-of-*", "404", None, after=3)
            run("convert", s.url + "/m", d / "gone", *FEW, "--discard-source", rc=1, says="404")
            s.faults.clear()
            run("convert", s.url + "/m", d / "gone", *FEW, "--discard-source", "--resume")
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
