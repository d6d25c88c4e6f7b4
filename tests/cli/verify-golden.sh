# verify: agreement with goldens, the first difference by name, missing files, and no reference at all.
# labels: fast
set -eu
nano=$KONDENSE_TEST_ROOT/tests/data/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "$*" >&2; exit 1; }
code() { rc=0; "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?; echo $rc; }

[ "$(code "$KONDENSE" verify "$nano")" = 0 ] || fail "$(cat "$tmp/err")"
grep -q '^9 of 9 layers checked' "$tmp/out" || fail "not all layers: $(cat "$tmp/out")"
grep -q '^logits .* ok' "$tmp/out" || fail "no logits"

[ "$(code "$KONDENSE" verify "$nano" --layers 2 --json)" = 0 ] || fail "--layers"
tr -d ' \n' <"$tmp/out" | grep -q '"layers_checked":2,.*"first_difference":null,"logits":null' || fail "--layers JSON"
[ "$(code "$KONDENSE" verify "$nano" --layers 10)" = 2 ] || fail "more layers than there are"
grep -q 'the model has 9$' "$tmp/err" || fail "more layers: $(cat "$tmp/err")"

# Another epsilon in the latent norms shows in a layer after the first MLA layer (3).
[ "$(code "$KONDENSE" verify "$nano" --latent-eps 1e-3)" = 3 ] || fail "a wrong epsilon passes"
grep -q 'layer [3-8] is the first that differs' "$tmp/err" || fail "first difference: $(cat "$tmp/err")"

# One bit of one expert scale of layer 5: that layer is named.
mkdir "$tmp/bad"
cp "$nano"/* "$tmp/bad"
chmod u+w "$tmp/bad"/*
python3 - "$tmp/bad" <<'PY' || exit 77
import glob, json, struct, sys
name = "language_model.model.layers.5.block_sparse_moe.experts.0.w1.weight_scale"
for f in glob.glob(sys.argv[1] + "/model-*.safetensors"):
    d = bytearray(open(f, "rb").read())
    n = struct.unpack("<Q", d[:8])[0]
    h = json.loads(d[8:8 + n])
    if name in h:
        a, b = h[name]["data_offsets"]
        for i in range(a, b):
            d[8 + n + i] ^= 1
        open(f, "wb").write(d)
PY
[ "$(code "$KONDENSE" verify "$tmp/bad")" = 3 ] || fail "a changed expert passes"
grep -q 'layer 5 is the first that differs' "$tmp/err" || fail "first difference: $(cat "$tmp/err")"

rm "$tmp/bad/golden.safetensors"
[ "$(code "$KONDENSE" verify "$tmp/bad")" = 1 ] || fail "no reference"
grep -q 'published values' "$tmp/err" || fail "no reference: $(cat "$tmp/err")"

# Files missing: as far as they go, and which one is wanted next.
mini=${KONDENSE_SHARED:-$KONDENSE_TEST_ROOT/../shared}/models/k3-mini
[ -d "$mini" ] || exit 0
mkdir "$tmp/part"
cp "$mini"/*.json "$mini"/golden.safetensors "$tmp/part"
next=
for f in "$mini"/model-*.safetensors; do
    # all but the file of layer 3
    if python3 - "$mini" "$(basename "$f")" <<'PY'
import json, sys
m = json.load(open(sys.argv[1] + "/model.safetensors.index.json"))["weight_map"]
sys.exit(m["language_model.model.layers.3.self_attn.o_proj.weight"] == sys.argv[2])
PY
    then cp "$f" "$tmp/part"; else next=$(basename "$f"); fi
done
[ "$(code "$KONDENSE" verify "$tmp/part")" = 0 ] || fail "part of a model: $(cat "$tmp/err")"
grep -q "needs $next, which is not there" "$tmp/out" || fail "missing file: $(cat "$tmp/out")"
