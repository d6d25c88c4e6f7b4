#!/usr/bin/env bash
# labels: fast
# inspect on the shipped model: figures, JSON, the list of tensors, the CPU, the man page.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "inspect-nano: $*" >&2
    exit 1
}
has() { # FILE TEXT
    grep -qF -- "$2" "$1" || { cat "$1" >&2; fail "'$2' is missing"; }
}

"$KONDENSE" inspect "$nano" >"$tmp/text" || fail "text"
has "$tmp/text" "KimiK3ForConditionalGeneration"
has "$tmp/text" "9: 6 KDA, 3 MLA; 1 dense, 8 MoE; residual blocks of 4"
has "$tmp/text" "21,071,424 (21.1 M), used for a token 8,757,504"
has "$tmp/text" "2 of 2 present"
has "$tmp/text" "the index agrees"
has "$tmp/text" "4.2500"
grep -q "refuse\|not known\|unexpected\|disagree" "$tmp/text" && fail "complains about a good model"
awk 'length > 100 { print; bad = 1 } END { exit bad }' "$tmp/text" || fail "a line over 100 columns"

"$KONDENSE" inspect "$nano" --json >"$tmp/json" || fail "json"
for t in '"tensor_count": 1788' '"total": 21071424' '"active": 8757504' '"total": 23705216' \
    '"routed_packed": 6291456' '"routed_scales": 393216' '"index_agrees": true' '"storage": "mxfp4"' \
    '"runs": true' '"refusal": null' '"unknown_keys": []' '"missing_tensors": []' '"present": 2'; do
    has "$tmp/json" "$t"
done

"$KONDENSE" inspect "$nano" --json --tensors >"$tmp/list" || fail "list"
[ "$(grep -c '"kind": "routed"' "$tmp/list")" = 1536 ] || fail "number of routed tensors"
[ "$(grep -c '"kind": "unknown"' "$tmp/list")" = 0 ] || fail "unknown tensors"
"$KONDENSE" inspect "$nano" -t >"$tmp/list" || fail "text list"
has "$tmp/list" 'language_model.model.layers.0.self_attn.q_conv1d.weight  F32 [256,1,4] 4096  model-00001-of-000002'

"$KONDENSE" inspect --cpu >"$tmp/cpu" || fail "cpu"
has "$tmp/cpu" "kernels: "
has "$tmp/cpu" "the best of those that this CPU runs"
KONDENSE_ISA=ref "$KONDENSE" inspect --cpu | grep -qF "kernels: ref, KONDENSE_ISA asks for them" || fail "forced set"
rc=0
KONDENSE_ISA=mmx "$KONDENSE" inspect --cpu >/dev/null 2>"$tmp/err" || rc=$?
[ $rc = 2 ] || fail "an unknown set ended with $rc"
"$KONDENSE" man inspect | grep -qF "JSON keys: path, architecture" || fail "man page"

# Shards gone, one by one: sizes then come from the config, and are the same.
cp "$nano/config.json" "$nano/model.safetensors.index.json" "$tmp/"
"$KONDENSE" inspect "$tmp" --json >"$tmp/none" || fail "index alone"
has "$tmp/none" '"present": 0'
has "$tmp/none" '"total": 23705216'
has "$tmp/none" '"index_agrees": true'
cp "$nano/model-00002-of-000002.safetensors" "$tmp/"
"$KONDENSE" inspect "$tmp" >"$tmp/one" || fail "one shard"
has "$tmp/one" "1 of 2 present; missing model-00001-of-000002.safetensors"
has "$tmp/one" "the index agrees"

# The text config by itself at the top level.
mkdir "$tmp/bare"
sed -n '/"text_config": {/,/^  },/p' "$nano/config.json" | sed '1s/.*/{/;$s/},/}/' >"$tmp/bare/config.json"
cp "$nano"/model*.safetensors* "$tmp/bare/"
"$KONDENSE" inspect "$tmp/bare" >"$tmp/text" || fail "bare"
has "$tmp/text" "KimiLinearForCausalLM (bare text config)"
echo "inspect-nano: ok"
