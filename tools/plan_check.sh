#!/bin/sh
# plan_check.sh KONDENSE MODEL CALIB [TOLERANCE]: holds what `kondense plan --this` says of decoding and
# converting MODEL on this machine against what then happens. TOLERANCE is 0.15; BPW (2.3) and THREADS
# (all) come from the environment. With more than one thread the machine must be idle. THREADS=1 holds CPU
# seconds against CPU seconds, which other work moves little.
set -eu
[ $# -ge 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
kondense=$1 model=$2 calib=$3 tolerance=${4:-0.15}
bpw=${BPW:-2.3} threads=${THREADS:-$(nproc)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
load=$(cut -d' ' -f1 /proc/loadavg)
[ "$threads" -eq 1 ] || ! awk -v l="$load" -v t="$threads" 'BEGIN { exit !(l > 0.3 * t) }' ||
    echo "plan_check: load is $load: other work runs here, the figures are not to be trusted" >&2
number() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p" "$2" | head -1; }
# Seconds of the commands run so far, in t: of the clock, or of the CPU (not in a subshell: it has its own).
now() {
    if [ "$threads" -gt 1 ]; then
        t=$(date +%s.%N)
    else
        times >"$work/times"
        t=$(awk 'NR == 2 { split($1, u, "[ms]"); split($2, s, "[ms]"); print u[1] * 60 + u[2] + s[1] * 60 + s[2] }' \
            "$work/times")
    fi
}
"$kondense" plan "$model" --this --bpw "$bpw" --threads "$threads" --json "$work/plan.json" >"$work/plan.txt"
grep "here" "$work/plan.txt" || true
said_decode=$(number tokens_s "$work/plan.json")
if [ "$threads" -gt 1 ]; then
    "$kondense" bench forward --model "$model" --threads "$threads" --seconds 3 --json >"$work/bench.json"
    # The first decode entry is that of one sequence.
    decode=$(awk '/"phase": "decode"/ { d = 1 } d && /"median"/ { sub(/^[^:]*: */, ""); sub(/,$/, ""); print; exit }' \
        "$work/bench.json")
else
    # What up to 448 tokens cost over one.
    generate() {
        "$kondense" generate "$model" --ids 40,41,42,43 --tokens "$1" --temp 1.5 --threads 1 --json >"$work/ids.json"
    }
    now; a=$t; generate 1; now; b=$t; generate 448; now
    made=$(sed -n '/"ids"/,/]/p' "$work/ids.json" | grep -c '[0-9]')
    decode=$(awk -v a="$a" -v b="$b" -v c="$t" -v n="$made" 'BEGIN { print (n - 1) / (c - b - (b - a)) }')
fi
now
start=$t
"$kondense" convert "$model" "$work/out" --bpw "$bpw" --calib "$calib" --threads "$threads" --quiet >/dev/null
now
convert=$(awk -v a="$t" -v b="$start" 'BEGIN { print a - b }')
awk -v pd="$said_decode" -v rd="$decode" -v pc="$(number convert_s "$work/plan.json")" -v rc="$convert" \
    -v tol="$tolerance" '
    function off(p, r) { return p / r - 1 }
    BEGIN {
        printf "decode   said %8.1f tok/s  was %8.1f  off %+.1f %%\n", pd, rd, 100 * off(pd, rd)
        printf "convert  said %8.1f s      was %8.1f  off %+.1f %%\n", pc, rc, 100 * off(pc, rc)
        d = off(pd, rd); c = off(pc, rc)
        exit !(d <= tol && d >= -tol && c <= tol && c >= -tol)
    }'
