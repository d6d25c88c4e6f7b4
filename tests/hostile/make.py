#!/usr/bin/env python3
"""Writes hostile GGUF and safetensors files into a folder, and `expect.tsv` beside them: file, and words that the
one line of refusal must hold. What has gone wrong elsewhere with such files is told in docs/formats/gguf.md."""
import pathlib
import struct
import sys

out = pathlib.Path(sys.argv[1])
expect = []
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def s(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def kv(key, kind, value, item=None):
    raw = s(key) + struct.pack("<I", kind)
    if kind == ARR:
        return raw + struct.pack("<IQ", item, len(value)) + b"".join(s(v) if item == STR else struct.pack("<" + PACK[item], v)
                                                                       for v in value)
    return raw + (s(value) if kind == STR else struct.pack("<" + PACK[kind], value))


def tensor(name="x", ne=(32,), kind=0, offset=0):
    return s(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne) + struct.pack("<IQ", kind, offset)


def head(kvs=(), tensors=(), version=3, counts=None):
    n, k = counts or (len(tensors), len(kvs))
    return b"GGUF" + struct.pack("<IQQ", version, n, k) + b"".join(kvs) + b"".join(tensors)


def pad(data, a=32):
    return data + bytes(-len(data) % a)


def put(name, data, reason, also=()):
    name = f"{len(expect):03d}-{name}" if not name.startswith("set") else name
    (out / name).write_bytes(data)
    for other, bytes_ in also:
        (out / other).write_bytes(bytes_)
    expect.append((name, reason))


ARCH = kv("general.architecture", STR, "kimi-k3")
ONE = pad(head([ARCH], [tensor()])) + bytes(128)


def gguf(name, data, reason):
    put(name + ".gguf", data, reason)


# The header.
gguf("empty", b"", "ends inside its head")
gguf("short-magic", b"GGU", "ends inside its head")
gguf("magic", b"GGML" + ONE[4:], "does not begin with GGUF")
gguf("page", b"<!DOCTYPE html><html>" + bytes(200), "does not begin with GGUF")
gguf("magic-only", b"GGUF", "ends inside its head")
for v in (0, 1, 4, 0x7FFF):
    gguf(f"version-{v}", head(version=v), f"GGUF version {v}")
gguf("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")
gguf("tensors-negative", head(counts=(2**63, 0)), "over 1000000")
gguf("tensors-many", head(counts=(1000001, 0)), "over 1000000")
gguf("tensors-absent", head(counts=(1000000, 0)), "ends inside its head")
gguf("keys-negative", head(counts=(0, 2**64 - 1)), "over 1000000 and 65536")
gguf("keys-many", head(counts=(0, 65537)), "and 65536")
gguf("keys-absent", head([ARCH], counts=(0, 2)), "ends inside its head")
for n in (25, 40, len(head([ARCH])) - 1, len(head([ARCH], [tensor()])) - 3):
    gguf(f"cut-{n}", head([ARCH], [tensor()])[:n], "ends inside its head")

# Keys and values.
for n in (2**64 - 1, 2**63, 65536):
    gguf(f"key-length-{n}", head(counts=(0, 1)) + struct.pack("<Q", n) + b"k" * 100, f"key of {n} bytes")
gguf("key-past-end", head(counts=(0, 1)) + struct.pack("<Q", 60000) + b"k", "ends inside its head")
gguf("key-empty", head([kv("", U8, 1)]), "an empty key")
gguf("key-nul", head([kv("a\0b", U8, 1)]), "a key with a control character")
gguf("key-escape", head([kv("\33]0;owned\7", U8, 1)]), "a key with a control character")
gguf("key-twice", head([ARCH, ARCH]), "key 'general.architecture' twice")
for n in (13, 2**32 - 1):
    gguf(f"value-type-{n}", head([s("k") + struct.pack("<I", n) + bytes(9)]), f"value type {n}")
for n in (2**64 - 1, 2**63, (64 << 20) + 1):
    gguf(f"string-length-{n}", head([s("k") + struct.pack("<IQ", STR, n) + b"x"]), f"a string of {n} bytes")
gguf("string-past-end", head([s("k") + struct.pack("<IQ", STR, 1 << 20) + b"x"]), "ends inside its head")
gguf("array-of-arrays", head([s("k") + struct.pack("<IIQ", ARR, ARR, 1) + bytes(40)]), "an array of arrays")
gguf("array-type", head([s("k") + struct.pack("<IIQ", ARR, 77, 1) + bytes(40)]), "array element type 77")
for item, n in ((U8, 2**62), (U64, 2**61), (STR, 2**63), (U64, 2**64 - 1)):
    gguf(f"array-{item}-{n}", head([s("k") + struct.pack("<IIQ", ARR, item, n) + bytes(40)]), "over the head's limit")
gguf("array-past-end", head([s("k") + struct.pack("<IIQ", ARR, U32, 1 << 20) + bytes(40)]), "ends inside its head")
gguf("strings-past-end", head([s("k") + struct.pack("<IIQ", ARR, STR, 3) + s("a") + s("b") + struct.pack("<Q", 99)]),
     "ends inside its head")
for what, value in (("zero", kv("general.alignment", U32, 0)), ("odd", kv("general.alignment", U32, 24)),
                    ("small", kv("general.alignment", U32, 4)), ("huge", kv("general.alignment", U32, 1 << 31))):
    gguf("alignment-" + what, head([ARCH, value]), "is not a power of two")
gguf("alignment-text", head([ARCH, kv("general.alignment", STR, "32")]), "general.alignment is a string")

# Tensor tables.
gguf("name-long", head([ARCH], [tensor("n" * 64)]), "tensor name of 64 bytes")
gguf("name-empty", head([ARCH], [tensor("")]), "an empty tensor name")
gguf("name-escape", head([ARCH], [tensor("\33[2J")]), "a tensor name with a control character")
gguf("name-twice", head([ARCH], [tensor("x"), tensor("x", offset=128)]), "tensor name 'x' twice")
for n in (0, 5, 9, 2**32 - 1):
    gguf(f"dimensions-{n}", head([ARCH], [s("x") + struct.pack("<I", n) + bytes(400)]), f"{n} dimensions")
for n in (0, 2**40 + 1, 2**63 - 1, 2**64 - 1):
    gguf(f"extent-{n}", head([ARCH], [tensor(ne=(n, 2, 1, 1))]), f"extent {n} is outside")
gguf("product", head([ARCH], [tensor(ne=(2**40, 2**40))]), "the product of its extents")
gguf("product-wraps", head([ARCH], [tensor(ne=(2**32, 2**32, 2**32, 2**32))]), "the product of its extents")
gguf("size", head([ARCH], [tensor(ne=(2**40, 2**22))]), "its size does not fit")
for n in (4, 5, 31, 33, 36, 38, 43, 97, 202, 2**32 - 1):
    gguf(f"type-{n}", head([ARCH], [tensor(kind=n)]), f"type id {n} is not known here")
for kind, n, e in ((8, 33, 32), (41, 64, 128), (19, 128, 256)):
    gguf(f"rows-{kind}", head([ARCH], [tensor(ne=(n, 4), kind=kind)]), f"rows of {n} values are not whole blocks of {e}")
for what, second in (("hole", 160), ("overlap", 96), ("odd", 129), ("wraps", 2**64 - 32), ("same", 0)):
    gguf("offset-" + what, pad(head([ARCH], [tensor(), tensor("y", offset=second)])) + bytes(400), f"offset {second},")
gguf("offset-first", pad(head([ARCH], [tensor(offset=32)])) + bytes(400), "offset 32,")
gguf("sum", head([ARCH], [tensor(ne=(2**40, 2**19), kind=28), tensor("y", (2**40, 2**19), 28, 2**62)]), "it ends past 2^63")
gguf("beyond-file", pad(head([ARCH], [tensor(ne=(4096, 4096))])) + bytes(128), "it is cut short")
gguf("one-byte-less", ONE[:-1], "it is cut short")
gguf("no-data", head([ARCH], [tensor()]), "it is cut short")

# A model's keys.
MODEL = {
    "block_count": (U32, 2), "embedding_length": (U32, 64), "feed_forward_length": (U32, 64), "vocab_size": (U32, 512),
    "attention.head_count": (U32, 1), "attention.layer_norm_rms_epsilon": (F32, 1e-5), "attention.key_length_mla": (U32, 96),
    "attention.value_length_mla": (U32, 64), "attention.q_lora_rank": (U32, 32), "attention.kv_lora_rank": (U32, 32),
    "rope.dimension_count": (U32, 32), "ssm.conv_kernel": (U32, 4), "kda.head_dim": (U32, 64), "expert_count": (U32, 4),
    "expert_used_count": (U32, 2), "expert_shared_count": (U32, 1), "expert_feed_forward_length": (U32, 32),
    "expert_latent_length": (U32, 32), "expert_weights_scale": (F32, 1.0), "expert_weights_norm": (BOOL, 1),
    "expert_gating_func": (U32, 2), "leading_dense_block_count": (U32, 1), "attn_res.block_size": (U32, 2),
    "activation.situ_beta": (F32, 4.0), "activation.situ_linear_beta": (F32, 25.0),
}


def model(kinds=kv("kimi-k3.attention.head_count_kv", ARR, [0, 1], I32), arch=ARCH, drop=None, **change):
    keys = {**MODEL, **{k.replace("__", "."): v for k, v in change.items()}}
    return head([arch] + [kv("kimi-k3." + k, *v) for k, v in keys.items() if k != drop] + ([kinds] if kinds else []))


gguf("architecture", model(arch=kv("general.architecture", STR, "llama\33[31m")), "architecture 'llama?[31m' is not supported")
gguf("architecture-none", head([]), "architecture '' is not supported")
gguf("architecture-number", head([kv("general.architecture", U32, 3)]), "general.architecture' is a u32")
for k in ("block_count", "expert_count", "expert_latent_length", "expert_weights_norm", "expert_weights_scale", "kda.head_dim",
          "attn_res.block_size", "activation.situ_beta", "vocab_size"):
    gguf("without-" + k, model(drop=k), f"kimi-k3.{k}' is missing")
gguf("layers-none", model(block_count=(U32, 0)), "block_count': 0 is outside")
gguf("layers-many", model(block_count=(U32, 2**31)), "is outside")
gguf("layers-negative", model(block_count=(I32, -1)), "block_count': -1 is outside")
gguf("layers-text", model(block_count=(STR, "2")), "block_count' is a string")
gguf("layers-u64", model(block_count=(U64, 2**64 - 1)), "block_count' is a u64, not a whole number below 2^63")
gguf("kinds-none", model(kinds=None), "head_count_kv' is not an array")
gguf("kinds-short", model(kv("kimi-k3.attention.head_count_kv", ARR, [1], I32)), "one number for each of 2 layers")
gguf("kinds-scalar", model(kv("kimi-k3.attention.head_count_kv", U32, 1)), "one number for each of 2 layers")
gguf("kinds-other", model(kv("kimi-k3.attention.head_count_kv", ARR, [0, 7], I32)), "layer 1 is neither 0 (KDA) nor 1 (MLA)")
gguf("kinds-text", model(kv("kimi-k3.attention.head_count_kv", ARR, ["0", "1"], STR)), "layer 0 is neither")
gguf("rope", model(rope__dimension_count=(U32, 96)), "leaves nothing beside")
gguf("gating", model(expert_gating_func=(U32, 1)), "only 2 (sigmoid)")
gguf("epsilon-nan", model(attention__layer_norm_rms_epsilon=(F32, float("nan"))), "is not a finite number")
gguf("used-more", model(expert_used_count=(U32, 5)), "num_experts_per_token")
gguf("hidden-huge", model(embedding_length=(U32, 2**30)), "hidden_size")
gguf("widths", model(expert_feed_forward_length=(ARR, [32, 64], I32)), "layers of different widths")

# Split sets.


def part(no, count, total, tensors=()):
    keys = [kv("split.no", U16, no), kv("split.count", U16, count), kv("split.tensors.count", I32, total)]
    return pad(head(keys, tensors)) + bytes(128 * len(tensors))


put("set1-00002-of-00003.gguf", part(1, 3, 1, [tensor()]), "set1-00001-of-00003.gguf")
put("set2-00001-of-00002.gguf", part(0, 3, 1), "split.count says 3 parts, the set has 2",
    [("set2-00002-of-00002.gguf", part(1, 2, 1, [tensor()]))])
put("set3-00001-of-00002.gguf", part(0, 2, 1), "split.no says part 1, it is part 2",
    [("set3-00002-of-00002.gguf", part(0, 2, 1, [tensor()]))])
put("set4-00001-of-00002.gguf", part(0, 2, 1, [tensor()]), "tensor 'x' is in two parts",
    [("set4-00002-of-00002.gguf", part(1, 2, 1, [tensor()]))])
put("set5-00001-of-00002.gguf", part(0, 2, 9), "split.tensors.count says 9, the parts hold 1",
    [("set5-00002-of-00002.gguf", part(1, 2, 9, [tensor()]))])
gguf("lone-part", part(1, 3, 5, [tensor()]), "it is one of 3 parts and is not named like one")

# safetensors.


def st(name, header, reason, data=b"", length=None):
    header = header if isinstance(header, bytes) else header.encode()
    put(name + ".safetensors", struct.pack("<Q", len(header) if length is None else length) + header + data, reason)


def entry(dtype="U8", shape="[4]", offsets="[0,4]"):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


put("st-empty.safetensors", b"", "safetensors")
put("st-seven.safetensors", b"\1\0\0\0\0\0\0", "safetensors")
st("st-length-past", "{}", "header", length=3)
st("st-length-huge", "{}", "header", length=2**63)
st("st-length-limit", "{}", "header", length=100000001)
st("st-no-object", "[]", "")
st("st-garbage", "{\xff}".encode("latin1"), "")
st("st-cut", '{"a":', "")
st("st-deep", '{"a":' + "[" * 200 + "]" * 200 + "}", "")
st("st-past-file", f'{{"a":{entry()}}}', "tensor 'a'", b"abc")
st("st-longer-file", f'{{"a":{entry()}}}', "", b"abcde")
st("st-twice", f'{{"a":{entry()},"a":{entry(offsets="[4,8]")}}}', "twice", bytes(8))
st("st-hole", f'{{"a":{entry()},"b":{entry(offsets="[5,9]")}}}', "hole", bytes(9))
st("st-overlap", f'{{"a":{entry()},"b":{entry(offsets="[2,6]")}}}', "tensor 'b'", bytes(6))
st("st-backwards", f'{{"a":{entry(offsets="[4,0]")}}}', "tensor 'a'", bytes(4))
st("st-negative", f'{{"a":{entry(offsets="[-4,0]")}}}', "whole number", bytes(4))
st("st-fraction", f'{{"a":{entry(offsets="[0,4.0]")}}}', "whole number", bytes(4))
st("st-huge-number", f'{{"a":{entry(offsets="[0,18446744073709551616]")}}}', "", bytes(4))
st("st-product", f'{{"a":{entry(shape="[4294967296,4294967296,2]")}}}', "product", bytes(4))
st("st-wraps", f'{{"a":{entry("F64", "[2305843009213693952]")}}}', "64 bits", bytes(4))
st("st-size", f'{{"a":{entry(shape="[5]")}}}', "tensor 'a'", bytes(4))
st("st-dtype", f'{{"a":{entry("Q4_0")}}}', "dtype", bytes(4))
st("st-half-byte", f'{{"a":{entry("F4", "[7]")}}}', "do not end on a byte", bytes(4))
st("st-rank", f'{{"a":{entry(shape="[1,1,1,1,1,1,1,1,4]")}}}', "more than 8", bytes(4))
st("st-nul-name", f'{{"a\\u0000b":{entry()}}}', "", bytes(4))
st("st-escape-name", f'{{"\\u001b[2J":{entry()}}}', "control character", bytes(4))
st("st-extra", f'{{"a":{entry()[:-1]},"x":1}}}}', "is not one of", bytes(4))
st("st-missing", '{"a":{"dtype":"U8","shape":[4]}}', "tensor 'a'", bytes(4))
st("st-metadata", '{"__metadata__":{"a":1}}', "__metadata__")

(out / "expect.tsv").write_text("".join(f"{n}\t{r}\n" for n, r in expect))
