# $1 run id, $2 container or "", $3 program, $4 run directory. Prints "own" if the container of the
# run is there, "foreign ID" if another one has its name, for a container $2 that others started
# "other STATUS EXITCODE", or nothing.

"$3" ps --quiet >/dev/null || exit 1
if [ -n "$2" ]; then
    noted "$4"
    form='{{.State.Status}} {{.State.ExitCode}}'
    found=$("$3" container inspect --format "$form" "${wb_noted:-$2}" 2>/dev/null) && echo "other $found"
    exit 0
fi
own=$(own_container "$3" "$1" "$4") || exit 1
if [ -n "$own" ]; then
    echo own
else
    end_monitor "$4"
    found=$(foreign_container "$3" "$1" "$4")
    [ -z "$found" ] || echo "foreign $found"
fi
exit 0
