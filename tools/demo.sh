#!/bin/sh
# The main job on the small model of the repository: convert it to 2.3 bits, measure it against the
# original on text that the conversion did not see, and let it answer.
set -eu
cd "$(dirname "$0")/.."
k=build/kondense
src=tests/data/k3-nano
dst=build/demo/k3-nano-2.3
text=tests/data/text
for c in convert check chat; do
    if ! "$k" help | grep -q "^  $c "; then
        echo "demo: this build has no '$c' command" >&2
        exit 1
    fi
done
rm -rf "$dst"
mkdir -p build/demo
now() { date +%s; }
bytes() { cat "$1"/model-*.safetensors | wc -c | awk '{printf "%.1f MB", $1 / 1e6}'; }

step() { # TITLE COMMAND...: shows the command, keeps its output for a failure
    title=$1
    shift
    printf '$ kondense'
    for word; do
        case $word in *' '*) word="'$word'" ;; esac
        printf ' %s' "$word"
    done
    echo
    began=$(now)
    if ! "$k" "$@" >build/demo/out.txt; then
        cat build/demo/out.txt >&2
        echo "demo: '$title' failed" >&2
        exit 1
    fi
    took=$(($(now) - began))
}

step convert convert "$src" "$dst" --bpw 2.3 --calib "$text/calib.txt"
echo "  $(bytes "$src") of weights became $(bytes "$dst") in $took s"
echo
step check check "$src" "$dst" --text "$text/eval.txt" --cols 512 \
    --html build/demo/report.html --json build/demo/report.json
sed 's/^/  /' build/demo/out.txt
echo "  ($took s; the same with plots: build/demo/report.html)"
echo
for q in 'What is 17 plus 25?' 'What is the capital of Poland?'; do
    step chat chat "$dst" --tools tests/data/tools.json --temp 0 -p "$q"
    sed '/^$/d; s/^/  /' build/demo/out.txt
done
