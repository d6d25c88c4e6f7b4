#!/usr/bin/env python3
"""exllamav3 on this machine's device, measured as `kondense bench` measures this program.

    kondense bench decode --device cuda --rate 2,3 --json >decode.json
    tools/rivals/exllamav3.py decode --ours decode.json       # beside ours, and how many times faster ours is
    kondense bench encode --device cuda --json >encode.json
    tools/rivals/exllamav3.py encode --ours encode.json
    tools/rivals/exllamav3.py agree MODEL                     # MODEL: what kondense convert wrote

Needs a CUDA device, torch, and exllamav3, which is no part of this project: installed, so that `import
exllamav3` works; or a checkout named by --checkout and its extension in a folder named by --ext, all of it
or the part that tools/rivals/exllamav3.sh builds in a few minutes. --json FILE also writes the figures.

decode  Products with random codes (mul1), the stored matrices rotated so that none is in a cache: each of
        exllamav3's paths, called as its own layers call them, in CUDA graphs where they can be captured. A
        time is the median over replays. `error` is the distance of that path's first result from a product
        in float64, relative to its length. Its experts use SiLU, ours another function of the same cost.
encode  Its search on the tiles that `kondense bench encode` draws, in full waves of its kernel.
agree   Its linear layer loads tensors of MODEL (at whole rates, the only ones it knows) and multiplies random
        rows; compared with a product in float64 by a decoder written here from docs/formats/exl3.md.

Exit code 3: a result is further off than its bound.
"""
import argparse, importlib, importlib.util, json, math, os, pathlib, re, statistics, struct, sys, tempfile, time, types

import torch

DEVICE = "cuda"
POOL = 512 << 20  # bytes of stored matrices, well over a device's caches
SHAPES = [(12288, 7168), (7168, 12288)]  # inputs, outputs
ROWS = [1, 4, 16]
EXPERTS, TOP, LATENT, INNER = 64, 16, 3584, 3072
SWITCHES = ("EXL3_INT8_GEMV", "EXL3_GEMV", "EXL3_GEMV_SMEM")  # read by exllamav3 at every call
# As kd_bench_scale has it, for whole rates.
SCALE = [1.12, 1.00, 0.96, 0.92, 0.88, 0.88, 0.84, 0.80, 0.80]
# fp16 rounds to 2^-11 of a value: x times its signs, the turned x, the product, the turned product, and that
# times its scales are at most 5 such roundings; the usual is well under half of it.
FP16_BOUND = 5 * 2.0**-11
# Activations of 8 bits: its authors expect 0.9 % of the result's length.
INT8_BOUND = 2e-2


# ---- EXL3 in float64: nothing of exllamav3 in it ----

def codebook():
    """The values of mul1's 65,536 states."""
    x = torch.arange(65536) * 0x83DCD12D & 0xFFFFFFFF
    total = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)
    return ((1024 + total).double() * (887 / 131072) - 1329 / 128).half().double()


def decoded(trellis):
    """[k][n] in float64 of tiles [k/16][n/16][16 * K], 16-bit words as stored."""
    device, (tk, tn, words) = trellis.device, trellis.shape
    rate = words // 16
    end = torch.arange(1, 257) * rate
    unit = (end + 15) // 16 - 1
    shift = (16 * (unit + 1) - end).to(device)
    here, before = (unit ^ 1).to(device), (((unit - 1) % words) ^ 1).to(device)
    p = torch.arange(256)
    lane, j = p // 8, p % 8
    place = (16 * (2 * (lane % 4) + j % 2 + 8 * (j // 2 % 2)) + lane // 4 + 8 * (j // 4)).to(device)
    table = codebook().to(device)
    out = torch.empty(16 * tk, 16 * tn, dtype=torch.float64, device=device)
    for a in range(0, tk, 64):  # a part at a time: 64-bit integers take room
        half = trellis[a : a + 64].long() & 0xFFFF
        state = (half[..., before] << 16 | half[..., here]) >> shift & 0xFFFF
        tile = torch.empty(state.shape, dtype=torch.float64, device=device)
        tile[..., place] = table[state]
        rows = tile.shape[0]
        out[16 * a : 16 * (a + rows)] = tile.view(rows, tn, 16, 16).transpose(1, 2).reshape(16 * rows, 16 * tn)
    return out


def turned(x):
    """The normalised Hadamard transform of each 128 values."""
    v = x.reshape(*x.shape[:-1], -1, 128)
    step = 1
    while step < 128:
        pair = v.reshape(*v.shape[:-1], -1, 2, step)
        a, b = pair[..., 0, :], pair[..., 1, :]
        v = torch.stack((a + b, a - b), -2).reshape(v.shape)
        step *= 2
    return (v / math.sqrt(128)).reshape(x.shape)


def product(x, weights, suh, svh):
    return turned(turned(x.double() * suh.double()) @ weights) * svh.double()


def distance(y, exact):
    return float((y.double() - exact).norm() / exact.norm())


# ---- exllamav3 ----

def extension(a):
    if a.ext:
        sys.path.insert(0, str(a.ext))
        return importlib.import_module("exllamav3_ext")
    if a.checkout:
        sys.path.insert(0, str(a.checkout))
    return importlib.import_module("exllamav3.ext").exllamav3_ext


def version(a):
    if a.checkout:
        text = (a.checkout / "exllamav3/version.py").read_text()
        return re.search(r'"([^"]+)"', text).group(1)
    return importlib.import_module("exllamav3.version").__version__


def linear_class(a, ext):
    """exllamav3's own layer. Beside a part of its extension the rest of its package cannot be imported, so
    what the layer imports but does not need for a product is left empty."""
    if not a.ext:
        return importlib.import_module("exllamav3.modules.quant.exl3").LinearEXL3
    root = a.checkout / "exllamav3"
    for name in ("", ".modules", ".modules.quant", ".modules.quant.exl3_lib", ".model"):
        package = types.ModuleType("exllamav3" + name)
        package.__path__ = []
        sys.modules[package.__name__] = package
    needs = types.SimpleNamespace(no_reconstruct=False)
    empty = {
        "ext": {"exllamav3_ext": ext},
        "util": {"profile_opt": None, "__path__": []},
        "model.config": {"Config": object, "NullConfig": lambda: types.SimpleNamespace(infer_params=needs)},
        "modules.quant.exl3_lib.quantize": dict.fromkeys(("preapply_had_l", "preapply_had_r", "had_k", "had_n")),
    }
    for name, values in empty.items():
        module = types.ModuleType("exllamav3." + name)
        vars(module).update(values)
        sys.modules[module.__name__] = module
    for name in ("util.tensor", "modules.quant.exl3"):
        path = root / (name.replace(".", "/") + ".py")
        spec = importlib.util.spec_from_file_location("exllamav3." + name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module.LinearEXL3


def switch(values):
    for name in SWITCHES:
        os.environ.pop(name, None)
    os.environ.update(values)


# ---- timing ----

def replay_us(calls):
    """Microseconds of one call: the median over replays of a graph of all calls, each replay timed by events.
    Also whether they could be captured: if not, they were launched one by one."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    captured = True
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        work = graph.replay
    except RuntimeError as e:
        print(f"    not captured: {e}", file=sys.stderr)
        captured, work = False, lambda: [call() for call in calls]
    until = time.monotonic() + 0.1  # a device at rest lowers its clock
    while time.monotonic() < until:
        work()
        torch.cuda.synchronize()
    us = []
    for _ in range(15):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        us.append(begin.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(us), captured


def codes(*shape):
    return torch.randint(-32768, 32768, shape, dtype=torch.int16, device=DEVICE)


def signs(count, size, scale):
    return (torch.randint(0, 2, (count, size), device=DEVICE) * 2 - 1).half() * scale


# ---- decode ----

def paths(ext, rows, rate):
    """Name, switches, bound of the error and the function of each path for so many rows."""
    gemm = lambda x, w, y, su, t, sv: ext.exl3_gemm(x, w, y, su, t, sv, -1, False, True, 0)
    yield "as shipped", {}, INT8_BOUND, gemm
    if rows <= 2:
        yield "int8", {"EXL3_INT8_GEMV": "2"}, INT8_BOUND, gemm
    if rows == 1:
        yield "int8, residual", {"EXL3_INT8_GEMV": "1"}, FP16_BOUND, gemm
    if rows <= 8 and 2 <= rate <= 4:
        for mode, name in (("3", "narrow"), ("4", "wide")):
            for smem in ("0", "1") if rate < 4 else ("0",):
                yield (f"fp16 gemv, {name}{', staged' if smem == '1' else ''}",
                       {"EXL3_INT8_GEMV": "0", "EXL3_GEMV": mode, "EXL3_GEMV_SMEM": smem}, FP16_BOUND, gemm)
    yield "gemm, tuned", {"EXL3_INT8_GEMV": "0", "EXL3_GEMV": "0"}, FP16_BOUND, gemm


def dense(ext, rate, k, n):
    each = k * n * rate // 8
    count = min(POOL // each + 2, 64)
    tiles = [codes(k // 16, n // 16, 16 * rate) for _ in range(count)]
    suh, svh = signs(count, k, 1 / math.sqrt(k)), signs(count, n, 1)
    exact = decoded(tiles[0])
    for rows in ROWS:
        x, y = torch.randn(rows, k, device=DEVICE).half(), torch.empty(rows, n, dtype=torch.half, device=DEVICE)
        scratch, want = torch.empty_like(x), product(x, exact, suh[0], svh[0])
        for name, switches, bound, call in paths(ext, rows, rate):
            switch(switches)
            kernel = call(x, tiles[0], y, suh[0], scratch, svh[0])
            error = distance(y, want)
            calls = [lambda i=i: call(x, tiles[i], y, suh[i], scratch, svh[i]) for i in range(count)]
            us, captured = replay_us(calls)
            yield {"type": f"EXL3 {k} > {n}", "rate": rate, "tokens": rows, "path": name, "kernel": kernel, "us": us,
                   "graph": captured, "gweights_s": k * n / us / 1000, "error": error, "bound": bound}


class Experts:
    """Four lists of 16 experts that share none, each [gate, up, down]."""

    def __init__(self, rate):
        self.rate = rate
        shapes = ((LATENT, INNER), (LATENT, INNER), (INNER, LATENT))
        self.tiles = [[codes(k // 16, n // 16, 16 * rate) for _ in range(EXPERTS)] for k, n in shapes]
        self.suh = [signs(EXPERTS, k, 1 / math.sqrt(k)) for k, _ in shapes]
        self.svh = [signs(EXPERTS, n, 1) for _, n in shapes]
        table = lambda t: torch.tensor([v.data_ptr() for v in t], device=DEVICE)
        self.ptr = [[table(group[m]) for group in (self.tiles, self.suh, self.svh)] for m in range(3)]
        self.lists = [torch.arange(TOP * i, TOP * (i + 1), device=DEVICE).view(1, TOP) for i in range(EXPERTS // TOP)]
        self.weights = torch.full((1, TOP), 1 / TOP, device=DEVICE).half()
        self.x = torch.randn(1, LATENT, device=DEVICE).half()
        self.y = torch.zeros(1, LATENT, device=DEVICE)

    def exact(self):
        y = 0
        for e in range(TOP):
            w = [(decoded(self.tiles[m][e]), self.suh[m][e], self.svh[m][e]) for m in range(3)]
            inner = torch.nn.functional.silu(product(self.x, *w[0])) * product(self.x, *w[1])
            y = y + product(inner, *w[2]) / TOP
        return y


def batched(ext, e):
    """Three products with all experts of a list: what its layers run for up to 8 tokens."""
    half = lambda *shape: torch.empty(*shape, dtype=torch.half, device=DEVICE)
    turned_x, gate, up, inner, turned_inner = (half(TOP, 1, n) for n in (LATENT, INNER, INNER, INNER, INNER))
    down = torch.empty(TOP, 1, LATENT, device=DEVICE)

    def multiply(x, m, y, scratch, chosen, weights):
        tiles, suh, svh = e.ptr[m]
        ext.exl3_mgemm(x, tiles, y, suh, scratch, svh, chosen, weights, e.rate, -1, 0, 1, -1, -1, 0, 1, None, None)

    def call(i):
        multiply(e.x.view(1, 1, LATENT), 0, gate, turned_x, e.lists[i], None)
        multiply(e.x.view(1, 1, LATENT), 1, up, turned_x, e.lists[i], None)
        ext.silu_mul(gate, up, inner, 0.0)
        multiply(inner, 2, down, turned_inner, e.lists[i], e.weights)
        return down[0]

    return call


def fused(ext, e):
    """One kernel for everything: what its layers run for more tokens."""
    groups, room = ext.exl3_moe_max_concurrency(0), 128
    state = [torch.empty(groups, room, LATENT, dtype=torch.half, device=DEVICE) for _ in range(2)]
    inner = [torch.empty(groups, room, INNER, dtype=torch.half, device=DEVICE) for _ in range(2)]
    token = torch.zeros(TOP, dtype=torch.long, device=DEVICE)
    weight = e.weights.view(TOP)
    counts = [torch.bincount(chosen.view(-1), minlength=EXPERTS + 1) for chosen in e.lists]
    tables = [table for m in range(3) for table in e.ptr[m]]

    def call(i):
        e.y.zero_()
        # 0: SiLU; not mcg but mul1, three times; no limit of the activation
        ext.exl3_moe(e.x, e.y, counts[i], token, weight, *state, *inner, 0, *[e.rate] * 3, *tables,
                     *[False, True] * 3, 0.0, TOP)
        return e.y

    return call


def singly(ext, e):
    """Each expert's three products alone, as shipped: without the sum, which would only add time."""
    half = lambda n: torch.empty(1, n, dtype=torch.half, device=DEVICE)
    turned_x, gate, up, inner, turned_inner = half(LATENT), half(INNER), half(INNER), half(INNER), half(INNER)
    down = torch.empty(TOP, LATENT, device=DEVICE)

    def multiply(x, m, expert, y, scratch):
        ext.exl3_gemm(x, e.tiles[m][expert], y, e.suh[m][expert], scratch, e.svh[m][expert], -1, False, True, 0)

    def call(i):
        for j in range(TOP):
            multiply(e.x, 0, TOP * i + j, gate, turned_x)
            multiply(e.x, 1, TOP * i + j, up, turned_x)
            ext.silu_mul(gate, up, inner, 0.0)
            multiply(inner, 2, TOP * i + j, down[j : j + 1], turned_inner)
        return down

    return call


def experts(ext, rate):
    e = Experts(rate)
    want = e.exact()
    for name, make, switches, bound in (
        ("batched products", batched, {}, FP16_BOUND),
        ("one kernel", fused, {}, FP16_BOUND),
        ("single products, int8", singly, {}, INT8_BOUND),
        ("single products, fp16", singly, {"EXL3_INT8_GEMV": "0"}, FP16_BOUND),
    ):
        switch(switches)
        try:
            call = make(ext, e)
            y = call(0)
            error = distance(y.mean(0, keepdim=True) if make is singly else y, want)
            # Three products one after another, and their sum.
            us, captured = replay_us([lambda i=i: call(i) for i in range(len(e.lists))] * 4)
        except RuntimeError as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            continue
        yield {"type": "EXL3, 16 experts", "rate": rate, "tokens": 1, "path": name, "us": us, "graph": captured,
               "gweights_s": 3 * TOP * LATENT * INNER / us / 1000, "error": error, "bound": 3 * bound}


def decode(a, ext, ours):
    found = []
    for rate in a.rate or [2, 3]:
        for work in [*((dense, s) for s in SHAPES), (experts, ())]:
            for f in work[0](ext, rate, *work[1]):
                found.append(f)
                print(f"{f['type']:17} {f['rate']}  T={f['tokens']:<2}  {f['us']:8.1f} us  {f['gweights_s']:8.1f} "
                      f"Gweights/s  error {f['error']:.1e}{'' if f['error'] <= f['bound'] else ' OVER'}  {f['path']}"
                      f"{'' if f['graph'] else ', no graph'}", flush=True)
            torch.cuda.empty_cache()
    print("\nfastest")
    best = {}
    for f in found:
        key = (f["type"], f["rate"], f["tokens"])
        if key not in best or f["us"] < best[key]["us"]:
            best[key] = f
    for key, f in best.items():
        line = f"{f['type']:17} {f['rate']}  T={f['tokens']:<2}  {f['us']:8.1f} us  {f['path']}"
        for o in ours:
            if (o.get("type"), o.get("rate"), o.get("tokens")) == key:
                f["ours_us"], f["ours_times"] = o["us"], f["us"] / o["us"]
                line += f"   ours {o['us']:.1f} us, {f['ours_times']:.2f} times as fast"
        print(line)
    return {"results": found, "fastest": list(best.values())}, any(not f["error"] <= f["bound"] for f in found)


# ---- encode ----

def gauss(count):
    """The first values of kd_bench_gauss before its scale."""
    import numpy as np

    def unit(i):
        z = np.uint64(7) + (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 9007199254740992.0

    i = np.arange(count, dtype=np.uint64) * np.uint64(2)
    return torch.from_numpy(np.sqrt(-2 * np.log(1 - unit(i))) * np.cos(6.283185307179586 * unit(i + np.uint64(1))))


def encode(a, ext, ours):
    found, sms = [], torch.cuda.get_device_properties(0).multi_processor_count
    tiles = a.tiles or 64 * sms
    normal, table = gauss(tiles * 256).view(tiles, 256), codebook().to(DEVICE)
    for rate in a.rate or range(1, 9):
        scale = SCALE[rate - 1]
        # As many tiles as its kernel takes at once, and no more than it ships with: below 4 bits its indices are
        # 32-bit numbers, which more than 256 tiles pass at 1 bit.
        wave = 2 * sms if rate >= 4 else min(2 * sms, 256)
        target = (normal * scale).float().to(DEVICE)
        values, states = torch.zeros_like(target), torch.zeros_like(target, dtype=torch.short)
        costs = torch.zeros(wave, 2, 65536 >> rate, dtype=torch.half, device=DEVICE)
        edges = torch.zeros(wave, 256, 65536 >> rate, dtype=torch.short, device=DEVICE)
        speed = []
        for i in range(6):  # the first one warms up
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            ext.quantize_tiles(target, values, states, costs, edges, rate, False, True)
            end.record()
            end.synchronize()
            if i:
                speed.append(tiles / begin.elapsed_time(end) * 1000)
        chosen = table[states.long() & 0xFFFF]
        f = {"rate": rate, "tiles_s": statistics.median(speed), "min": min(speed), "max": max(speed), "tiles": tiles,
             "mse": float((chosen - target.double()).square().mean()) / scale**2,
             "values_agree": bool((values.double() == chosen).all())}
        line = f"{rate}  {f['tiles_s']:9.0f} tiles/s ({f['min']:.0f} to {f['max']:.0f})  MSE {f['mse']:.6e}"
        for o in ours:
            if o.get("rate") == rate and "tiles_s" in o:
                f["ours_tiles_s"], f["ours_mse"], f["ours_tiles"] = o["tiles_s"]["median"], o["mse"], o["mse_tiles"]
                f["ours_times"] = f["ours_tiles_s"] / f["tiles_s"]
                line += f"   ours {f['ours_tiles_s']:.0f}, {f['ours_times']:.2f} times as fast, MSE {o['mse']:.6e}"
                line += "" if o["mse_tiles"] == tiles else f" on {o['mse_tiles']} tiles: not the same"
        print(line + ("" if f["values_agree"] else "   ITS VALUES ARE NOT ITS STATES'"), flush=True)
        found.append(f)
        del costs, edges
    return {"results": found}, not all(f["values_agree"] for f in found)


# ---- agree ----

def stored(folder):
    """Every tensor of the .safetensors files of a folder: name -> (file, type, shape, first byte)."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as f:
            (size,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
        for name, t in header.items():
            if name != "__metadata__":
                found[name] = (path, t["dtype"], t["shape"], 8 + size + t["data_offsets"][0])
    return found


def tensor(place):
    path, kind, shape, first = place
    dtype = {"I16": torch.int16, "F16": torch.half, "I32": torch.int32}[kind]
    count = math.prod(shape)
    with open(path, "rb") as f:
        f.seek(first)
        data = bytearray(f.read(count * dtype.itemsize))
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def agree(a, ext, _):
    every, groups = stored(a.model), {}
    layer, worst, found, missed = linear_class(a, ext), {}, [], 0
    for name in every:
        key, _, last = name.rpartition(".")
        if last == "trellis" and f"{key}.mul1" in every and every[name][2][2] % 16 == 0:
            groups.setdefault(tuple(every[name][2]), []).append(key)
    rates = a.rate or range(1, 9)
    for (tk, tn, words), keys in sorted(groups.items()):
        if words // 16 not in rates:
            continue
        for key in keys[: a.each]:
            given = {t: tensor(every[f"{key}.{t}"]).to(DEVICE) for t in ("trellis", "suh", "svh", "mul1")}
            trellis, suh, svh = given["trellis"], given["suh"], given["svh"]
            linear = layer(None, 16 * tk, 16 * tn, **given)
            weights = decoded(trellis)
            for rows in ROWS:
                x = torch.randn(rows, 16 * tk, device=DEVICE).half()
                want = product(x, weights, suh, svh)
                for path, value, bound in (("fp16", "0", FP16_BOUND), ("int8, residual", "1", FP16_BOUND),
                                           ("int8", "2", INT8_BOUND)):
                    switch({"EXL3_INT8_GEMV": value})
                    error = distance(linear.forward(x, {}), want)
                    missed += not error <= bound
                    at = worst.setdefault((words // 16, path, rows), {"rate": words // 16, "path": path, "rows": rows,
                                                                      "tensors": 0, "error": 0.0, "bound": bound})
                    at["tensors"] += 1
                    at["error"] = max(at["error"], error)
                    found.append({"tensor": key, "inputs": 16 * tk, "outputs": 16 * tn, "rate": words // 16,
                                  "rows": rows, "path": path, "error": error, "bound": bound})
    print("rate  rows  path             tensors  largest error   bound")
    for at in worst.values():
        print(f"{at['rate']:4}  {at['rows']:4}  {at['path']:15}  {at['tensors']:7}  {at['error']:13.2e}  "
              f"{at['bound']:.1e}{'' if at['error'] <= at['bound'] else '   OVER'}")
    sizes = sorted({(f["inputs"], f["outputs"]) for f in found})
    print(f"{len({f['tensor'] for f in found})} tensors of {a.model}: " + ", ".join(f"{k} > {n}" for k, n in sizes))
    if not found:
        sys.exit(f"{a.model}: no tensors of mul1 at a whole rate")
    return {"results": found, "worst": list(worst.values())}, missed > 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["decode", "encode", "agree"])
    p.add_argument("model", nargs="?", type=pathlib.Path, help="agree: an EXL3 model")
    p.add_argument("--checkout", type=pathlib.Path, help="exllamav3's repository, if it is not installed")
    p.add_argument("--ext", type=pathlib.Path, help="the folder of its compiled extension, if it is not installed")
    p.add_argument("--ours", type=pathlib.Path, help="what kondense bench printed with --json in the same run")
    p.add_argument("--json", type=pathlib.Path, help="write the figures here too")
    p.add_argument("--rate", type=lambda s: [int(v) for v in s.split(",")], help="whole rates, as 2,3")
    p.add_argument("--tiles", type=int, help="encode: tiles; default 64 a multiprocessor, as kondense bench")
    p.add_argument("--each", type=int, default=3, help="agree: tensors of each shape and rate")
    a = p.parse_args()
    if a.what == "agree" and not a.model:
        p.error("agree needs a model")
    if a.ext and not a.checkout:
        p.error("--ext needs --checkout")
    if not torch.cuda.is_available():
        print("no CUDA device: skipped")
        sys.exit(77)
    torch.manual_seed(1)
    # Its tuner keeps what it found between runs: here every run tunes anew.
    os.environ["EXLLAMAV3_TUNE_CACHE"] = tempfile.mkdtemp(prefix="exllamav3-tuned-")
    ext = extension(a)
    ours = json.loads(a.ours.read_text())["results"] if a.ours else []
    device = torch.cuda.get_device_properties(0)
    print(f"exllamav3 {version(a)}, torch {torch.__version__}, {device.name}, "
          f"{device.multi_processor_count} multiprocessors")
    with torch.inference_mode():
        result, missed = globals()[a.what](a, ext, ours)
    if a.json:
        head = {"exllamav3": version(a), "torch": torch.__version__, "device": device.name, "what": a.what}
        a.json.write_text(json.dumps({**head, **result}, indent=1) + "\n")
    if missed:
        print("some are further off than their bound")
        sys.exit(3)


if __name__ == "__main__":
    main()
