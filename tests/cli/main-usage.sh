#!/usr/bin/env bash
# labels: fast
# What every command shares: help, exit codes, strict options, environment, a result that cannot be written.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

want() { # CODE PATTERN COMMAND...: exit code, and a line of output or error that matches
    local code=$1 pattern=$2
    shift 2
    "$@" >"$work/out" 2>"$work/err"
    local got=$?
    if [ $got != "$code" ] || ! cat "$work/out" "$work/err" | grep -q -- "$pattern"; then
        echo "$*: exit $got (want $code), no '$pattern' in:"
        cat "$work/out" "$work/err"
        bad=1
    fi
}

k=$KONDENSE
want 2 '^usage: kondense COMMAND' "$k"
want 0 '^usage: kondense COMMAND' "$k" --help
want 0 '^  inspect ' "$k" help
want 0 '^kondense [0-9]*\.[0-9]*\.[0-9]*$' "$k" --version
want 2 "'frobnicate' is not a command" "$k" frobnicate
want 2 "'frobnicate' is not a command" "$k" help frobnicate
want 0 '^usage: kondense inspect' "$k" inspect -h
want 0 '^kondense-inspect(1)' "$k" man inspect
want 2 'too few arguments: kondense inspect' "$k" inspect
want 2 'one argument too many' "$k" inspect a b
want 2 '--nonsense: no such option' "$k" inspect --nonsense x
want 2 "--threads: '4x' is not a whole number" "$k" convert --threads 4x a b
want 2 '--threads: 0 is outside 1 to' "$k" convert --threads 0 a b
want 2 "--size: '3Q' is not a size" "$k" convert --size 3Q a b
want 2 "--recipe: 'best' is not one of" "$k" convert --recipe best a b
want 2 'environment variable KONDENSE_THREADS: ' env KONDENSE_THREADS=many "$k" convert a b
want 2 "KONDENSE_LOG: log setting 'loud'" env KONDENSE_LOG=loud "$k" help
want 1 'cannot write the result' sh -c '"$0" inspect "$KONDENSE_TEST_DATA/k3-nano" >/dev/full' "$k"
want 1 'cannot write the result' sh -c '"$0" --version >/dev/full' "$k"
want 2 "--request: 1k is outside 64k to 64M" "$k" slice a b --request 1k
want 2 "kondense slice: experts: '-1' is neither a number" "$k" slice "$KONDENSE_TEST_DATA/k3-nano" "$work/s" --experts -1
want 2 "kondense slice: experts: '3-' is neither a number" "$k" slice "$KONDENSE_TEST_DATA/k3-nano" "$work/s" --experts 0,3-
want 2 "kondense slice: experts: '' is neither a number" "$k" slice "$KONDENSE_TEST_DATA/k3-nano" "$work/s" --experts 1,
want 2 "--ids: '' is not a whole number" "$k" generate "$KONDENSE_TEST_DATA/k3-nano" --ids 1, -n 1
want 1 "no-such-model" "$k" inspect "$work/no-such-model"
want 2 'KONDENSE_ISA is "mmx"' env KONDENSE_ISA=mmx "$k" generate "$KONDENSE_TEST_DATA/k3-nano" --ids 1 -n 1

# An option that many commands have is the same in all; no variable of the tests is an option's default.
"$k" help | sed -n 's/^  \([a-z][a-z]*\)  *.*/\1/p' | while read -r c; do
    "$k" help "$c" >"$work/help"
    grep -q -- '--threads' "$work/help" && ! grep -q -- '^  -t, --threads N ' "$work/help" && echo "$c: --threads is not -t"
    sed -n 's/^  .. *--\([a-z0-9-]*\).*/\1/p; s/^  -., --\([a-z0-9-]*\).*/\1/p' "$work/help" | tr a-z- A-Z_ | sed 's/^/KONDENSE_/'
done >"$work/names"
grep -v '^KONDENSE_' "$work/names" && bad=1
grep -q '^KONDENSE_THREADS$' "$work/names" && grep -q '^KONDENSE_LATENT_EPS$' "$work/names" || { echo "the options were not read"; bad=1; }
env | sed -n 's/^\(KONDENSE_[A-Z_]*\)=.*/\1/p' | grep -vx KONDENSE_LOG >"$work/set"
grep -qx KONDENSE_TEST_ROOT "$work/set" || { echo "the environment of the tests was not read"; bad=1; }
grep -xf "$work/set" "$work/names" && { echo "is set here and an option's default too"; bad=1; }
want 0 '^usage: kondense serve' env KONDENSE_LOG=info "$k" serve -h

# A stream that is closed is no file that is opened later: text must not go into it.
nano=$KONDENSE_TEST_DATA/k3-nano
"$k" generate "$nano" -p x -n 3 --trace "$work/trace" >/dev/null
want 1 'cannot write' sh -c '"$0" "$@" >&-' "$k" generate "$nano" -p x -n 3 --trace "$work/closed"
[ ! -e "$work/closed" ] || cmp "$work/trace" "$work/closed" || bad=1
"$k" generate "$nano" -p x -n 3 --trace "$work/closed" <&- >&- 2>&-
[ ! -e "$work/closed" ] || cmp "$work/trace" "$work/closed" || bad=1
want 1 'chat: cannot read the next message' sh -c '"$0" chat "$1" <&-' "$k" "$nano"

# What is there and is no model is not said to be missing.
for c in inspect "slice x" receipt "generate -p x" "fetch x"; do
    # shellcheck disable=SC2086
    set -- $c
    case ${2-} in x) set -- "$1" /dev/null "$work/x" ;; *) set -- "$@" /dev/null ;; esac
    "$k" "$@" 2>"$work/err" && bad=1
    grep -q "it is n" "$work/err" && ! grep -q "not there" "$work/err" || { echo "$*: $(cat "$work/err")"; bad=1; }
done
cp -r "$nano" "$work/same"
want 2 "is the source" "$k" fetch "$work/same" "$work/same/"
[ ! -e "$work/same/.fetch" ] || { echo "fetch left a journal in its source"; bad=1; }
want 2 "no name" "$k" fetch "$nano" ""
want 2 "--tok-s: -1 is outside 0 to" "$k" receipt "$nano" --tok-s -1

# Whose reader has gone ends by SIGPIPE without a word, as other programs do (141 is 128 and the signal's number).
for args in "generate $KONDENSE_TEST_DATA/k3-nano -p x -n 9" --version "man convert" "plan --bpw 2" "inspect $KONDENSE_TEST_DATA/k3-nano" "plan --json -"; do
    { # shellcheck disable=SC2086
        (sleep 0.2; exec "$k" $args) 2>"$work/err"
        echo $? >"$work/code"
    } | true
    [ "$(cat "$work/code")" = 141 ] && [ ! -s "$work/err" ] || { echo "$args | true: $(cat "$work/code" "$work/err")"; bad=1; }
done

# Errors go to standard error, results do not.
"$k" inspect "$work/no-such-model" >"$work/out" 2>/dev/null
[ ! -s "$work/out" ] || { echo "an error on standard output"; bad=1; }
"$k" help inspect >"$work/a" && "$k" inspect -h >"$work/b" && cmp "$work/a" "$work/b" || bad=1
exit $bad
