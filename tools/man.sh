#!/bin/sh
# man.sh KONDENSE DIR: writes the page of every command, and the list of commands in the program's own
# page, from the program's tables.
set -eu
list=$("$1" help | sed -n 's/^  \([a-z][a-z]*\)  *\(.*\)/\1 \2/p')
for c in $(echo "$list" | cut -d' ' -f1); do
    "$1" man "$c" >"$2/kondense-$c.1.scd"
done
page=$2/kondense.1.scd
{
    sed '/^# COMMANDS$/q' "$page"
    echo "$list" | while read -r c summary; do
        printf '\n*kondense-%s*(1)\n\t%s\n' "$c" "$(printf '%s' "$summary" | sed 's/[_*\\]/\\&/g')"
    done
    echo
    sed -n '/^# ENVIRONMENT$/,$p' "$page"
} >"$page.new"
mv "$page.new" "$page"
