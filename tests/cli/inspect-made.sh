#!/usr/bin/env bash
# labels: fast
# Each file of tests/hostile/make.py: exit 1 and one clear line that names the file, nothing of its bytes on the
# terminal, and quickly.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 "$KONDENSE_TEST_ROOT/tests/hostile/make.py" "$tmp" || exit 1
bad=0 count=0
while IFS=$'\t' read -r file reason; do
    rc=0
    timeout 20 "$KONDENSE" inspect "$tmp/$file" >"$tmp/out" 2>"$tmp/err" || rc=$?
    if [ $rc != 1 ] || [ "$(wc -l <"$tmp/err")" != 1 ] || ! grep -qF -- "$reason" "$tmp/err" || [ -s "$tmp/out" ] ||
        ! grep -qF -- "$tmp/" "$tmp/err" || LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' "$tmp/err"; then
        echo "$file: rc $rc, wanted '$reason':" >&2
        cat -v "$tmp/err" "$tmp/out" >&2
        bad=1
    fi
    count=$((count + 1))
done <"$tmp/expect.tsv"
echo "$count files"
[ $count -ge 60 ] && exit $bad
exit 1
