#!/bin/sh
# man.sh KONDENSE DIR: writes the page of every command; the program's own page is written by hand.
set -eu
for c in $("$1" help | sed -n 's/^  \([a-z][a-z]*\)  *.*/\1/p'); do
    "$1" man "$c" >"$2/kondense-$c.1.scd"
done
