# `end_monitor`: ends the monitor (conmon) of the run in directory $1, whose container podman has
# removed, and what the monitor holds. If `podman run` is killed between creating and starting,
# podman knows of neither, and both would wait for ever. `monitors` prints "PROCESS RUNTIME" for
# each monitor of container $1; `below` prints process $1 and all that it has started.
# shellcheck disable=SC2046 # each word is a process

monitors() {
    for wb_place in /proc/[0-9]*; do
        [ -O "$wb_place" ] && read -r wb_name <"$wb_place/comm" && [ "$wb_name" = conmon ] || continue
        tr '\0' '\n' <"$wb_place/cmdline" | awk -v id="$1" -v process="${wb_place#/proc/}" '
            before == "-c" && $0 == id { own = 1 }
            before == "-r" { runtime = $0 }
            { before = $0 }
            END { if (own) print process, runtime }'
    done
} 2>/dev/null

below() {
    echo "$1"
    for wb_child in $(cat "/proc/$1/task/"*/children); do below "$wb_child"; done
} 2>/dev/null

end_monitor() {
    noted "$1"
    wb_turn=0
    while [ -n "$wb_noted" ] && [ "$wb_turn" -lt 20 ]; do
        wb_monitors=$(monitors "$wb_noted")
        [ -n "$wb_monitors" ] || return 0
        printf '%s\n' "$wb_monitors" | while read -r wb_process wb_runtime; do
            "$wb_runtime" delete --force "$wb_noted" # its process and its cgroup; the monitor ends after it
            [ "$wb_turn" -lt 5 ] || kill -s KILL $(below "$wb_process")
        done >/dev/null 2>&1
        wb_turn=$((wb_turn + 1))
        sleep 0.2 2>/dev/null || sleep 1
    done
}
