# Two servers on one port cannot both run, but neither listens while it loads. So the leader of a
# run's session holds the kernel's lock of a file per port, which all users of the host share, from
# before the start until the end of its process. A start that comes second waits a moment and then
# fails with the name of the first: it prints "error claimed USER RUN". A host without `flock` or a
# common directory has no such locks.

claim() {
    command -v flock >/dev/null 2>&1 || return 0
    for place in "${WORKBENCH_GPU_REGISTER-}" /run/lock /var/tmp; do
        [ -n "$place" ] && [ -d "$place" ] && [ -w "$place" ] && break
        place=
    done
    [ -n "$place" ] || return 0
    lock=$place/workbench-port-$1.lock
    [ -e "$lock" ] || (umask 133; set -C; : >"$lock") 2>/dev/null
    [ -f "$lock" ] && [ ! -L "$lock" ] || return 0
    { exec 8<"$lock"; } 2>/dev/null || return 0
    for try in 1 2 3 4 5 6 7 8 9 10; do
        if flock -n 8; then
            mine=$place/workbench-port-$1.$(id -u)
            rm -f -- "$mine"
            (umask 133; set -C; echo "$2" >"$mine") 2>/dev/null
            return 0
        fi
        sleep 0.3 2>/dev/null || sleep 1
    done
    first=$(ls -1t -- "$place/workbench-port-$1".[0-9]* 2>/dev/null | head -n 1)
    run=
    [ -f "$first" ] && [ ! -L "$first" ] && { IFS= read -r run <"$first"; } 2>/dev/null
    echo "error claimed $(stat -c %U -- "${first:-$lock}" 2>/dev/null || echo somebody) $run"
    exit 1
}
