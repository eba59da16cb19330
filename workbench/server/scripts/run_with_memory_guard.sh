# $1 reserve in KiB, $2 grace in seconds, then the server's command. Runs the command in the
# foreground, as a background command of sh would ignore SIGINT. The guard reads MemAvailable twice
# a second, without a new process but for `sleep`. Two readings below the reserve stop the server:
# its process group gets TERM (the traps keep this shell and the leader of the session alive, which
# record the exit code), and KILL as a last resort.

reserve=$1 grace=$2
shift 2
available() {
    while read -r key kib rest; do [ "$key" = MemAvailable: ] && return; done </proc/meminfo
    kib=
}
(
    trap 'exit 0' USR1
    trap '' TERM INT HUP
    low=
    while sleep 0.5 || sleep 1; do
        available
        if [ -z "$kib" ] || [ "$kib" -ge "$reserve" ]; then low=; continue; fi
        [ -n "$low" ] || { low=1; continue; }
        echo "workbench: error: stopped the server: $((kib / 1024)) MiB of memory are left on this host," \
            "the reserve is $((reserve / 1024)) MiB" >&2
        kill -s TERM 0
        left=$((grace * 2))
        while [ "$left" -gt 0 ] && { sleep 0.5 || sleep 1; }; do left=$((left - 1)); done
        kill -s KILL 0
    done
) &
guard=$!
trap : TERM INT HUP
(exec "$@")
code=$?
kill -s USR1 "$guard" 2>/dev/null
exit "$code"
