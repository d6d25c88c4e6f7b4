#!/bin/sh
# A private PostgreSQL server for tests, as an ordinary user, in a folder of its own:
#   pg.sh start DIR     prints the connection string
#   pg.sh stop DIR      fast; pg.sh crash DIR: as if the power went
# Exit code 77 where PostgreSQL's server programs are not installed.
set -eu
dir=$2
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] && [ -x "$bin/initdb" ] || exit 77
as() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$dir" "$@"
    else
        "$@"
    fi
}
case $1 in
start)
    if ! [ -d "$dir/data" ]; then
        mkdir -p "$dir"
        [ "$(id -u)" != 0 ] || chown 65534:65534 "$dir"
        as "$bin/initdb" -D "$dir/data" -U kondense -A trust --no-sync >"$dir.initdb" 2>&1 ||
            { cat "$dir.initdb" >&2; exit 1; }
    fi
    as "$bin/pg_ctl" -D "$dir/data" -w -t 30 -l "$dir/log" \
        -o "-c listen_addresses='' -c unix_socket_directories='$dir' -c shared_buffers=16MB -c max_connections=40" \
        start >/dev/null 2>&1 </dev/null || { cat "$dir/log" >&2; exit 1; }
    echo "host=$dir dbname=postgres user=kondense"
    ;;
stop) as "$bin/pg_ctl" -D "$dir/data" -m fast -w stop >/dev/null 2>&1 ;;
crash) as "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 ;;
esac
