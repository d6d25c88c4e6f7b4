#!/usr/bin/env bash
# labels: fast
# Wrong use and bad input of convert: one clear line, the right exit code, nothing under a final name.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$KONDENSE_TEST_ROOT/tests/data/k3-nano calib=$KONDENSE_TEST_ROOT/tests/data/text/calib.txt

refuses() { # CODE PATTERN args...
    code=0 want=$1 pattern=$2
    shift 2
    "$KONDENSE" "$@" >"$work/out" 2>"$work/err" || code=$?
    test $code -eq "$want" || { echo "$*: exit code $code, $want expected"; cat "$work/err"; exit 1; }
    test "$(wc -l <"$work/err")" -eq 1 || { echo "$*: not one line:"; cat "$work/err"; exit 1; }
    grep -q -- "$pattern" "$work/err" || { echo "$*: no '$pattern' in:"; cat "$work/err"; exit 1; }
    test ! -e "$work/dst/config.json" || { echo "$*: left a model"; exit 1; }
}
refuses 2 "calib" convert "$model" "$work/dst"
refuses 2 "1 to 8" convert "$model" "$work/dst" --calib "$calib" --bpw 9
refuses 2 "1 to 8" convert "$model" "$work/dst" --calib "$calib" --bpw 2x
refuses 2 "stored" convert "$model" "$work/dst" --calib "$calib" --trunk-bpw none
refuses 2 "'2,' is not a list" convert "$model" "$work/dst" --calib "$calib" --bpw 2,
refuses 2 "'' is not a list" convert "$model" "$work/dst" --calib "$calib" --bpw ""
refuses 2 "5.1 MB is too small" convert "$model" "$work/dst" --calib "$calib" --rows 2 --cols 32 --size 5000k
least=$(sed -n 's/.*--size \([0-9]*\)k is the least.*/\1/p' "$work/err")
"$KONDENSE" convert "$model" "$work/dst" --size "${least}k" --dry-run >/dev/null
refuses 2 "too small" convert "$model" "$work/dst" --size $((least - 1))k --dry-run
refuses 2 "recipe" convert "$model" "$work/dst" --calib "$calib" --recipe best
refuses 2 "too few" convert "$model"
refuses 2 "no such option" convert "$model" "$work/dst" --bits 2
refuses 1 "cannot open" convert "$work/none" "$work/dst" --calib "$calib"
refuses 1 "cannot open" convert "$model" "$work/dst" --calib "$work/none.txt"
printf 'short' >"$work/short.txt"
# A dry run refuses what the run does at its beginning, in the same words.
alike() { # CODE PATTERN args...
    refuses "$@"
    cp "$work/err" "$work/run"
    refuses "$@" --dry-run
    cmp "$work/run" "$work/err" || { echo "a dry run says something else"; exit 1; }
}
alike 1 "short.txt" convert "$model" "$work/dst" --calib "$work/short.txt" --rows 2 --cols 32
settings="--calib $calib --rows 2 --cols 32"
# shellcheck disable=SC2086
alike_exl3() { alike "$1" "$2" convert "$model" "$3" $settings "${@:4}"; }
mkdir -p "$work/done" "$work/begun/.work" "$work/two/2" "$work/farm"
echo '{}' | tee "$work/done/config.json" "$work/begun/.work/settings.json" "$work/two/2/config.json" >/dev/null
alike_exl3 2 "already holds a finished model" "$work/done"
alike_exl3 2 "already holds a finished model" "$work/done" --resume
alike_exl3 2 "2' already holds a finished model" "$work/two" --bpw 3,2
alike_exl3 2 "unfinished conversion: add --resume" "$work/begun"
alike_exl3 2 "begun with other settings" "$work/begun" --resume
(
    exec 9>"$work/begun/.work/.lock"
    flock 9
    alike_exl3 1 "in use by another kondense" "$work/begun" --resume 9>&-
)
alike_exl3 1 "is there and is not a folder" "$work/done/config.json"
alike_exl3 1 "is there and is not a folder" "$work/done/config.json/x"
alike_exl3 1 "/dev/null' is there and is not a folder" /dev/null
alike_exl3 2 "has no name" ""
alike 2 "two calibration rows" convert "$model" "$work/dst" --calib "$calib" --rows 1 --cols 32 --recipe auto
alike_exl3 2 "only-workers needs a farm" "$work/dst" --only-workers
alike_exl3 2 "farm-report needs a farm" "$work/dst" --farm-report "$work/r.html"
alike_exl3 2 "is no farm" "$work/dst" --farm https://localhost:1 --farm-dir "$work/farm"
alike_exl3 2 "one --bpw" "$work/dst" --farm https://localhost:1 --bpw 2,3
alike_exl3 1 "farm': it is a folder" "$work/dst" --json "$work/farm"
alike_exl3 1 "no/j.json': No such file" "$work/dst" --json "$work/no/j.json"
test ! -e "$work/dst" || { echo "left $work/dst"; exit 1; }
mkdir "$work/folder.gguf"
touch "$work/there.gguf" "$work/half.gguf.unfinished"
alike 2 "is there already" convert "$model" "$work/there.gguf" --to gguf
alike 2 "add --resume" convert "$model" "$work/half.gguf" --to gguf
alike 2 "with other settings" convert "$model" "$work/half.gguf" --to gguf --resume
alike 1 "not a plain file" convert "$model" "$work/folder.gguf" --to gguf
alike 1 "no/dst.gguf': No such file" convert "$model" "$work/no/dst.gguf" --to gguf
alike 1 "is not a folder" convert "$model" "$work/there.gguf/x" --to gguf

# JSON on standard output is alone there.
for to in "--bpw 2,3" "--to gguf"; do
    # shellcheck disable=SC2086
    "$KONDENSE" convert "$model" "$work/dst" $to --dry-run --json - | python3 -c 'import json, sys; json.load(sys.stdin)'
done

# Where a report cannot go is told before the work of other commands, too.
refuses 1 "it is a folder" check "$model" "$model" --text "$calib" --html "$work/farm"
refuses 1 "No such file" check "$model" "$model" --text "$calib" --json "$work/no/j.json"
refuses 1 "not a plain file" check "$model" "$model" --text "$calib" --save-ref /dev/null
refuses 1 "it is a folder" receipt "$work/none" --json "$work/farm"
refuses 1 "No such file" audit "$work/none" --of "$work/none" --html "$work/no/h.html"
refuses 1 "it is a folder" plan "$work/none" --html "$work/farm"
refuses 1 "not a plain file" generate "$work/none" -p x --trace "$work/farm"
refuses 1 "No such file" synth "$work/dst" --config "$model/config.json" --json "$work/no/j.json"
refuses 1 "is not a folder" fetch "$work/none" "$work/there.gguf"
test ! -e "$work/dst" || { echo "left $work/dst"; exit 1; }

# A model that is EXL3 already has nothing to encode: it would be copied under the name of another rate.
"$KONDENSE" synth "$work/exl3" --config "$KONDENSE_TEST_ROOT/tests/data/awkward/tiny.json" --format exl3 >/dev/null
refuses 1 "is EXL3.*convert the original" convert "$work/exl3" "$work/dst" --calib "$calib" --rows 2 --cols 32

# A damaged shard.
cp -r "$model" "$work/cut"
chmod -R u+w "$work/cut"
truncate -s 11000000 "$work/cut/model-00002-of-000002.safetensors"
refuses 1 "model-00002" convert "$work/cut" "$work/dst" --calib "$calib" --rows 2 --cols 32

# A disk that is full: a small tmpfs where mounting is allowed.
mkdir "$work/small"
if mount -t tmpfs -o size=6m none "$work/small" 2>/dev/null; then
    code=0
    "$KONDENSE" convert "$model" "$work/small/dst" --calib "$calib" --rows 2 --cols 32 >/dev/null 2>"$work/err" || code=$?
    umount "$work/small"
    test $code -eq 1 && grep -q "disk\|space" "$work/err" || { echo "full disk: $code"; cat "$work/err"; exit 1; }
fi
