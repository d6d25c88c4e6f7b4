#!/usr/bin/env bash
# labels: fast
# slice of k3-nano as safetensors and GGUF: everything is the source, a slice of a slice is the direct one, every
# result runs. What it must hold tensor for tensor is in tests/net/test_slice.py.
set -eu
nano=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "slice-nano: $*" >&2; exit 1; }
slice() { "$KONDENSE" slice "$@" -q >"$tmp/out" || fail "$*: $(cat "$tmp/out")"; }
says() { "$KONDENSE" generate "$1" -p 'The old man looked at the sea and said' -n 8; }

"$KONDENSE" convert "$nano" "$tmp/one.gguf" --to gguf -q >/dev/null
"$KONDENSE" convert "$nano" "$tmp/set" --to gguf --split-size 4M -q >/dev/null

# Everything: byte for byte the source; a set comes out merged.
slice "$nano" "$tmp/all"
for f in "$tmp/all"/*; do cmp "$f" "$nano/$(basename "$f")" || fail "$f"; done
slice "$tmp/one.gguf" "$tmp/all.gguf"
cmp "$tmp/one.gguf" "$tmp/all.gguf" || fail "a slice of everything"
slice "$tmp/set" "$tmp/merged.gguf"
cmp "$tmp/one.gguf" "$tmp/merged.gguf" || fail "a slice of everything of a set"

# A slice of a slice is the direct slice, and both kinds say the same.
slice "$nano" "$tmp/a" --layers 8 --experts 4-31
slice "$tmp/a" "$tmp/b" --layers 4 --experts 4-19
slice "$nano" "$tmp/c" --layers 4 --experts 8-23
diff -r "$tmp/b" "$tmp/c" || fail "a slice of a slice"
slice "$tmp/set" "$tmp/a.gguf" --layers 8 --experts 4-31
slice "$tmp/a.gguf" "$tmp/b.gguf" --layers 4 --experts 4-19
slice "$tmp/set" "$tmp/c.gguf" --layers 4 --experts 8-23
cmp "$tmp/b.gguf" "$tmp/c.gguf" || fail "a slice of a slice of a GGUF"
[ "$(says "$tmp/c")" = "$(says "$tmp/c.gguf")" ] || fail "$(says "$tmp/c"), $(says "$tmp/c.gguf")"

# Converted on the way: the same as slicing first, whatever the requests and threads.
for t in Q1_0 MXFP4 F16 BF16 Q8_0; do
    slice "$tmp/set" "$tmp/$t.gguf" --layers 4 --experts 8-23 --experts-used 2 --requant $t
    slice "$tmp/c.gguf" "$tmp/again.gguf" --experts-used 2 --requant $t --request 64K --gap 1 -t 1
    cmp "$tmp/$t.gguf" "$tmp/again.gguf" || fail "$t after slicing"
    rm "$tmp/again.gguf"
    says "$tmp/$t.gguf" >/dev/null
done
grep -q 'relative squared error 2\..*e-05' "$tmp/out" || fail "$(cat "$tmp/out")"
[ "$(says "$tmp/Q8_0.gguf")" != "$(says "$tmp/Q1_0.gguf")" ] || fail "Q1_0 speaks like Q8_0"
slice "$tmp/c.gguf" "$tmp/head.gguf" --requant Q1_0 --keep-head
[ "$(stat -c %s "$tmp/head.gguf")" -gt $(($(stat -c %s "$tmp/Q1_0.gguf") + 1900000)) ] || fail "--keep-head"

# The index says which files are the shards, plain or gzipped, whatever they are called and whatever lies beside them.
index=model.safetensors.index.json
mkdir "$tmp/odd"
cp "$nano"/* "$tmp/odd"
mv "$tmp/odd/model-00001-of-000002.safetensors" "$tmp/odd/trunk.safetensors"
mv "$tmp/odd/model-00002-of-000002.safetensors" "$tmp/odd/experts.safetensors"
sed -i 's/model-00001-of-000002/trunk/; s/model-00002-of-000002/experts/' "$tmp/odd/$index"
cp "$nano/model-00002-of-000002.safetensors" "$tmp/odd/model-00003-of-000004.safetensors"
slice "$tmp/odd" "$tmp/all2"
for f in trunk.safetensors experts.safetensors $index; do cmp "$tmp/odd/$f" "$tmp/all2/$f" || fail "$f"; done
[ ! -e "$tmp/all2/golden.safetensors" ] || fail "a file that the index does not name was taken along"
cp "$tmp/odd/$index" "$tmp/index"
gzip "$tmp/odd/$index"
slice "$tmp/odd" "$tmp/d" --layers 4 --experts 8-23
[ "$(says "$tmp/d")" = "$(says "$tmp/c")" ] || fail "shards of other names"
rm "$tmp/odd/$index.gz"
refuses() {
    rc=0
    "$KONDENSE" slice "$tmp/odd" "$tmp/none" -q >"$tmp/out" 2>&1 || rc=$?
    [ $rc = 1 ] && grep -qF -- "$2" "$tmp/out" && [ "$(wc -l <"$tmp/out")" = 1 ] || fail "$1: rc $rc, $(cat "$tmp/out")"
}
name=language_model.model.layers.0.self_attn.A_log
while IFS='|' read -r edit says; do
    sed "$edit" "$tmp/index" >"$tmp/odd/$index"
    refuses "$edit" "$says"
done <<END
s/trunk/gone/|the shard 'gone.safetensors' that the index names is not there
s/trunk.safe/..\/odd\/trunk.safe/|its shard: file name with a path separator
s/trunk.safetensors/../|its shard: file name
s/"[^"]*A_log"/"a"/|tensor 'a' twice
s/"$name"/"a"/|tensor '$name' is not in the index
s/"$name": "trunk/"$name": "experts/|tensor '$name' is here, but the index puts it into
s/"weight_map": {/&"a": "trunk.safetensors",/|trunk.safetensors: tensor 'a' is in the index but not here
s/"weight_map": {/"weight_map": {}, "x": {/|its index names no shard
s/}/]/|index.json
END

# A destination that nothing can be renamed to is refused before anything is read or written, dry or not; so is a
# report's.
mkfifo "$tmp/fifo"
ln -s "$tmp/nowhere" "$tmp/link"
mkdir "$tmp/folder" "$tmp/folder.gguf"
while read -r src dst says; do
    for dry in "" --dry-run; do
        rc=0
        # shellcheck disable=SC2086
        "$KONDENSE" slice "$tmp/$src" ${dst//@/ } -q $dry >"$tmp/out" 2>&1 || rc=$?
        [ $rc = 1 ] && [ "$(wc -l <"$tmp/out")" = 1 ] && grep -qF -- "$says" "$tmp/out" || fail "$dst $dry: rc $rc, $(cat "$tmp/out")"
    done
done <<END
c /dev/null is there already
c $tmp/fifo is there already
c $tmp/link is there already
c $tmp/folder is there already
c $tmp/one.gguf is there already
c $tmp/one.gguf/x is there and is not a folder
c.gguf $tmp/folder.gguf is there already
c $tmp/x@--json@$tmp/folder it is a folder
c $tmp/x@--json@$tmp/y/z.json No such file
END
[ ! -e /dev/null.part ] || fail "left /dev/null.part"
slice "$tmp/c" "$tmp/new" --json "$tmp/new/said.json"
[ -s "$tmp/new/said.json" ] || fail "a report into the slice"

# A disk that is too small, where mounting is allowed: said in sizes that can be read, and nothing is left.
mkdir "$tmp/small"
if mount -t tmpfs -o size=6m none "$tmp/small" 2>/dev/null; then
    rc=0
    "$KONDENSE" slice "$tmp/c" "$tmp/small/s" -q >/dev/null 2>"$tmp/out" || rc=$?
    left=$(find "$tmp/small" -mindepth 1)
    umount "$tmp/small"
    [ $rc = 1 ] && [ -z "$left" ] && grep -q 'needs [0-9.]* MB of disk, 6.3 MB are free' "$tmp/out" || fail "$rc $left: $(cat "$tmp/out")"
fi

# A dry run writes nothing; a finished one leaves nothing beside.
slice "$nano" "$tmp/dry" --layers 4 --dry-run
grep -q 'never requested' "$tmp/out" || fail "$(cat "$tmp/out")"
! compgen -G "$tmp/*dry*" && ! compgen -G "$tmp/*part*" || fail "left behind: $(ls "$tmp")"
echo "slice-nano: ok"
