#!/bin/sh
# Workers of a farm by ssh, for a few machines without Slurm or systemd units:
#
#   launch/farm-ssh.sh start  HOSTS worker.join [worker options]
#   launch/farm-ssh.sh status HOSTS
#   launch/farm-ssh.sh stop   HOSTS        politely: what they hold goes back
#
# HOSTS is a file with one host a line (user@host works; # begins a comment). kondense must be on the
# hosts' PATH, or say where by KONDENSE. SSH names the ssh command (ssh -o BatchMode=yes), FARM_DIR the
# folder on the hosts (.kondense-worker in the home folder).
set -eu
ssh=${SSH:-ssh -o BatchMode=yes}
program=${KONDENSE:-kondense}
dir=${FARM_DIR:-.kondense-worker}
what=${1:?usage: farm-ssh.sh start|status|stop HOSTS [worker.join [worker options]]}
hosts=$(sed 's/#.*//' "${2:?a file with the hosts}")
shift 2
failed=0

# Words as one line for the remote shell.
quoted() {
    for w; do
        printf " '%s'" "$(printf '%s' "$w" | sed "s/'/'\\\\''/g")"
    done
}

case $what in
start)
    join=${1:?the join file}
    shift
    for h in $hosts; do
        # The join file goes through the pipe, into a folder that only its user can read.
        if $ssh "$h" "umask 077 && mkdir -p $(quoted "$dir") && cat >$(quoted "$dir/worker.join") &&
            cd $(quoted "$dir") && { [ -f pid ] && kill -0 \$(cat pid) 2>/dev/null && echo 'runs already' ||
            { KONDENSE_LOG=info nohup setsid $(quoted "$program") worker --quiet --stay --join worker.join \
                --dir . $(quoted "$@") </dev/null >>worker.log 2>&1 & echo \$! >pid; echo started; }; }" <"$join"; then
            :
        else
            echo "$h: could not start" >&2
            failed=1
        fi
    done
    ;;
status)
    for h in $hosts; do
        printf '%s: ' "$h"
        $ssh -n "$h" "cd $(quoted "$dir") 2>/dev/null && kill -0 \$(cat pid) 2>/dev/null && echo runs && \
            tail -n 1 worker.log || echo 'does not run'" || failed=1
    done
    ;;
stop)
    for h in $hosts; do
        $ssh -n "$h" "cd $(quoted "$dir") 2>/dev/null && kill -TERM \$(cat pid) 2>/dev/null; rm -f pid" ||
            echo "$h: was not running"
    done
    ;;
*)
    echo "farm-ssh.sh: '$what' is none of start, status, stop" >&2
    exit 2
    ;;
esac
exit $failed
