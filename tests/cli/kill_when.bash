# kill_when FOLDER PATTERN command...: kills the command (kill -9) as soon as a file FOLDER/PATTERN is there.
# Where it was done before it could be killed, FOLDER goes and it starts again.
kill_when() {
    local folder=$1 pattern=$2 tries pid
    shift 2
    for tries in $(seq 50); do
        rm -rf "$folder"
        "$@" >/dev/null 2>&1 &
        pid=$!
        while kill -0 $pid 2>/dev/null && ! compgen -G "$folder/$pattern" >/dev/null; do sleep 0.002; done
        kill -9 $pid 2>/dev/null || true
        wait $pid 2>/dev/null || true
        test -e "$folder/config.json" || return 0
    done
    echo "always finished before it was killed: $*"
    exit 1
}
