#!/usr/bin/env bash
# labels: fast
# inspect on what a forward pass would refuse or has not seen: a newer K3 with unknown keys and tensors,
# EXL3 tensors, odd dtypes and shapes. All are named, nothing is refused.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "inspect-strange: $*" >&2
    exit 1
}
has() { # FILE TEXT
    grep -qF -- "$2" "$1" || { cat "$1" >&2; fail "'$2' is missing"; }
}
le64() { # N as eight bytes
    local n=$1 i
    for i in 1 2 3 4 5 6 7 8; do
        printf "\\x$(printf %02x $((n & 255)))"
        n=$((n >> 8))
    done
}
model() { # SED HEADER DATA_BYTES
    rm -rf "$tmp/m"
    mkdir "$tmp/m"
    sed "$1" "$nano/config.json" >"$tmp/m/config.json"
    local header=$2
    while [ $((${#header} % 8)) != 0 ]; do header+=' '; done
    { le64 ${#header}; printf %s "$header"; head -c "$3" /dev/zero; } >"$tmp/m/model.safetensors"
}

# A newer K3.
l=language_model.model.layers
model 's/"hidden_act"/"index_topk": 2048, "hidden_act"/; s/KimiK3For/KimiK31For/' \
    '{"'$l.0'.self_attn.indexer.wk.weight":{"dtype":"BF16","shape":[8,2],"data_offsets":[0,32]},"'$l.1'.self_attn.indexer.wk.weight":{"dtype":"BF16","shape":[8,2],"data_offsets":[32,64]}}' 64
"$KONDENSE" inspect "$tmp/m" >"$tmp/text" || fail "newer K3"
has "$tmp/text" "KimiK31ForConditionalGeneration"
has "$tmp/text" "text_config.index_topk"
has "$tmp/text" "       2  $l.*.self_attn.indexer.wk.weight"
has "$tmp/text" "would refuse it: config.json: architecture 'KimiK31ForConditionalGeneration'"
"$KONDENSE" inspect "$tmp/m" --json >"$tmp/json" || fail "newer K3 as JSON"
has "$tmp/json" '"text_config.index_topk"'
has "$tmp/json" '"runs": false'

# One expert matrix of EXL3 at K=2, the head at K=6 with its vectors: k and real bits told apart.
x=$l.1.block_sparse_moe.experts.0.w1
h='{"'$x'.trellis":{"dtype":"I16","shape":[8,8,32],"data_offsets":[0,4096]},"'$x'.suh":{"dtype":"F16","shape":[128],"data_offsets":[4096,4352]},"'$x'.svh":{"dtype":"F16","shape":[128],"data_offsets":[4352,4608]},"'$x'.mul1":{"dtype":"I32","shape":[],"data_offsets":[4608,4612]},"language_model.lm_head.trellis":{"dtype":"I16","shape":[16,256,96],"data_offsets":[4612,791044]}}'
model '1s/{/{ "quantization_config": {"quant_method": "exl3"},/' "$h" 791044
"$KONDENSE" inspect "$tmp/m" --json >"$tmp/json" || fail "EXL3"
has "$tmp/json" '"storage": "exl3"'
has "$tmp/json" '"k": 2.0'
has "$tmp/json" '"real": 2.251953125'
has "$tmp/json" '"k": 6.0'
has "$tmp/json" '"what": "block_sparse_moe.experts.*.w1"'
has "$tmp/json" '"count": 255'

# Another dtype and another shape than the config asks for, and scales without their codes.
model '' '{"'$l.0'.input_layernorm.weight":{"dtype":"F32","shape":[255],"data_offsets":[0,1020]},"'$x'.weight_scale":{"dtype":"U8","shape":[128,4],"data_offsets":[1020,1532]}}' 1532
"$KONDENSE" inspect "$tmp/m" >"$tmp/text" || fail "odd tensors"
has "$tmp/text" "$l.*.input_layernorm.weight is F32, the release has BF16"
has "$tmp/text" "$l.*.input_layernorm.weight is [255], the config says [256]"
has "$tmp/text" "experts.*.w1: weight_packed or weight_scale without the other"
echo "inspect-strange: ok"
