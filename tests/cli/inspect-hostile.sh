#!/usr/bin/env bash
# labels: fast
# inspect on broken and hostile input: exit 1 (2 for wrong use), one line that names file and reason,
# never a crash, and nothing of the file's bytes reaching the terminal as a command.
set -u
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

expect() { # RC REASON ARGS...
    local want=$1 reason=$2 rc=0
    shift 2
    "$KONDENSE" inspect "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?
    if [ $rc != "$want" ] || ! grep -qF -- "$reason" "$tmp/err" || [ "$(wc -l <"$tmp/err")" != 1 ] ||
        LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' "$tmp/err"; then
        echo "inspect-hostile: rc $rc (wanted $want), wanted '$reason':" >&2
        cat -v "$tmp/err" >&2
        bad=1
    fi
}
le64() { # N as eight bytes
    local n=$1 i
    for i in 1 2 3 4 5 6 7 8; do
        printf "\\x$(printf %02x $((n & 255)))"
        n=$((n >> 8))
    done
}
shard() { # HEADER DATA_BYTES: a folder with one shard
    rm -rf "$tmp/m"
    mkdir "$tmp/m"
    cp "$nano/config.json" "$tmp/m/"
    { le64 ${#1}; printf %s "$1"; head -c "$2" /dev/zero; } >"$tmp/m/model.safetensors"
}
index() { # INDEX
    rm -rf "$tmp/m"
    mkdir "$tmp/m"
    cp "$nano/config.json" "$tmp/m/"
    printf %s "$1" >"$tmp/m/model.safetensors.index.json"
}

expect 2 "no such option" "$nano" --no-such-flag
expect 2 "too few arguments"
expect 2 "too many" "$nano" "$nano"
expect 1 "cannot open '$tmp/none'" "$tmp/none"
mkdir "$tmp/empty"
expect 1 "holds no config.json" "$tmp/empty"
cp "$nano/config.json" "$tmp/empty/"
expect 1 "no index and no *.safetensors" "$tmp/empty"
expect 1 "give its folder" "$nano/model-00001-of-000002.safetensors"

e='"shape":[4],"data_offsets"'
shard '{"a":{"dtype":"U8",'$e':[0,4]}}' 3
expect 1 "model.safetensors: tensor 'a' ends at 4, but the file holds 3" "$tmp/m"
shard '{"a":{"dtype":"U8",'$e':[0,4]},"b":{"dtype":"U8",'$e':[2,6]}}' 6
expect 1 "tensor 'b' begins at 2, over the one before" "$tmp/m"
shard '{"a":{"dtype":"U8",'$e':[0,4]},"b":{"dtype":"U8",'$e':[5,9]}}' 9
expect 1 "tensor 'b' begins at 5, after a hole" "$tmp/m"
shard '{"a":{"dtype":"U8",'$e':[0,4]},"a":{"dtype":"U8",'$e':[4,8]}}' 8
expect 1 "tensor 'a' twice" "$tmp/m"
shard '{"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}' 0
expect 1 "does not fit in 64 bits" "$tmp/m"
shard '{"a\u001b]0;x\u0007":{"dtype":"U8",'$e':[0,4]}}' 4
expect 1 "control character" "$tmp/m"
shard "{\"a\":$(printf '[%.0s' $(seq 5000))" 0
expect 1 "tensor 'a'" "$tmp/m"
shard '{}' 0
printf '\xff' | dd of="$tmp/m/model.safetensors" bs=1 seek=6 conv=notrunc 2>/dev/null
expect 1 "over the format's limit" "$tmp/m"
shard '{}' 0
printf '\x63' | dd of="$tmp/m/model.safetensors" bs=1 conv=notrunc 2>/dev/null
expect 1 "claims 99 bytes" "$tmp/m"

index '{"weight_map":{"a":"../../etc/passwd"}}'
expect 1 "path separator" "$tmp/m"
index '{"weight_map":{"a":"x","a":"x"}}'
expect 1 "tensor 'a' twice" "$tmp/m"
index '{"weight_map":{"a":"x"'
expect 1 "JSON at byte" "$tmp/m"
index ''
expect 1 "JSON at byte 0" "$tmp/m"
index '{"weight_map":{"a":"model-1.safetensors"}}'
h='{"b":{"dtype":"U8",'$e':[0,4]}}'
{ le64 ${#h}; printf %s "$h"; printf aaaa; } >"$tmp/m/model-1.safetensors"
expect 1 "model-1.safetensors: tensor 'b' is not in the index" "$tmp/m"
rm "$tmp/m/model.safetensors.index.json"
printf '\x1f\x8b\x08\x00garbage' >"$tmp/m/model.safetensors.index.json.gz"
expect 1 "index.json.gz" "$tmp/m"

config() { # SED: the shipped config, changed
    rm -rf "$tmp/m"
    mkdir "$tmp/m"
    sed "$1" "$nano/config.json" >"$tmp/m/config.json"
    cp "$nano/model.safetensors.index.json" "$tmp/m/"
}
config 's/"rms_norm_eps": 1e-05/"rms_norm_eps": NaN/'
expect 1 "config.json: not valid JSON" "$tmp/m"
config 's/"rms_norm_eps": 1e-05/"rms_norm_eps": 1e999/'
expect 1 "config.json" "$tmp/m"
config 's/"hidden_size": 256/"hidden_size": -256/'
expect 1 "'hidden_size' is -256, outside" "$tmp/m"
config 's/"hidden_size": 256/"hidden_size": 99999999999999999999/'
expect 1 "config.json" "$tmp/m"
config 's/"num_experts": 32/"num_experts": 4611686018427387904/'
expect 1 "'num_experts' is 4611686018427387904, outside" "$tmp/m"
config 's/"hidden_size": 256/"hidden_size": 256, "hidden_size": 512/'
expect 1 "duplicate" "$tmp/m"
printf '{"text_config":%.0s' $(seq 3000) >"$tmp/m/config.json"
expect 1 "config.json" "$tmp/m"
[ $bad = 0 ] && echo "inspect-hostile: ok"
exit $bad
