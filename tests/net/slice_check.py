"""A second reader of GGUF and safetensors, and of what a slice of either must be: written from the formats alone,
so that test_slice.py does not ask the program whether the program is right."""
import json
import mmap
import pathlib
import re
import struct

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 30: (1, 2), 39: (32, 17), 41: (128, 18)}


class Gguf:
    """keys: name -> value, types: name -> value type (of arrays: element type); tensors: name -> (type, ne, bytes),
    or with places=True, places: name -> (offset, size)."""

    def __init__(self, *paths, places=False):
        self.keys, self.types, self.tensors, self.places = {}, {}, {}, {}
        self.only_places = places
        for path in paths:
            with open(path, "rb") as f:
                self.read(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))

    def read(self, m):
        at = 0

        def take(fmt):
            nonlocal at
            v = struct.unpack_from("<" + fmt, m, at)
            at += struct.calcsize("<" + fmt)
            return v[0]

        def text():
            nonlocal at
            n = take("Q")
            at += n
            return m[at - n:at]

        def value(kind):
            return text() if kind == 8 else take(NUMBERS[kind])

        assert m[:4] == b"GGUF"
        at = 4
        take("I")
        tensors, keys = take("Q"), take("Q")
        for _ in range(keys):
            name, kind = text().decode(), take("I")
            if kind == 9:
                kind, n = take("I"), take("Q")
                v = [value(kind) for _ in range(n)]
            else:
                v = value(kind)
            if not name.startswith("split."):
                self.keys[name], self.types[name] = v, kind
        infos = []
        for _ in range(tensors):
            name = text().decode()
            ne = [take("Q") for _ in range(take("I"))]
            infos.append((name, take("I"), ne, take("Q")))
        align = self.keys.get("general.alignment", 32)
        start = (at + align - 1) // align * align
        for name, kind, ne, offset in infos:
            elems, size = BLOCKS[kind]
            n = size
            for d in ne:
                n *= d
            n //= elems
            assert name not in self.tensors and name not in self.places
            if self.only_places:
                self.places[name] = (start + offset, n)
                continue
            self.tensors[name] = (kind, tuple(ne), m[start + offset:start + offset + n])


class St:
    """tensors: name -> (dtype, shape, bytes); config: text_config."""

    def __init__(self, folder):
        self.tensors = {}
        folder = pathlib.Path(folder)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        for name in sorted(set(index["weight_map"].values())):
            data = (folder / name).read_bytes()
            n = struct.unpack("<Q", data[:8])[0]
            for key, t in json.loads(data[8:8 + n]).items():
                if key == "__metadata__":
                    continue
                a, b = t["data_offsets"]
                assert index["weight_map"][key] == name, key
                self.tensors[key] = (t["dtype"], tuple(t["shape"]), data[8 + n + a:8 + n + b])
        assert set(index["weight_map"]) == set(self.tensors)
        assert index["metadata"]["total_size"] == sum(len(t[2]) for t in self.tensors.values())
        self.config = json.loads((folder / "config.json").read_text())["text_config"]


def experts_of(experts, layer):
    return experts[layer] if isinstance(experts, dict) else experts


def rows(data, total, keep):
    n = len(data) // total
    assert n * total == len(data)
    return b"".join(data[e * n:(e + 1) * n] for e in keep)


def expected(model, layers, experts, total):
    """What a slice's tensors must be, bytes and all."""
    out = {}
    gguf = isinstance(model, Gguf)
    for name, (kind, shape, data) in model.tensors.items():
        m = re.match(r"(blk\.|language_model\.model\.layers\.)(\d+)(\..*)", name)
        if not m:
            out[name] = (kind, shape, data)
            continue
        old = int(m[2])
        if old not in layers:
            continue
        new = "%s%d%s" % (m[1], layers.index(old), m[3])
        keep = experts_of(experts, old)
        e = re.search(r"\.experts\.(\d+)\.", m[3])
        if e:
            if int(e[1]) in keep:
                new = new.replace(".experts.%s." % e[1], ".experts.%d." % keep.index(int(e[1])))
                out[new] = (kind, shape, data)
            continue
        if re.search(r"_exps\.|ffn_gate_inp|exp_probs_b|block_sparse_moe\.gate\.", m[3]):
            shape = shape[:-1] + (len(keep),) if gguf else (len(keep),) + shape[1:]
            data = rows(data, total, keep)
        out[new] = (kind, shape, data)
    return out


def same_tensors(is_, should):
    assert set(is_) == set(should), (set(is_) ^ set(should))
    for name in should:
        assert is_[name] == should[name], "%s is %s %s, should be %s %s, bytes %s" % (
            name, is_[name][:2], len(is_[name][2]), should[name][:2], len(should[name][2]),
            is_[name][2] == should[name][2])


def check_gguf(src, dst, layers, experts, used=None):
    total, P = src.keys["kimi-k3.expert_count"], "kimi-k3."
    same_tensors(dst.tensors, expected(src, layers, experts, total))
    count = len(next(iter(experts.values())) if isinstance(experts, dict) else experts)
    changed = {P + "block_count": len(layers), P + "expert_count": count,
               P + "expert_used_count": used or src.keys[P + "expert_used_count"],
               P + "leading_dense_block_count": int(0 in layers),
               P + "attention.head_count_kv": [src.keys[P + "attention.head_count_kv"][l] for l in layers]}
    for key, value in src.keys.items():
        if key in ("general.name", "general.size_label"):
            assert dst.keys[key] != value
            continue
        assert dst.keys[key] == changed.get(key, value), (key, dst.keys[key])
        assert dst.types[key] == src.types[key], key
    assert all(k.startswith("slice.") or k in src.keys or k == "general.size_label" for k in dst.keys)
    assert dst.keys["slice.layers.kept"] == list(layers)
    if not isinstance(experts, dict):
        assert dst.keys["slice.experts.kept"] == list(experts)


def check_st(src, dst, layers, experts, used=None):
    total = src.config["num_experts"]
    same_tensors(dst.tensors, expected(src, layers, experts, total))
    want = json.loads(json.dumps(src.config))
    full = src.config["linear_attn_config"]["full_attn_layers"]
    want["num_hidden_layers"] = len(layers)
    want["num_experts"] = len(next(iter(experts.values())) if isinstance(experts, dict) else experts)
    want["num_experts_per_token"] = used or src.config["num_experts_per_token"]
    want["first_k_dense_replace"] = int(0 in layers)
    want["linear_attn_config"]["full_attn_layers"] = [i + 1 for i, l in enumerate(layers) if l + 1 in full]
    want["linear_attn_config"]["kda_layers"] = [i + 1 for i, l in enumerate(layers) if l + 1 not in full]
    assert dst.config == want, (dst.config, want)
