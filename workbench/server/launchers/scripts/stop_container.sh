# $1 run id, $2 program, $3 seconds from TERM to KILL, $4 run directory. Stops the container of the
# run, and waits until its keeper has taken the log and the exit code. Without a keeper, takes the
# log, and removes the container.

own() { own_container "$program" "$run" "$dir"; }
kept() { [ ! -e "$dir/exit" ] && read -r pid <"$dir/pid" && kill -0 "$pid"; } 2>/dev/null
run=$1 program=$2 grace=$3 dir=$4
found=$(own) || exit 1
if [ -n "$found" ]; then
    answer=$("$program" stop -t "$grace" "$found" 2>&1) || {
        left=$("$program" ps --quiet --filter "id=$found") || exit 1
        [ -z "$left" ] || { printf '%s\n' "$answer" >&2; exit 1; }
    }
    tries=0
    while kept && [ "$tries" -lt 40 ]; do
        sleep 0.25 2>/dev/null || sleep 1
        tries=$((tries + 1))
    done
    found=$(own)
fi
kept && exit 0
if [ -n "$found" ]; then
    echo "workbench: the whole log of the container, because its keeper was lost:" >>"$dir/log"
    "$program" logs "$found" >>"$dir/log" 2>&1
    "$program" rm --force --volumes "$found" >/dev/null || exit 1
else
    found=$(foreign_container "$program" "$run" "$dir")
    [ -z "$found" ] ||
        echo "workbench: the container workbench-$run is another one now ($found): it is left as it is" >>"$dir/log"
fi
end_monitor "$dir"
rm -rf "$wb_tmp"
