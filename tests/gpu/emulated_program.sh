#!/usr/bin/env bash
# The program with --device cuda over an emulated device (kondense_emulated): convert, check and pilot walk the
# whole path, from the plan to the bytes, which are the CPU's; a device that fails in the middle loses nothing.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$KONDENSE_TEST_ROOT/tests/data
export TMPDIR=$work
. "$KONDENSE_TEST_ROOT/tests/cli/kill_when.bash"
fail() { echo "emulated_program: $1" >&2; exit 1; }
# Two layers: KDA and dense, MLA and experts, with heads that the device has kernels for. Over 256 tokens, or
# products would stay on the CPU.
sed 's/"num_hidden_layers": 3/"num_hidden_layers": 2/; /"kda_layers"/,/]/{s/1,/1/; /3/d}
     s/"kv_lora_rank": 72/"kv_lora_rank": 128/; s/"qk_nope_head_dim": 48/"qk_nope_head_dim": 128/
     s/"qk_rope_head_dim": 24/"qk_rope_head_dim": 64/' "$data/awkward/tiny.json" >"$work/tiny.json"
"$KONDENSE" synth "$work/src" --config "$work/tiny.json" --seed 7 >/dev/null
args="--calib $data/text/calib.txt --rows 3 --cols 96 --bpw 2.3 --trunk-bpw stored --head-bpw stored --quiet"
listing() { (cd "$1" && find . -type f ! -name convert.log ! -path './.work/*' -print0 | sort -z | xargs -0 sha256sum); }

"$KONDENSE" convert "$work/src" "$work/cpu" $args >/dev/null
listing "$work/cpu" >"$work/want"
"$KONDENSE" convert "$work/src" "$work/cuda" $args --device cuda:0,1 --lanes 3 >"$work/said"
grep -q "^device: 2 x emulated, at most .* MB of" "$work/said" || fail "$(cat "$work/said")"
grep -q "^device: 528 tiles searched" "$work/said" || fail "not on the device: $(cat "$work/said")"
listing "$work/cuda" | cmp - "$work/want" || fail "other bytes"
"$KONDENSE" convert "$work/src" "$work/none" $args --device cuda --dry-run | grep -q "^device: 1 x" || fail "no plan"

# With a megabyte for all of it there is room for one tensor; what finds none is done here.
KD_FAKE_FREE=292788807 "$KONDENSE" convert "$work/src" "$work/narrow" $args --device cuda >"$work/said"
grep -q "^device: 1 x emulated, at most 1.0 MB of the 1.0 MB free" "$work/said" || fail "room: $(cat "$work/said")"
listing "$work/narrow" | cmp - "$work/want" || fail "other bytes without room"

# A block of a GB10 has no room for a search below 2 bits: told before anything is done.
code=0
KD_FAKE_SHARED=101376 "$KONDENSE" convert "$work/src" "$work/low" ${args/2.3/1.5} --device cuda >/dev/null 2>"$work/err" || code=$?
test $code -eq 1 && test "$(wc -l <"$work/err")" -eq 1 && grep -q "1.5 bits needs more shared .*--device cpu" "$work/err" &&
    ! compgen -G "$work/low/*" || fail "1.5 bits: $code $(cat "$work/err")"
KD_FAKE_SHARED=101376 "$KONDENSE" convert "$work/src" "$work/none" $args --device cuda --dry-run >/dev/null
code=0
KD_FAKE_SHARED=101376 "$KONDENSE" convert "$work/src" "$work/none" ${args/2.3/1.5} --device cuda --dry-run >"$work/said" \
    2>"$work/err" || code=$?
test $code -eq 1 && grep -q "^device: " "$work/said" && grep -q "1.5 bits needs more shared" "$work/err" || fail "dry 1.5 bits: $code"

# Killed in the middle of a layer's experts.
kill_when "$work/killed" ".work/001/*" "$KONDENSE" convert "$work/src" "$work/killed" $args --device cuda:0,1
"$KONDENSE" convert "$work/src" "$work/killed" $args --device cuda --resume >/dev/null
listing "$work/killed" | cmp - "$work/want" || fail "other bytes after a kill"

# Class fast: named in the settings, refused where it cannot be, another calibration (the same bytes would be the
# exact one's), as good (other signs move this figure by 10 %).
trunk="$args --trunk-bpw 4 --rows 2 --cols 80"
"$KONDENSE" convert "$work/src" "$work/exact" $trunk >/dev/null
"$KONDENSE" convert "$work/src" "$work/fast" $trunk --device cuda --calib-class fast >/dev/null
grep -q '"class": *"fast"' "$work/fast/kondense.json" && grep -q '"class": *"exact"' "$work/cuda/kondense.json" ||
    fail "the class is not named"
test "$(grep -c "rows=.* on=device" "$work/fast/convert.log")" -eq 12 && ! grep -q "on=cpu" "$work/fast/convert.log" ||
    fail "the trunk was not on the device: $(cat "$work/fast/convert.log")"
cmp -s "$work/fast/model-00002-of-00003.safetensors" "$work/exact/model-00002-of-00003.safetensors" && fail "class fast did nothing"
# A trunk in F32 takes more of the device, and the plan says so.
python3 - "$work/src" "$work/wide" <<'END'
import json, os, re, shutil, sys
src, dst = sys.argv[1:]
shutil.copytree(src, dst)
for name in os.listdir(dst):
    if not name.endswith(".safetensors"):
        continue
    data = open(f"{dst}/{name}", "rb").read()
    n = int.from_bytes(data[:8], "little")
    head, out = json.loads(data[8:8 + n]), bytearray()
    for key, t in head.items():
        if key == "__metadata__":
            continue
        a, b = t["data_offsets"]
        part = data[8 + n + a:8 + n + b]
        if t["dtype"] == "BF16" and len(t["shape"]) == 2 and re.search(r"layers[.]\d+[.]", key):
            t["dtype"] = "F32"
            part = b"".join(b"\0\0" + part[i:i + 2] for i in range(0, len(part), 2))
        t["data_offsets"] = [len(out), len(out) + len(part)]
        out += part
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(f"{dst}/{name}", "wb").write(len(text).to_bytes(8, "little") + text + out)
END
trunk_mb() {
    "$KONDENSE" convert "$1" "$work/none" $args --lanes 1 --device cuda --calib-class fast --dry-run |
        sed -n 's/^device: .*at most \([0-9.]*\) MB.*/\1/p'
}
python3 -c "import sys; sys.exit(float(sys.argv[1]) >= float(sys.argv[2]))" "$(trunk_mb "$work/src")" "$(trunk_mb "$work/wide")" ||
    fail "F32: $(trunk_mb "$work/src") $(trunk_mb "$work/wide")"
code=0
"$KONDENSE" convert "$work/src" "$work/no" $args --calib-class fast 2>"$work/err" || code=$?
test $code -eq 2 && grep -q "calib-class fast is for --device cuda" "$work/err" || fail "fast on the CPU: $code $(cat "$work/err")"

code=0
KD_FAKE_FAIL_AT=300 "$KONDENSE" convert "$work/src" "$work/broken" $args --device cuda >/dev/null 2>"$work/err" || code=$?
test $code -eq 1 && test "$(wc -l <"$work/err")" -eq 1 && grep -q "launch failure; .*--resume, with --device cpu" \
    "$work/err" || fail "a device that fails: $code $(cat "$work/err")"
"$KONDENSE" convert "$work/src" "$work/broken" $args --resume >/dev/null
listing "$work/broken" | cmp - "$work/want" || fail "other bytes after a failure"

for device in cpu cuda:0,1; do
    "$KONDENSE" check "$work/src" "$work/cuda" --text "$data/text/eval.txt" --rows 1 --cols 300 --device $device \
        --json "$work/$device.json" >/dev/null
done
cmp "$work/cpu.json" "$work/cuda:0,1.json" || fail "check has other figures"

for class in exact fast; do
    "$KONDENSE" check "$work/src" "$work/$class" --text "$data/text/eval.txt" --rows 1 --cols 300 --json "$work/$class.json" \
        >/dev/null
done
python3 - "$work/exact.json" "$work/fast.json" <<'END' || fail "class fast is worse"
import json, sys
a, b = (json.load(open(p))["kld"]["mean"] for p in sys.argv[1:])
sys.exit(0 if a != b and abs(a - b) < 0.25 * a else f"{a} {b}")
END

"$KONDENSE" pilot "$work/src" --layer 1 --rows 4 --cols 80 --experts 1 --device cuda --quiet --json "$work/cuda.json" >"$work/said"
grep -q "run on *1 x emulated" "$work/said" && grep -q "of the device$" "$work/said" || fail "$(cat "$work/said")"
# The CPU's figures of both recipes (the same command without --device), as their sums have one order.
for error in '"default": 0.0856391550438589' '"plain": 0.1280626078364919'; do
    grep -qF "$error" "$work/cuda.json" || fail "recipes compared: $(grep -A4 '"error"' "$work/cuda.json")"
done
code=0
KD_FAKE_FAIL_AT=200 "$KONDENSE" pilot "$work/src" --layer 1 --rows 4 --cols 80 --device cuda --calib-class fast --quiet \
    >"$work/said" 2>"$work/err" || code=$?
test $code -eq 1 && test "$(wc -l <"$work/err")" -eq 1 && grep -q "launch failure; .*run it again$" "$work/err" ||
    fail "a device that fails pilot: $code $(cat "$work/err")" # class fast has no CPU to offer

# A model from a GGUF runs where another does: blocks of a byte, of a bit, MXFP4, halves.
"$KONDENSE" convert "$work/src" "$work/q8_0.gguf" --to gguf --trunk-type q8_0 --quiet >/dev/null
for type in q8_0 q1_0 f16; do
    test $type = q8_0 || "$KONDENSE" slice "$work/q8_0.gguf" "$work/$type.gguf" --requant ${type^^} --quiet >/dev/null
    for device in cpu cuda; do
        "$KONDENSE" generate "$work/$type.gguf" --ids 5,17,99,3 -n 12 --device $device >"$work/$device.txt"
    done
    cmp "$work/cpu.txt" "$work/cuda.txt" || fail "$type goes on otherwise"
done

# bench quantize: all tensors are quantized, its searches are counted; how fast is no matter here.
"$KONDENSE" bench quantize --device cuda --shape "$work/tiny.json" --rate 2,2.3125 --tiles 128 --json >"$work/bench" ||
    fail "bench quantize"
test "$(grep -c '"tensors": 2,' "$work/bench")" -eq 2 && test "$(grep -c '"outputs": 128,' "$work/bench")" -eq 2 ||
    fail "bench quantize: $(cat "$work/bench")"
awk '$1 == "\"tiles_s\":" { net = $2 + 0 } $1 == "\"searched_tiles_s\":" { all = $2 + 0; if (net <= 0 || all <= net) bad = 1; n++ }
     $1 == "\"bare_tiles_s\":" { bare = $2 + 0 } $1 == "\"share\":" { d = all / bare / $2; if (d < 0.999 || d > 1.001) bad = 1 }
     END { exit !(n == 2 && !bad) }' "$work/bench" || fail "bench quantize: $(cat "$work/bench")"
code=0
KD_FAKE_FAIL_AT=100 "$KONDENSE" bench quantize --device cuda --shape "$work/tiny.json" --rate 2 --tiles 64 >/dev/null 2>"$work/err" || code=$?
test $code -eq 1 && test "$(wc -l <"$work/err")" -eq 1 || fail "bench quantize on a device that fails: $code $(cat "$work/err")"

# bench calib: every figure in either class, of rows that end in the middle of a block; how fast is no matter here.
for class in exact fast; do
    "$KONDENSE" bench calib --device cuda --shape "$work/tiny.json" --rows 70 --calib-class $class --seconds 0.001 --json \
        >"$work/bench" || fail "bench calib $class"
    figures=3
    test $class = exact || figures=4 # rows on the device, too
    grep -q "\"class\": \"$class\"" "$work/bench" && test "$(grep -c '"rows": 70,' "$work/bench")" -eq $figures ||
        fail "bench calib: $(cat "$work/bench")"
    awk -v n=$figures '$1 == "\"ms\":" { ms = $2 / 1e3 } $1 == "\"flop_token\":" { flop = $2 * 70 }
        $1 == "\"tflop_s\":" { d = flop / ms / 1e12 / $2; if (!(d > 0.999 && d < 1.001)) bad = 1; seen++ }
        END { exit !(seen == n && !bad) }' "$work/bench" || fail "bench calib: $(cat "$work/bench")"
done
code=0
KD_FAKE_FAIL_AT=100 "$KONDENSE" bench calib --device cuda --shape "$work/tiny.json" --rows 70 >/dev/null 2>"$work/err" || code=$?
test $code -eq 1 && test "$(wc -l <"$work/err")" -eq 1 || fail "bench calib on a device that fails: $code $(cat "$work/err")"

# A worker has as many experts at once as its device has room for.
url=https://127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$KONDENSE" farm init "$work/farm" --farm "$url" --listen 127.0.0.1 --tokens 1 --ledger "" --share "" >/dev/null
"$KONDENSE" convert "$work/src" "$work/farmed" $args --farm "$url" --farm-dir "$work/farm" --only-workers >/dev/null &
convert=$!
KONDENSE_LOG=info KD_FAKE_FREE=292788807 "$KONDENSE" worker --join "$work/farm/worker.join" --dir "$work/worker" --device cuda \
    --quiet 2>"$work/err" || fail "a worker: $(cat "$work/err")"
wait $convert
grep -q "layer=1 lanes=1 of=48" "$work/err" || fail "room for a worker: $(cat "$work/err")"
listing "$work/farmed" | cmp - "$work/want" || fail "other bytes of a worker"
echo "emulated_program: ok"
