#!/usr/bin/env python3
"""llama.cpp loads and runs FILE, a GGUF of the model SRC with golden.safetensors: its logits against the goldens
(mean KLD and top-1; largest differences say little, gguf-slicing, Decision 2), and its tokenizer. --loads FILE: it
loads and decodes, no more."""
import ctypes
import json
import pathlib
import struct
import sys

try:
    import llama_cpp as L
    import numpy as np
except ImportError as e:
    print(f"skipped: {e.name} is not there (tools/judges.sh makes it)")
    sys.exit(77)

said = []


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def log(_level, text, _data):
    said.append(text.decode("utf-8", "replace"))


L.llama_log_set(log, None)
L.llama_backend_init()
only_loads = sys.argv[1] == "--loads"
path = sys.argv[2]
params = L.llama_model_default_params()
params.n_gpu_layers = 0
model = L.llama_model_load_from_file(path.encode(), params)
if not model:
    if "unknown model architecture" in "".join(said):
        print("skipped: this llama.cpp does not know kimi-k3")
        sys.exit(77)
    sys.exit("llama.cpp does not load it: " + "".join(said[-5:]))
vocab = L.llama_model_get_vocab(model)
rows = L.llama_vocab_n_tokens(vocab)


def logits(ids):
    p = L.llama_context_default_params()
    p.n_ctx = p.n_batch = p.n_ubatch = 512
    p.n_threads = p.n_threads_batch = 1
    ctx = L.llama_init_from_model(model, p)
    batch = L.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, t in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(t), i, 1, 1
        batch.seq_id[i][0] = 0
    assert L.llama_decode(ctx, batch) == 0, "llama_decode"
    out = np.ctypeslib.as_array(L.llama_get_logits(ctx), shape=(len(ids), rows)).astype(np.float64).copy()
    L.llama_batch_free(batch)
    L.llama_free(ctx)
    return out


def log_probs(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


if only_loads:
    assert np.isfinite(logits(range(10, 50))).all()
    print("it loads and decodes")
    sys.exit(0)
src = pathlib.Path(sys.argv[1])
raw = (src / "golden.safetensors").read_bytes()
n = struct.unpack("<Q", raw[:8])[0]
table = json.loads(raw[8:8 + n])


def golden(name):
    a, b = table[name]["data_offsets"]
    return np.frombuffer(raw, {"F32": np.float32, "I32": np.int32}[table[name]["dtype"]], (b - a) // 4, 8 + n + a).reshape(
        table[name]["shape"])


kld, top, count = 0, 0, 0
for i, prompt in enumerate(json.loads((src / "golden.json").read_text())):
    ids, ref = golden(f"{i}.ids"), golden(f"{i}.logits").astype(np.float64)
    text = prompt["prompt"].encode()
    if b"<|" not in text:
        buf = (L.llama_token * 4096)()
        k = L.llama_tokenize(vocab, text, len(text), buf, 4096, False, False)
        assert list(buf[:k]) == list(ids), f"prompt {i}: other tokens"
    a, b = log_probs(ref), log_probs(logits(ids))
    kld += float((np.exp(a) * (a - b)).sum())
    top += int((a.argmax(1) == b.argmax(1)).sum())
    count += len(ids)
print(f"llama.cpp: mean KLD {kld / count:.2e}, top-1 {100 * top / count:.2f} % over {count} tokens")
assert kld / count <= 2e-4 and top / count >= 0.99
