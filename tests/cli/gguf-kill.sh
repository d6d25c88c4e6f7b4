#!/usr/bin/env bash
# labels: fast
# convert --to gguf killed at any moment and resumed: the same bytes, and nothing left over.
set -u
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "gguf-kill: $*" >&2; exit 1; }
convert() { "$KONDENSE" convert "$nano" "$1" --to gguf --split-size 2M --resume -q; }
convert "$tmp/whole" >/dev/null || fail "the plain run"
last=$tmp/killed/$(ls "$tmp/whole" | tail -n 1)
killed=0
for ms in 02 04 06 08 10 12 14 18 22 26 30 40; do
    convert "$tmp/killed" >/dev/null 2>"$tmp/err" &
    pid=$!
    sleep 0.$ms
    kill -9 $pid 2>/dev/null && killed=$((killed + 1))
    wait $pid 2>/dev/null
    [ -e "$last" ] && break
done
if [ ! -e "$last" ] || [ -e "$tmp/killed/k3-nano-BF16.gguf.unfinished" ]; then
    convert "$tmp/killed" >/dev/null || fail "the last resume"
fi
diff -r "$tmp/whole" "$tmp/killed" || fail "other bytes after $killed kills"
# A file over the limit is a sentence; what another conversion has begun in the folder stays.
other=$tmp/full/k3-nano-BF16-x.gguf.tmpAbCdEf
mkdir "$tmp/full" && touch "$other" "$tmp/full/k3-nano-BF16.gguf.tmpAbCdEf"
(ulimit -f 1000 && convert "$tmp/full") >/dev/null 2>"$tmp/err"
code=$?
[ $code = 1 ] && grep -q 'File too large' "$tmp/err" || fail "exit $code: $(cat "$tmp/err")"
convert "$tmp/full" >/dev/null || fail "the resume after it"
rm "$other" || fail "another conversion's file is gone"
diff -r "$tmp/whole" "$tmp/full" || fail "other bytes after a full disk"
echo "gguf-kill: $killed kills, ok"
