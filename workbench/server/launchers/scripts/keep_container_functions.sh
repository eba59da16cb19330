# The beginning of the keeper of a container: its arguments, its state and its functions. The comment
# above KEEPER_SCRIPT in container_scripts.py names the arguments.

umask 077
exec 2>/dev/null # the shell's own words, such as "Killed", do not go into the log
unset WORKBENCH_RUN # the container is no process of the run: it outlives its keeper
wb_run=$1 wb_handle=$2 wb_program=$3 wb_mode=$4 wb_dir=$5 wb_gpus=$6
shift 6
wb_log=$wb_dir/log
wb_state= wb_pid= wb_start= wb_restarts= wb_image= wb_began_unix_s= wb_ended= wb_exit_code=
wb_container= wb_monitor= wb_monitored=
case $(uname -m) in x86_64) wb_machine=amd64 ;; aarch64) wb_machine=arm64 ;; *) wb_machine= ;; esac
printf '%4096s' '' >"$wb_dir/spare" # room for the last report, even if the log has filled the disk

say() { printf 'workbench: %s\n' "$1"; }

report() {
    wb_text=
    for wb_key in handle state pid start restarts image gpus began_unix_s ended exit_code; do
        eval "wb_value=\$wb_$wb_key"
        [ -z "$wb_value" ] || wb_text="$wb_text$wb_key $wb_value
"
    done
    if printf %s "$wb_text" >"$wb_dir/launched.new" && mv -f "$wb_dir/launched.new" "$wb_dir/launched"; then
        [ -z "$wb_ended" ] || rm -f "$wb_dir/spare" "$wb_dir/answer"
    elif [ -n "$wb_ended" ]; then
        rm -f "$wb_dir/launched.new" "$wb_dir/answer"
        printf '%s' "$wb_text" 1<>"$wb_dir/spare" && mv -f "$wb_dir/spare" "$wb_dir/launched"
    fi
}

fail() {
    say "$1"
    wb_state=failed wb_ended=$1 wb_exit_code=${2:-}
    report
    exit "${2:-125}"
}

# Prints when process $1 was started, in clock ticks since boot; nothing if it has ended.
ticks() {
    read -r wb_stat <"/proc/$1/stat" || return
    set -f
    set -- ${wb_stat##*) }
    set +f
    case $1 in [ZX]) ;; *) echo "${20}" ;; esac
}

# Whether the program reaches the process of the container, with a signal that does nothing.
lives() { "$wb_program" kill --signal URG "$wb_container" >/dev/null; }

# Whether the process of the container has ended. wb_start is when it was started in ticks, or "hidden" if it cannot be
# seen from here: docker may be on another machine.
gone() { [ "$wb_start" != hidden ] && [ "$(ticks "$wb_pid")" != "$wb_start" ]; }

# Whether the monitor of the container was killed (conmon of podman: wb_monitor, started at wb_monitored), and with it
# the output of a server that no Workbench has seen ready. Servers that are ready go on without.
mute() {
    [ "$wb_mode" != follow ] && [ -n "$wb_monitored" ] && [ ! -e "$wb_dir/ready.json" ] &&
        [ "$(ticks "$wb_monitor")" != "$wb_monitored" ]
}

lost() { gone || mute; }

# Notes process $1 of the container.
notice() {
    wb_pid=$1 wb_start=$(ticks "$1") wb_began_unix_s=$(date +%s)
    if [ -n "$wb_start" ]; then
        wb_began_unix_s=$(($(sed -n 's/^btime //p' /proc/stat) + wb_start / $(getconf CLK_TCK || echo 100)))
    elif lives; then
        wb_start=hidden
    else
        wb_start=ended
    fi
}

# Asks for $1 of container $2. Returns 1 if there is none, 2 if the program does not answer.
inspect() {
    wb_found=$("$wb_program" container inspect --format "$1" "$2" 2>"$wb_dir/answer") && return
    grep -qi 'no such container' "$wb_dir/answer" && return 1
    return 2
}

# Finds the id of the container. Returns as `inspect`.
identify() {
    noted "$wb_dir"
    if [ -n "$wb_noted" ]; then
        wb_container=$wb_noted
    elif [ "$wb_mode" = follow ]; then
        inspect '{{.Id}}' "$wb_handle" || return
        wb_container=$wb_found
        printf '%s\n' "$wb_container" >"$wb_dir/container"
    else
        wb_container=$(own_container "$wb_program" "$wb_run" "$wb_dir") || return 2
        [ -n "$wb_container" ]
    fi
}

# Reads the state of the container. Returns as `inspect`.
look() {
    [ -n "$wb_container" ] || identify || return
    wb_form='{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Pid}} {{.RestartCount}}'
    [ "$wb_program" != podman ] || wb_form="$wb_form {{.State.ConmonPid}}"
    inspect "$wb_form" "$wb_container" || return
    set -- $wb_found
    wb_status=$1 wb_code=$2 wb_oom=$3 wb_restarts=$5
    if [ "$4" != "$wb_pid" ] && [ "$4" -gt 0 ]; then notice "$4"; fi
    if [ "${6:-0}" -gt 0 ] && [ "$6" != "$wb_monitor" ] && [ "$wb_start" != hidden ]; then
        wb_monitor=$6 wb_monitored=$(ticks "$6")
        wb_monitored=${wb_monitored:-ended}
    fi
}

discard() { [ "$wb_mode" = follow ] || "$wb_program" rm --force --volumes "$wb_container" >/dev/null; }

# Ends what is left of a container that was created and never started, once it is removed.
sweep() { [ "$wb_mode" = follow ] || end_monitor "$wb_dir"; }

finish() {
    wb_ended="the container exited with code $wb_code"
    if [ "$wb_oom" = true ]; then
        wb_ended='the kernel killed the server, because the memory of its container was used up (OOMKilled)'
        say "$wb_ended"
    fi
    discard
    wb_state=$wb_status wb_exit_code=$wb_code
    report
    exit "$wb_code"
}

removed() {
    wb_other=$(foreign_container "$wb_program" "$wb_run" "$wb_dir")
    [ -z "$wb_other" ] ||
        wb_other="; another container has its name now, which this run did not start: $(printf %.12s "$wb_other")"
    sweep
    fail "the container $wb_handle was removed from outside$wb_other"
}

# Ends the run of a container that is lost.
abandon() {
    wb_why='the monitor of the container was killed (conmon of podman)'
    if ! lives; then
        wb_why="the server has ended, and $wb_program does not know it, because $wb_why; the exit code is lost"
    elif mute; then
        wb_why="$wb_why, and with it the output of the server, which was starting still"
        "$wb_program" kill "$wb_container" >/dev/null # podman's `rm` would wait 10 s for an end that nobody tells
    else
        wb_start=hidden
        return
    fi
    copy
    discard
    fail "$wb_why"
}

keep() {
    wb_base=$(size) wb_from=0 wb_tries=0 wb_broken=0 wb_absent=0
    while :; do
        look
        case $? in
            1) removed ;;
            2)
                wb_state="$wb_program does not answer"
                report
                sleep 2
                continue
                ;;
        esac
        case $wb_status in
            created | configured | initialized)
                wb_tries=$((wb_tries + 1))
                if [ "$wb_tries" -gt 20 ]; then
                    discard
                    sweep
                    fail "the container $wb_handle was created, but not started"
                fi
                ;;
            exited | stopped | dead)
                copy
                finish
                ;;
            running | stopping)
                wb_state=$wb_status
                report
                if lost; then
                    wb_absent=$((wb_absent + 1))
                    [ "$wb_absent" -lt 3 ] || abandon
                    sleep 1
                    continue
                fi
                wb_absent=0
                follow # the program may be restarted, or be unable to read the log
                if [ "$wb_turns" -gt 60 ]; then wb_broken=0; else wb_broken=$((wb_broken + 1)); fi
                while [ "$wb_broken" -gt 4 ] && [ "$wb_turns" -lt 30 ] && ! lost; do
                    sleep 1
                    wb_turns=$((wb_turns + 1))
                done
                ;;
            *)
                wb_state=$wb_status
                report
                sleep 1
                ;;
        esac
        sleep 0.3 || sleep 1
    done
}
