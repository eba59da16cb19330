# $1 "start", "install" or "follow", $2 run directory, $3 unit, $4 scope. To start: then the words
# of systemd-run after the unit. To install: $5 the directory for the environment, $6 "yes" or
# "boot"; the file `unit` is in the run directory. To follow: $5 "all" (the journal of the unit from
# its beginning) or "start" (from the present start of the unit).
#
# `systemctl show` is called when the main process has changed, and else every tenth second. A unit
# without a job that is neither active nor on its way there has ended.

umask 077
ctl() { $run systemctl "$mine" --no-pager "$@"; }
value() { printf '%s\n' "$seen" | sed -n "s/^$1=//p"; }
look() {
    seen=$(ctl show --property=LoadState,ActiveState,SubState,Job,MainPID,NRestarts,Result,ExecMainCode \
        --property=ExecMainStatus,ExecMainStartTimestamp,ExecMainStartTimestampMonotonic -- "$unit" 2>&1) || seen=
    active=$(value ActiveState) sub=$(value SubState) load=$(value LoadState) job=$(value Job)
    now_pid=$(value MainPID) now_pid=${now_pid:-0}
}
report() {
    new=$(
        echo "handle $unit"
        echo "state $active ($sub)"
        echo "restarts $restarts"
        [ "$now_pid" = 0 ] || { echo "pid $now_pid"; echo "began_unix_s $began"; }
        [ $# -eq 0 ] || printf '%s\n' "$@"
    )
    [ "$new" != "$last" ] || return 0
    last=$new
    printf '%s\n' "$new" >"$dir/launched.new" && mv -f "$dir/launched.new" "$dir/launched"
}
lines() { exec journalctl "$@" --quiet --no-pager --output=cat; }
finish() {
    report "exit_code $1" "ended $2"
    shift 2
    if [ "$unit" = "workbench-${dir##*/}.service" ]; then
        ctl stop -- "$unit" >/dev/null 2>&1
        ctl reset-failed -- "$unit" >/dev/null 2>&1
        rm -f "$dir/environment"
    fi
    # A signal to the group ends the follower of the journal too: the rest is copied here.
    journalctl --sync >/dev/null 2>&1
    kill "$follower" 2>/dev/null
    wait "$follower" 2>/dev/null
    lines "$@" | tail -n "+$(($(wc -l <"$dir/log") + 1))"
}
ended=
trap 'ended=1' TERM INT HUP
restarts=0 pid=0 began=0
if [ -f "$dir/launched" ]; then  # of a keeper before
    restarts=$(sed -n 's/^restarts \([0-9]\{1,9\}\)$/\1/p' "$dir/launched")
    pid=$(sed -n 's/^pid \([0-9]\{1,9\}\)$/\1/p' "$dir/launched")
    restarts=${restarts:-0} pid=${pid:-0}
fi
refuse() {  # $1 what was tried, $2 what it said
    printf '%s: %s\n' "$1" "$2"
    rm -f "$dir/environment"
    { echo "handle $unit"; echo "ended $1: $(printf '%s\n' "$2" | tail -n 1)"; } >"$dir/launched"
    exit 1
}
if [ "$what" = install ]; then
    place_of_unit
    if [ -e "$place/$unit" ] && ! grep -qxF "$written" "$place/$unit"; then
        refuse "$place/$unit" "the file exists, and Workbench did not write it"
    fi
    if [ -e "$place/$unit" ] && [ "$other" != "${user-}" ]; then
        refuse "$place/$unit" "it is the unit of ${other:-root}; choose another name with --run-option unit=NAME"
    fi
    said=$(mkdir -p -- "$1" 2>&1 && export -p 2>&1 >"$1/environment") || refuse "$1" "$said"
    said=$(awk -v user="${user-}" '{ print } /^\[Service\]$/ && user { print "User=" user }' \
        "$dir/unit" 2>&1 >"$dir/unit.new") || refuse awk "$said"
    said=$($run mkdir -p -- "$place" 2>&1 && $run cp -- "$dir/unit.new" "$place/$unit" 2>&1 &&
        $run chmod 644 "$place/$unit" 2>&1 && ctl daemon-reload 2>&1) || refuse "$place/$unit" "$said"
    if [ "$2" = boot ]; then said=$(ctl enable -- "$unit" 2>&1) || refuse "systemctl enable" "$said"; fi
    { echo "handle $unit"; echo "state starting"; } >"$dir/launched"
    said=$(ctl start -- "$unit" 2>&1) || refuse "systemctl start" "$said"
    set -- start
elif [ "$what" = start ]; then
    export -p >"$dir/environment" || exit 1
    { echo "handle $unit"; echo "state starting"; } >"$dir/launched"
    [ -z "$run" ] || set -- --uid="$(id -u)" --gid="$(id -g)" "$@"
    said=$($run systemd-run "$mine" --quiet --unit="$unit" "$@" 2>&1) || refuse systemd-run "$said"
    set -- all
fi
of=--unit
[ "$mine" = --user ] && of=--user-unit
look
if [ "$1" = start ] && [ -n "$(value ExecMainStartTimestamp)" ]; then
    set -- "$of=$unit" --since="$(value ExecMainStartTimestamp)"
else
    set -- "$of=$unit"
fi
follow_again() {  # the follower was killed: its successor begins after the last line of the log
    (lines "$@" --show-cursor) >"$dir/journal"
    cursor=$(sed -n '$s/^-- cursor: //p' "$dir/journal")
    [ -z "$cursor" ] || sed '$d' "$dir/journal" | tail -n "+$(($(wc -l <"$dir/log") + 1))"
    rm -f "$dir/journal"
    lines "$1" --lines=all --follow ${cursor:+--after-cursor="$cursor"} &
    follower=$!
}
lines "$@" --lines=all --follow &
follower=$!
beat=0
while :; do
    kill -0 "$follower" 2>/dev/null || follow_again "$@"
    if [ "$now_pid" != 0 ]; then
        if [ "$now_pid" != "$pid" ] || [ "$began" = 0 ]; then
            [ "$pid" = 0 ] || [ "$now_pid" = "$pid" ] || restarts=$((restarts + 1))
            since=$(value ExecMainStartTimestampMonotonic)
            read -r up rest </proc/uptime
            began=$(($(date +%s) - ${up%%.*} + ${since:-0} / 1000000))
            pid=$now_pid
        fi
    fi
    auto=$(value NRestarts)
    [ "${auto:-0}" -gt "$restarts" ] && restarts=$auto
    case $active/$sub in
        */exited) over=1 ;;
        active/* | activating/* | deactivating/* | reloading/* | refreshing/*) over= ;;
        *) [ -z "$seen" ] || [ "${job:-0}" != 0 ] && over= || over=1 ;;
    esac
    if [ -n "$over" ] && [ -z "$again$ended" ]; then  # a restart may be between its stop and its start
        again=1
    elif [ -n "$over" ]; then
        break
    else
        again=
        report
    fi
    [ -z "$ended" ] || { exec 2>/dev/null; kill "$follower"; exit 143; }
    if [ -n "$again" ]; then sleep 0.2 2>/dev/null || sleep 1; look; continue; fi
    sleep 1 &
    wait $! 2>/dev/null
    beat=$((beat + 1))
    if [ -n "$ended" ] || [ "$active" != active ] || [ ! -d "/proc/$now_pid" ] || [ $((beat % 10)) = 0 ]; then look; fi
done
code=$(value ExecMainStatus)
case $(value ExecMainCode) in 2 | 3) code=$((128 + ${code:-0})) ;; esac
result=$(value Result)
if [ "$load" = not-found ]; then
    why="$unit was stopped from outside" code=143
elif [ "$active" = inactive ]; then
    why="$unit was stopped from outside"
elif [ "$result" = success ]; then
    why="the server ended with exit code ${code:-0}"
else
    why="$unit failed: $result"
fi
exec 2>/dev/null  # the shell would say that the follower was terminated
finish "${code:-0}" "$why" "$@"
exit "${code:-0}"
