#!/usr/bin/env python3
"""Fills docs/quality.md: recipes, rates, seeds and trunk rates measured on k3-mini.

Every cell is one conversion and one check; its figures are kept as docs/quality/CELL.json, and a cell
that has its file is not run again, so the script can be stopped and started at will. The models
themselves are removed as soon as they are measured.

    tools/quality.py                      # run what is missing, then write docs/quality.md
    tools/quality.py --jobs 4             # four cells at a time, the CPUs shared among them
    tools/quality.py --jobs 4 --device cuda:0,cuda:1      # conversions on devices in turns: the same bytes
    tools/quality.py --write              # only write docs/quality.md from what is there
"""
import argparse, itertools, json, os, pathlib, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPES = ["default", "upstream", "plain", "auto"]
RATES = ["2.0", "2.0625", "2.3125", "3.0", "4.0"]
TRUNKS = ["4", "5", "6", "8", "stored"]
SEED_RATES = ["2.0", "2.3125"]  # where three seeds are run


def cells():
    for rate in RATES:
        for recipe in RECIPES:
            yield f"experts-{rate}-{recipe}-seed0", ["--bpw", rate, "--recipe", recipe, "--seed", "0"]
    for rate in SEED_RATES:
        for recipe in RECIPES[:3]:
            for seed in ("1", "2"):
                yield f"experts-{rate}-{recipe}-seed{seed}", ["--bpw", rate, "--recipe", recipe, "--seed", seed]
    for trunk in TRUNKS:
        yield f"trunk-{trunk}", ["--bpw", "2.3", "--recipe", "default", "--trunk-bpw", trunk]
    yield "routed-weight", ["--bpw", "2.3125", "--recipe", "default", "--calib-weight", "routed"]


def run_cell(a, name, args):
    out = a.out / f"{name}.json"
    if out.exists():
        return
    work = pathlib.Path(tempfile.mkdtemp(prefix="quality-", dir=a.tmp))
    try:
        base = [a.binary, "convert", a.model, work / "m", "--calib", a.calib, "--threads", str(a.threads), "--quiet",
                "--json", work / "convert.json"]
        if a.devices:
            base += ["--device", a.devices[next(a.turn) % len(a.devices)]]
        subprocess.run([str(x) for x in base + args], check=True, stdout=subprocess.DEVNULL)
        a.reference.result()
        check = [a.binary, "check", "--ref", a.ref, work / "m", "--text", a.text, "--json", work / "check.json",
                 "--threads", str(a.threads), "--no-verdict"]
        subprocess.run([str(x) for x in check], check=True, stdout=subprocess.DEVNULL)
        result = json.loads((work / "check.json").read_text())
        made = json.loads((work / "convert.json").read_text())
        made["models"][0].pop("path")
        result["convert"], result["arguments"], result["build"] = made, args, a.build
        tmp = out.with_suffix(".tmp")
        tmp.write_text(json.dumps(result, indent=1) + "\n")
        tmp.rename(out)
        print(name, "kld", result["kld"]["mean"], flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def make_reference(a):
    """The original's side of every check, run once, while the first cells are converted."""
    if not a.ref.exists():
        tmp = a.ref.with_suffix(".making")
        args = [a.binary, "check", a.model, a.model, "--text", a.text, "--save-ref", tmp, "--no-verdict", "--json", "-"]
        subprocess.run([str(x) for x in args], check=True, stdout=subprocess.DEVNULL)
        tmp.rename(a.ref)


def load(a, name):
    f = a.out / f"{name}.json"
    return json.loads(f.read_text()) if f.exists() else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(r) + " |" for r in rows]


def figure(r, spread=None):
    if not r:
        return "not run"
    return f"{r['kld']['mean']:.5f}" + (f" ± {spread:.5f}" if spread else "")


def spread_of(a, rate, recipe):
    ks = [load(a, f"experts-{rate}-{recipe}-seed{s}") for s in range(3)]
    ks = [k["kld"]["mean"] for k in ks if k]
    return (max(ks) - min(ks)) if len(ks) == 3 else None


def verdicts(a):
    """Where the default recipe wins, ties (a difference under the seeds' spread) or loses."""
    spreads = [s for r in SEED_RATES for rec in RECIPES[:3] if (s := spread_of(a, r, rec))]
    relative = []
    for r in SEED_RATES:
        base = load(a, f"experts-{r}-default-seed0")
        s = spread_of(a, r, "default")
        if base and s:
            relative.append(s / base["kld"]["mean"])
    band = max(relative) if relative else 0.0
    out = [f"Three seeds differ by at most {100 * band:.1f} % in the default recipe; smaller differences count as ties."
           if relative else "Three seeds have not been run yet, so no difference can be called a tie.", ""]
    for rate in RATES:
        base = load(a, f"experts-{rate}-default-seed0")
        if not base:
            continue
        parts = []
        for other in RECIPES[1:]:
            r = load(a, f"experts-{rate}-{other}-seed0")
            if r:
                d = r["kld"]["mean"] / base["kld"]["mean"] - 1
                word = "ties with" if abs(d) <= band else "beats" if d > 0 else "loses to"
                parts.append(f"{word} {other} ({100 * d:+.1f} %)")
        if parts:
            out.append(f"- {rate} bits: default " + ", ".join(parts) + ".")
    out += ["", "Where auto is a little under default, it is a tie: auto encodes a layer by whichever of default and plain has",
            "the smaller error on rows held back (kondense.json, `auto`, says which and by how much; on k3-nano at 2.3125",
            "bits default in all eight layers, by 15 to 35 %), and its Hessians come from the other seven eighths of the",
            "rows, which moves the figure as another seed does."]
    return out


def write(a):
    name = pathlib.Path(a.model).name
    lines = ["# Quality, measured", "",
             "Made by `tools/quality.py`; do not edit by hand. Figures of each run, with intervals, routers and",
             "bands, are in [quality/](quality/) as `kondense check --json` wrote them.", "",
             f"Model {name}, calibrated on {pathlib.Path(a.calib).name} (64 rows of 512 tokens), measured on "
             f"{pathlib.Path(a.text).name} (rows of 512 tokens).",
             "KLD is the mean over all positions, in nats, of the original against the quantized model.", ""]
    builds = sorted({json.loads(f.read_text()).get("build", "?") for f in a.out.glob("*.json")})
    missing = [c[0] for c in cells() if not (a.out / f"{c[0]}.json").exists()]
    lines += [f"Measured with the builds of commits {', '.join(builds)}."]
    if missing:
        lines += [f"{len(missing)} of {len(list(cells()))} cells have not been run yet; `tools/quality.py` goes on with them."]
    lines += [""]
    lines += ["## Recipe and rate of the experts", "", "Trunk 4 bits (o_proj 5, latent projections 6), head 6. Mean KLD:", ""]
    rows = []
    for rate in RATES:
        rs = [load(a, f"experts-{rate}-{rec}-seed0") for rec in RECIPES]
        rows.append([rate] + [figure(r) for r in rs])
    lines += table(["experts"] + RECIPES, rows) + [""] + verdicts(a) + [""]
    lines += ["Top-1 agreement and mean router agreement of the default recipe:", ""]
    rows = []
    for rate in RATES:
        r = load(a, f"experts-{rate}-default-seed0")
        if r:
            rows.append([rate, f"{r['kld']['median']:.5f}", f"{r['kld']['p99']:.4f}", f"{100 * r['top1']:.2f} %",
                         f"{100 * r['router']['mean']:.2f} %", f"{100 * r['router']['min']:.2f} %",
                         f"{r['ppl']['src']:.3f}", f"{r['ppl']['dst']:.3f}", f"{r['bits']['file']:.3f}"])
    lines += table(["experts", "median KLD", "p99 KLD", "top-1", "router", "worst layer", "ppl original", "ppl", "bits of file"], rows) + [""]
    lines += ["## Seeds", "", "KLD for three seeds of the random signs:", ""]
    rows = []
    for rate in SEED_RATES:
        for rec in RECIPES[:3]:
            rs = [load(a, f"experts-{rate}-{rec}-seed{s}") for s in range(3)]
            rows.append([rate, rec] + [figure(r) for r in rs])
    lines += table(["experts", "recipe", "seed 0", "seed 1", "seed 2"], rows) + [""]
    lines += ["## Rate of the trunk", "", "Experts at 2.3 bits, default recipe:", ""]
    rows = []
    for t in TRUNKS:
        r = load(a, f"trunk-{t}")
        if r:
            rows.append([t, figure(r), f"{100 * r['top1']:.2f} %", f"{100 * r['router']['mean']:.2f} %",
                         f"{r['convert']['models'][0]['total_bytes'] / 1e6:.1f} MB"])
    lines += table(["trunk", "KLD", "top-1", "router", "weight files"], rows) + [""]
    r, b = load(a, "routed-weight"), load(a, "experts-2.3125-default-seed0")
    if r and b:
        lines += ["## Whose tokens make an expert's Hessian", "",
                  f"At 2.3125 bits: all tokens {b['kld']['mean']:.5f}, routed tokens {r['kld']['mean']:.5f}.", ""]
    (ROOT / "docs/quality.md").write_text("\n".join(lines).rstrip() + "\n")


def main():
    shared = pathlib.Path(os.environ.get("KONDENSE_SHARED", ROOT / "../shared"))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=ROOT / "build/kondense")
    p.add_argument("--build", help="the commit that --binary was built from, if not the tree's")
    p.add_argument("--model", default=shared / "models/k3-mini")
    p.add_argument("--calib", default=shared / "text/calib.txt")
    p.add_argument("--text", default=shared / "text/wiki-small.txt")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/quality")
    p.add_argument("--tmp", default=None, help="folder for the models while they exist")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--device", default="", help="devices for the conversions: cuda:0,cuda:1")
    p.add_argument("--only", default="", help="run only cells whose name contains this")
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    a.threads = max(1, (os.cpu_count() or 1) // a.jobs)
    a.build = a.build or subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    a.out.mkdir(parents=True, exist_ok=True)
    if not a.write:
        todo = [c for c in cells() if a.only in c[0] and not (a.out / f"{c[0]}.json").exists()]
        a.devices, a.turn = [d for d in a.device.split(",") if d], itertools.count()
        a.ref = pathlib.Path(a.tmp or tempfile.gettempdir()) / f"quality-{pathlib.Path(a.model).name}.ref"
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(a.jobs) as pool:
            a.reference = first.submit(make_reference, a) if todo else None
            for f in [pool.submit(run_cell, a, *c) for c in todo]:
                f.result()
    write(a)


if __name__ == "__main__":
    sys.exit(main())
