#!/usr/bin/env bash
# Made models: sizes foretold to the byte and equal to plan's, the same bytes for any threads and after
# kill -9, a range of layers and a rank's cut as parts of the whole, refusals that touch nothing.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$KONDENSE_TEST_ROOT/tests/data
fail() { echo "synth-made: $1" >&2; exit 1; }
fails() { # CODE WORDS command...
    local want=$1 words=$2 code=0
    shift 2
    "$KONDENSE" "$@" >"$work/out" 2>"$work/err" || code=$?
    test $code -eq "$want" || { cat "$work/err"; fail "exit code $code, not $want: $*"; }
    test "$(wc -l <"$work/err")" -eq 1 && grep -q -- "$words" "$work/err" || { cat "$work/err"; fail "$*"; }
}
awkward=$data/awkward/config.json

# Kimi K3's own shape against plan's counts: a layer of each kind by the sums of kinds of layers.
"$KONDENSE" plan -m pc --json "$work/plan.json" >/dev/null
for l in 0-0 1-1 3-3 0-92; do
    "$KONDENSE" synth --config release --layers $l --dry-run --json "$work/$l.json" >/dev/null
done
"$KONDENSE" synth --config release --layers 1-1 --dry-run --format exl3 --bpw 2 --json "$work/e.json" >"$work/e.txt"
grep -q "1.9999\|2.0000 bits" "$work/e.txt" || fail "no rate: $(cat "$work/e.txt")"
python3 - "$work" <<'P' || fail "sizes"
import json, sys
d = sys.argv[1]
j = lambda n: json.load(open(f"{d}/{n}.json"))
k = j("plan")["forms"][0]["bytes_by_kind"]
dense, kda, mla, whole = j("0-0"), j("1-1"), j("3-3"), j("0-92")
assert whole["end_bytes"] == k["embed"] + k["head"] + k["final"], (whole, k)
assert whole["layer_bytes"] == sum(k.values()) - whole["end_bytes"] - k["vision"] - k["projector"]
per_kda, per_mla, norms = k["kda"] // 69, k["mla"] // 24, k["norms"] // 93
moe = (k["routed"] + k["router"] + k["latent"] + k["shared"]) // 92
assert kda["layer_bytes"] == per_kda + norms + moe, (kda, per_kda, norms, moe)
assert mla["layer_bytes"] == per_mla + norms + moe
assert dense["layer_bytes"] == per_kda + norms + k["dense"]
P

# Threads, and a form of it: the sizes foretold are the files', and plan says the same of its config.
"$KONDENSE" synth "$work/one" --config "$awkward" --seed 7 --threads 1 --json "$work/one.json" >/dev/null
"$KONDENSE" synth "$work/two" --config "$awkward" --seed 7 --threads 3 >/dev/null
diff -r "$work/one" "$work/two" || fail "threads decide bytes"
test ! -e "$work/one/.synth" || fail "leaves its work folder"
"$KONDENSE" synth "$work/x" --config "$awkward" --seed 7 --format exl3 --bpw 2.3 --json "$work/x.json" >/dev/null
for m in one x; do
    wrote=$(cat "$work/$m"/*.safetensors | wc -c)
    grep -q "\"file_bytes\": $wrote,\?\$" "$work/$m.json" || fail "$m: $wrote bytes, not as foretold: $(cat "$work/$m.json")"
    "$KONDENSE" inspect "$work/$m" >"$work/out" || fail "inspect $m"
    "$KONDENSE" generate "$work/$m" --ids 1,2,3 -n 2 >/dev/null || fail "$m does not run"
done
"$KONDENSE" plan "$work/one" -m pc --bpw 2.3 --json - >"$work/out"
grep -q "\"file_bytes\": $(cat "$work/x"/*.safetensors | wc -c)," "$work/out" ||
    fail "EXL3 is not plan's size"
"$KONDENSE" convert "$work/one" "$work/none" --dry-run --bpw 2.3 >"$work/out"
grep -q "weight files *$(cat "$work/x"/*.safetensors | wc -c) bytes" "$work/out" || fail "nor convert's"

# kill -9 at growing times, then again: the same bytes.
pause=0.005 tries=0
while ! test -e "$work/killed/config.json"; do
    tries=$((tries + 1))
    test $tries -lt 60 || fail "never finished"
    "$KONDENSE" synth "$work/killed" --config "$awkward" --seed 7 --threads $((tries % 2 + 1)) >/dev/null 2>&1 &
    pid=$!
    sleep $pause
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    pause=$(awk "BEGIN { print $pause * 1.4 }")
done
test ! -d "$work/killed/.synth" || "$KONDENSE" synth "$work/killed" --config "$awkward" --seed 7 >/dev/null
diff -r "$work/one" "$work/killed" || fail "killed and gone on with: other bytes"
# Begun with something else, finished already.
mkdir -p "$work/begun/.synth" && echo '{}' >"$work/begun/.synth/synth.json"
fails 2 "another config or other options" synth "$work/begun" --config "$awkward"
: >"$work/begun/.synth/synth.json"
fails 2 "another config or other options" synth "$work/begun" --config "$awkward"
# A file of one of its names that it did not make is neither kept nor written over; others stay.
mkdir "$work/foreign" && echo 1 | tee "$work/foreign/model-00002-of-000005.safetensors" >"$work/foreign/a.tmp123456"
fails 2 "model-00002-of-000005.safetensors' is there and was not made" synth "$work/foreign" --config "$awkward"
test "$(cat "$work/foreign"/*)" = "1
1" || fail "touches what it refuses: $(ls "$work/foreign")"
# Killed while it removed its work folder: finished, and that only for what it is.
mkdir "$work/killed/.synth"
fails 2 "another config or other options" synth "$work/killed" --config "$awkward" --seed 8
"$KONDENSE" synth "$work/killed" --config "$awkward" --seed 7 >/dev/null
diff -r "$work/one" "$work/killed" || fail "finished, then finished again: other bytes"
# Reports into what is no plain file: it is still there, and a full one is an error.
mkfifo "$work/pipe" && cat "$work/pipe" >"$work/piped" &
until test -p "$work/pipe"; do sleep 0.01; done
"$KONDENSE" synth --config "$awkward" --dry-run --json "$work/pipe" >/dev/null
wait $! && test -p "$work/pipe" && grep -q file_bytes "$work/piped" || fail "a report into a pipe"
ln -s /dev/full "$work/full"
fails 1 "cannot write '$work/full': No space" synth --config "$awkward" --dry-run --json "$work/full"
fails 2 "already holds" synth "$work/one" --config "$awkward" --seed 7

# A range of layers has the weights of the whole; a rank's are a cut of it, in both forms.
sed 's/"num_heads": 1/"num_heads": 2/; s/"\(num_attention_heads\|num_key_value_heads\)": 1/"\1": 2/
     s/"\(moe_\|\)intermediate_size": 128/"\1intermediate_size": 256/; s/"qk_rope_head_dim": 24/"qk_rope_head_dim": 16/
     s/"v_head_dim": 128/"v_head_dim": 128/; s/"qk_nope_head_dim": 48/"qk_nope_head_dim": 112/' "$data/awkward/tiny.json" >"$work/pair.json"
for f in mxfp4 exl3; do
    "$KONDENSE" synth "$work/$f" --config "$work/pair.json" --seed 3 --format $f --bpw 2 >/dev/null
    "$KONDENSE" synth "$work/$f.part" --config "$work/pair.json" --seed 3 --format $f --bpw 2 --layers 1-2 >/dev/null
    for r in 0 1; do
        "$KONDENSE" synth "$work/$f.$r" --config "$work/pair.json" --seed 3 --format $f --bpw 2 --rank $r/2 >/dev/null
        "$KONDENSE" generate "$work/$f.$r" --ids 1,2 -n 1 >/dev/null || fail "rank $r of $f does not run"
    done
done
"$KONDENSE" inspect "$work/exl3.part" >"$work/out"
grep -q "made  *layers 1 to 2 of 3, seed 3: weights of no model" "$work/out" || fail "inspect: $(head -12 "$work/out")"
"$KONDENSE" inspect "$work/mxfp4.1" --json | grep -A6 '"made"' | grep -q '"rank": 1' || fail "inspect --json"
python3 - "$work" <<'P' || fail "parts"
import glob, json, re, struct, sys
d = sys.argv[1]
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I16": 2, "I32": 4}
def load(name):
    out = {}
    for path in glob.glob(f"{d}/{name}/*.safetensors"):
        raw = open(path, "rb").read()
        n, = struct.unpack("<Q", raw[:8])
        for k, v in json.loads(raw[8:8 + n]).items():
            if k != "__metadata__":
                a, b = v["data_offsets"]
                out[k] = (v["dtype"], v["shape"], raw[8 + n + a:8 + n + b])
    return out
def rows(t, inner):  # a tensor as [rows of `inner` elements] of bytes
    step = SIZE[t[0]] * inner
    return [t[2][i:i + step] for i in range(0, len(t[2]), step)]
for form in "mxfp4", "exl3":
    whole, part, ranks = load(form), load(form + ".part"), [load(f"{form}.{r}") for r in (0, 1)]
    for name, t in part.items():
        up = re.sub(r"layers\.(\d)", lambda m: f"layers.{int(m[1]) + 1}", name)
        assert whole[up] == t, name
    cut = 0
    for name, t in whole.items():
        a, b = ranks[0][name], ranks[1][name]
        if a[1] == t[1]:
            assert a == t or name.endswith("A_log"), name
            continue
        cut += 1
        dim = [i for i in range(len(t[1])) if a[1][i] != t[1][i]]
        assert len(dim) == 1 and a[1][dim[0]] * 2 == t[1][dim[0]], name
        inner = 1
        for s in t[1][dim[0] + 1:]:
            inner *= s
        x, y = rows(a, inner * a[1][dim[0]]), rows(b, inner * a[1][dim[0]])
        assert b"".join(p + q for p, q in zip(x, y)) == t[2], name
    assert cut > 40, cut
P

# Refusals: one line, nothing written.
fails 2 "config is needed" synth "$work/no"
fails 2 "not A-B" synth "$work/no" --config "$awkward" --layers 3
fails 2 "layers 0 to 3" synth "$work/no" --config "$awkward" --layers 2-9
fails 2 "layers 0 to 3" synth "$work/no" --config "$awkward" --layers 2-1
fails 2 "not R/N" synth "$work/no" --config "$awkward" --rank 2/2
fails 1 "MLA heads of 3 x " synth "$work/no" --config "$awkward" --rank 0/2
fails 2 "DST is needed" synth --config "$awkward"
fails 2 "no name" synth "" --config "$awkward"
fails 1 "hidden_act" synth "$work/no" --config <(sed '/hidden_act/d' "$awkward")
fails 1 "hidden_size" synth "$work/no" --config <(sed 's/"hidden_size": 640/"hidden_size": -1/' "$awkward")
test ! -e "$work/no" || fail "a refusal left a folder"
echo "synth-made: killed $tries times, same bytes"
