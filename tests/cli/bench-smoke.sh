#!/usr/bin/env bash
# kondense bench: every benchmark runs, names machine and build, and gives figures with their spread. How
# high they are is not tested: this machine may be busy.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
has() { grep -q "$2" "$1" || fail "$1 lacks $2: $(head -c 1500 "$1")"; }
positive() { # FILE KEY: its value is over zero
    awk -v k="\"$2\":" '$1 == k && $2 != "{" { v = $2 + 0; seen = 1; if (v <= 0) bad = 1 } END { exit !(seen && !bad) }' "$1" ||
        fail "$1: no $2 over zero"
}
"$KONDENSE" bench encode --rate 2,2.3125 --tiles 16 --seconds 0.01 --json >"$tmp/encode" || fail "encode"
"$KONDENSE" bench decode --rate 2 --seconds 0.01 --json >"$tmp/decode" || fail "decode"
"$KONDENSE" bench calib --shape "$model" --rows 40 --seconds 0.01 --json >"$tmp/calib" || fail "calib"
"$KONDENSE" bench forward --model "$model" --seconds 0.01 --json >"$tmp/forward" || fail "forward"
for f in encode decode calib forward; do
    has "$tmp/$f" "\"bench\": \"$f\""
    has "$tmp/$f" '"cpu": "'
    has "$tmp/$f" '"isa": "'
    has "$tmp/$f" '"compiler": "'
    has "$tmp/$f" '"flags": "'
    for key in ghz median min max; do positive "$tmp/$f" $key; done
done
positive "$tmp/encode" candidates_per_cycle
has "$tmp/forward" '"fast": true'
# The error of a Gaussian source: at 2 bits about 0.068, at 2.3125 about 0.045, at any rate the same on
# every machine and for every number of threads.
awk '$1 == "\"mse\":" { n++; v[n] = $2 + 0 } END { exit !(n == 2 && v[1] > 0.06 && v[1] < 0.076 && v[2] > 0.038 && v[2] < 0.052) }' "$tmp/encode" ||
    fail "mean squared errors: $(grep mse "$tmp/encode")"
"$KONDENSE" bench encode --rate 2,2.3125 --tiles 16 --seconds 0.01 --json --threads 1 >"$tmp/one" || fail "one thread"
[ "$(grep '"mse"' "$tmp/encode")" = "$(grep '"mse"' "$tmp/one")" ] || fail "threads change the error"
has "$tmp/decode" 'memory read'
positive "$tmp/decode" gb_s
has "$tmp/decode" '"activations": "int8"'
for key in lanes_a_cycle cycles_16_weights bound_cycles_16_weights bound_share; do
    positive "$tmp/decode" $key
done
for key in ms tflop_s share peak_tflop_s lanes_a_cycle; do
    positive "$tmp/calib" $key
done
# Of K3-nano: 128 latents and inner values, 256 inputs and 4 heads of 64.
[ "$(awk '$1 == "\"flop_token\":" { printf "%d ", $2 }' "$tmp/calib")" = "81920 65536 131072 " ] ||
    fail "operations of calib: $(cat "$tmp/calib")"
has "$tmp/calib" '"class": "exact"'
positive "$tmp/forward" peak_memory_bytes
"$KONDENSE" bench encode --rate 2 --tiles 4 --seconds 0.001 | grep -q 'tiles/s a core' || fail "no screen"
bad() { local rc=0; "$KONDENSE" bench "$@" >/dev/null 2>&1 || rc=$?; [ $rc = 2 ] || fail "bench $*: exit $rc"; }
bad
bad sideways
bad encode --rate 9
bad encode --rate 2.01
bad forward
bad decode --ledger x # options of another benchmark, and a list that is wrong before anything is measured
bad encode "$model"
bad calib --calib-class fast # the CPU has one class
bad calib --rate 2
bad encode --calib-class exact
bad encode --rows 3
bad forward --model "$model" --account
bad forward --model "$model" --account --device cpu
bad farm --rate 2
bad farm --units 0,0
bad farm --units 5,x
exit 0
