#!/usr/bin/env bash
# What a conversion must not lose or touch: scales of experts that stay as stored, a rate of several that
# was finished before the others, damaged work files, folders that were there before.
set -eu
. "$KONDENSE_TEST_ROOT/tests/cli/kill_when.bash"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
text=$KONDENSE_TEST_ROOT/tests/data/text/calib.txt
config=$KONDENSE_TEST_ROOT/tests/data/awkward/tiny.json
args="--calib $text --rows 2 --cols 32 --quiet"

# fails CODE WORDS command...: the exit code, one line, the words in it
fails() {
    local want=$1 words=$2 code=0
    shift 2
    "$KONDENSE" "$@" >"$work/out" 2>"$work/err" || code=$?
    test $code -eq "$want" || { echo "exit code $code, not $want: $*"; cat "$work/err"; exit 1; }
    test "$(wc -l <"$work/err")" -eq 1 && grep -q -- "$words" "$work/err" || { echo "$*:"; cat "$work/err"; exit 1; }
}

"$KONDENSE" synth "$work/src" --config "$config" >/dev/null
fails 2 "already holds" synth "$work/src" --config "$config"

# Widths whose padding would add too much: packed experts stay, their scales with them.
sed 's/"routed_expert_hidden_size": 128/"routed_expert_hidden_size": 32/
     s/"moe_intermediate_size": 128/"moe_intermediate_size": 32/' "$config" >"$work/thin.json"
"$KONDENSE" synth "$work/thin" --config "$work/thin.json" >/dev/null
"$KONDENSE" convert "$work/thin" "$work/thin.kept" $args --trunk-bpw stored --head-bpw stored >/dev/null
"$KONDENSE" check "$work/thin" "$work/thin.kept" --text "$text" --rows 1 --cols 32 --require kld=0 >/dev/null

# An odd width still gives files whose tensors begin where readers want them.
sed 's/"hidden_size": 128/"hidden_size": 129/' "$config" >"$work/odd.json"
"$KONDENSE" synth "$work/odd" --config "$work/odd.json" >/dev/null
"$KONDENSE" generate "$work/odd" --ids 1,2 -n 1 >/dev/null

# Values that are no numbers are an error that names them, never a model: in what stays as stored, in what is
# quantized, among the scales of MXFP4; numbers too large to compute with, at the first activation.
spoil() { # TENSOR BYTES [SOURCE]: a copy of the source with these bytes (octal) at the tensor's begin
    local shard head at
    rm -rf "$work/nan" "$work/dst"
    cp -r "$work/${3:-src}" "$work/nan"
    for shard in "$work/nan"/*.safetensors; do
        head=$(od -An -tu8 -N8 "$shard" | tr -d ' ')
        at=$(head -c $((8 + head)) "$shard" | grep -ao "\"$1\":{[^}]*}" | sed 's/.*"data_offsets":\[\([0-9]*\).*/\1/') || continue
        test -n "$at" || continue
        printf "$2" | dd of="$shard" bs=1 seek=$((8 + head + at)) conv=notrunc status=none
        return 0
    done
    echo "no tensor $1"
    exit 1
}
lm=language_model
for t in model.norm.weight model.output_attn_res_norm.weight model.layers.1.input_layernorm.weight lm_head.weight; do
    spoil $lm.$t '\0\0\300\177'
    fails 1 "$t: element 1 is NaN or infinite" convert "$work/nan" "$work/dst" $args --bpw 2
done
spoil $lm.model.layers.1.block_sparse_moe.gate.e_score_correction_bias '\0\0\200\377'
fails 1 "e_score_correction_bias: element 0 is NaN" convert "$work/nan" "$work/dst" $args --bpw 2
spoil $lm.model.layers.2.block_sparse_moe.experts.1.w2.weight_scale '\177\377'
fails 1 "layer 2: expert 1: .* weight at row 0, column 32 is not finite" convert "$work/nan" "$work/dst" $args --bpw 2
spoil $lm.model.layers.2.block_sparse_moe.experts.1.w2.weight_scale '\177\377' thin
fails 1 "w2.weight_scale: element 1 is a NaN scale (255)" convert "$work/nan" "$work/dst" $args --bpw 2
spoil $lm.model.layers.0.self_attn.v_proj.weight '\0\0\300\177'
fails 1 "layers.0.self_attn.v_proj: weight at row 0, column 1 is not finite" convert "$work/nan" "$work/dst" $args --bpw 2
spoil $lm.model.layers.0.self_attn.o_norm.weight "$(printf '\\377\\377\\177\\177%.0s' $(seq 128))"
fails 1 "layer 0: attn_out: an activation is not finite" convert "$work/nan" "$work/dst" $args --bpw 2
spoil $lm.model.layers.1.block_sparse_moe.routed_expert_down_proj.weight "$(printf '\\177\\177%.0s' $(seq 128))"
fails 1 "layer 1: latents: an activation is not finite" convert "$work/nan" "$work/dst" $args --bpw 2 --trunk-bpw stored
rm -r "$work/dst"

fails 2 "there twice" convert "$work/src" "$work/dst" $args --bpw 2,2.0
fails 2 "exclude each other" convert "$work/src" "$work/dst" $args --bpw 2 --size 1M
fails 2 "size 0" convert "$work/src" "$work/dst" $args --size 0
fails 2 "no name" convert "$work/src" "" $args
test ! -e "$work/dst"

args="$args --trunk-bpw stored --head-bpw stored" # the trunk is no matter of what follows
# Killed when the first of two rates is finished: the other one is still made.
"$KONDENSE" convert "$work/src" "$work/whole" $args --bpw 2,3 >/dev/null
"$KONDENSE" convert "$work/src" "$work/two" $args --bpw 2,3 >/dev/null 2>&1 &
pid=$!
while ! test -e "$work/two/2/config.json" && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -9 $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
test ! -e "$work/two/3/config.json" || rm -rf "$work/two/3/config.json" "$work/two/3/.work" # both were finished
mkdir -p "$work/two/2/.work"    # killed before the work folder was gone
if ! test -e "$work/two/3/.work"; then
    mkdir "$work/two/3/.work" && rm "$work/two/3"/model-*
fi
"$KONDENSE" convert "$work/src" "$work/two" $args --bpw 2,3 --resume >/dev/null
diff -r -x convert.log "$work/whole" "$work/two"
fails 2 "finished" convert "$work/src" "$work/two" $args --bpw 2,3 --resume
fails 2 "finished" convert "$work/src" "$work/two" $args --bpw 2,3 --resume --seed 1

# A stream that changed or went away is an error that says what to do, never another model.
kill_when "$work/torn" model-00001-of-000004.safetensors "$KONDENSE" convert "$work/src" "$work/torn" $args --bpw 2
cp -r "$work/torn" "$work/lost"
printf 'XYZ' | dd of="$work/torn/.work/stream.001" bs=1 seek=600 conv=notrunc status=none
fails 1 "damaged; remove" convert "$work/src" "$work/torn" $args --bpw 2 --resume
rm "$work/lost/.work/stream.001"
fails 1 "lost; remove" convert "$work/src" "$work/lost" $args --bpw 2 --resume

# Work files that were damaged while nobody ran are set aside and made again: the same bytes in the end.
kill_when "$work/hurt" '.work/001/*.unit' "$KONDENSE" convert "$work/src" "$work/hurt" $args --bpw 2
n=0
for u in "$work"/hurt/.work/0??/*.unit; do
    case $((n++ % 3)) in
    0) printf 'XYZ' | dd of="$u" bs=1 seek=300 conv=notrunc status=none ;;
    1) head -c 40 "$u" >"$u.cut" && mv "$u.cut" "$u" ;;
    2) : >"$u" ;;
    esac
done
test $n -gt 0 || { echo "no unit to damage"; exit 1; }
"$KONDENSE" convert "$work/src" "$work/hurt" $args --bpw 2 --resume >/dev/null 2>"$work/err" || { cat "$work/err"; exit 1; }
test "$(grep -c 'damaged; set aside' "$work/err")" -eq $n || { cat "$work/err"; exit 1; }
diff -r -x convert.log "$work/whole/2" "$work/hurt"

# A mix takes no folder that holds something, and leaves nothing of one that failed.
mkdir "$work/mine" && echo keep >"$work/mine/notes"
size=$(cat "$work/whole/3"/*.safetensors | wc -c)
mix="mix $work/whole/2 $work/whole/3"
fails 2 "not an empty folder" $mix "$work/mine" --size "$size" --source "$work/src" --text "$text"
test "$(cat "$work/mine/notes")" = keep
fails 1 "nowhere" $mix "$work/mixed" --size "$size" --source "$work/src" --text "$work/nowhere"
test ! -e "$work/mixed" && test ! -e "$work/mixed.mixing"

# What a mix says of itself is true: masked if any rate is, its own bytes, its own average.
"$KONDENSE" convert "$work/src" "$work/masked" $args --bpw 2.3 >/dev/null
size=$((($(cat "$work/whole/2"/*.safetensors | wc -c) + $(cat "$work/masked"/*.safetensors | wc -c)) / 2))
"$KONDENSE" mix "$work/whole/2" "$work/masked" "$work/mixed" --size $size --source "$work/src" --text "$text" \
    --rows 1 --cols 32 --keep >"$work/out" 2>&1 || test $? -eq 3
grep -q "1 of 3 layers" "$work/out" || { cat "$work/out"; exit 1; }
"$KONDENSE" inspect "$work/mixed" >"$work/out"
grep -q "not agree" "$work/out" && { cat "$work/out"; exit 1; }
for f in config quantization_config; do
    grep -q '"quant_method": *"exl3-masked"' "$work/mixed/$f.json" || { echo "$f.json hides a masked rate"; exit 1; }
    grep -q '"bits": *2.15,' "$work/mixed/$f.json" || { grep '"bits"' "$work/mixed/$f.json"; exit 1; }
done
grep -q '"exllamav3_rule_one_k_per_projection": *"no' "$work/mixed/kondense.json"
echo "nothing lost, nothing touched"
