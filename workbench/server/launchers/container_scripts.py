"""The POSIX shell code of the keeper, which starts a server in a container of docker or podman and
follows it. The code works with dash, bash and busybox.

Inputs are arguments or environment variables. The code's own variables begin with wb_, to differ
from the environment variables of the server.
"""

from __future__ import annotations

from workbench.server.launchers.container_images import (
    FIND_IMAGE_SCRIPT,
    NO_IMAGE_PATTERN,
    PULL_DIRECTORY_SCRIPT,
    PULL_SCRIPT,
)

# `own_container`: prints the id of the container of run $2; $1 program, $3 run directory. The file
# `container` there has the id, because others can make a container with the same name and label: a
# clone, or one that replaces it. Without the file, only a container that has never run counts:
# docker and podman write it before they start one. `foreign_container`: prints the id of another
# container that has the name of the run's.
_OWN_CONTAINER_SCRIPT = r"""
noted() {
    wb_noted=
    read -r wb_noted <"$1/container" || :
} 2>/dev/null

own_container() {
    noted "$3"
    if [ -n "$wb_noted" ]; then
        set -- "$1" --filter "id=$wb_noted"
    else
        set -- "$1" --filter "label=workbench.run=$2" --filter "name=^workbench-$2\$" --filter status=created
    fi
    wb_ps=$1
    shift
    "$wb_ps" ps --all --no-trunc --quiet "$@"
}

foreign_container() {
    noted "$3"
    wb_named=$("$1" ps --all --no-trunc --quiet --filter "name=^workbench-$2\$")
    [ -z "$wb_named" ] || [ "$wb_named" = "$wb_noted" ] || printf '%s\n' "$wb_named"
}
"""

# `end_monitor`: ends the monitor (conmon) of the run in directory $1, whose container podman has
# removed, and what the monitor holds. If `podman run` is killed between creating and starting,
# podman knows of neither, and both would wait for ever. `monitors` prints "PROCESS RUNTIME" for
# each monitor of container $1; `below` prints process $1 and all that it has started.
_END_MONITOR_SCRIPT = r"""
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
"""

# Copies the log of a container into the run's log, which is stdout. A program that was killed, or a
# daemon that was restarted, may have cut a line and left a message: `resume` finds out how much of
# the copy is the container's, by leaving out last lines until the bytes agree. The next copy begins
# there. wb_from counts bytes of the container's log, wb_base bytes of the run's.
_COPY_LOG_SCRIPT = r"""
size() { wc -c <"$wb_log" || echo 0; }

# Takes $1 bytes from stdin, and not one more (busybox's head does).
skip() {
    [ "$1" -lt 4096 ] || dd bs=4096 count=$(($1 / 4096)) iflag=fullblock
    [ $(($1 % 4096)) -eq 0 ] || dd bs=1 count=$(($1 % 4096))
} >/dev/null

container_log() { "$wb_program" logs "$wb_container" 2>&1; }

copied() { tail -c "+$((wb_base + 1))" <"$wb_log" | head -c "$1"; }

same() { [ "$(copied "$1" | sha256sum)" = "$(container_log | { skip "$wb_from"; head -c "$1"; } | sha256sum)" ]; }

resume() {
    wb_all=$(($(size) - wb_base)) wb_lines=0
    wb_have=$wb_all
    until [ "$wb_have" -le 0 ] || same "$wb_have"; do
        wb_lines=$((wb_lines + 1))
        [ "$wb_lines" -lt 10 ] || { wb_have=0 && break; }
        wb_have=$((wb_have - $(copied "$wb_have" | tail -n 1 | wc -c)))
    done
    wb_from=$((wb_from + wb_have)) wb_base=$((wb_base + wb_all))
}

copy() {
    resume
    container_log | { skip "$wb_from"; cat; }
}

# Copies until the container ends, or until it is seen to be lost: the program may never notice that.
follow() {
    resume
    rm -f "$wb_dir/following"
    {
        "$wb_program" logs --follow "$wb_container" 2>&1 &
        echo $! >"$wb_dir/following"
        wait $!
    } | { skip "$wb_from"; exec cat; } &
    wb_copier=$! wb_turns=0 wb_missed=0
    while kill -0 "$wb_copier"; do
        { [ "$wb_turns" -lt 10 ] && sleep 0.2; } || sleep 1
        wb_turns=$((wb_turns + 1))
        if lost; then wb_missed=$((wb_missed + 1)); else wb_missed=0; fi
        [ "$wb_missed" -lt 2 ] || { read -r wb_logs <"$wb_dir/following" && kill -s KILL "$wb_logs"; }
    done
    rm -f "$wb_dir/following"
}
"""

# $1 run id, $2 container, $3 program, $4 mode (start; keep: a container of this run, whose keeper
# was lost; follow: one that others started), $5 run directory, $6 GPUs. For a start also: image as
# named, image to pull, when to pull, its platform or "", hub cache in the container or "", number
# of paths, paths that the server reads, number of words, words of `run`, words of the server.
KEEPER_SCRIPT = (
    PULL_DIRECTORY_SCRIPT
    + _OWN_CONTAINER_SCRIPT
    + _END_MONITOR_SCRIPT
    + _COPY_LOG_SCRIPT
    + r"""
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
"""
    + PULL_SCRIPT
    + FIND_IMAGE_SCRIPT
    + r"""
if [ "$wb_mode" = start ]; then
    wb_named=$1 wb_source=$2 wb_pull=$3 wb_platform=$4 wb_hub=$5 wb_left=$6
    shift 6
    pin
    wb_rest=$(($# - wb_left - 1))
    while [ "$wb_left" -gt 0 ]; do # the words are turned in a circle: each goes to the end
        if [ -e "$1" ]; then
            case $1 in
                *:*) set -- "$@" --mount "type=bind,source=$1,target=$1,readonly" ;;
                *) set -- "$@" --volume "$1:$1:ro" ;;
            esac
        fi
        shift
        wb_left=$((wb_left - 1))
    done
    wb_left=$1
    shift
    wb_rest=$((wb_rest - wb_left))
    while [ "$wb_left" -gt 0 ]; do
        set -- "$@" "$1"
        shift
        wb_left=$((wb_left - 1))
    done
    if [ -n "$wb_hub" ]; then
        wb_cache=${HF_HOME:-$HOME/.cache/huggingface}
        mkdir -p "$wb_cache"
        set -- "$@" --volume "$wb_cache:$wb_hub"
    fi
    set -- "$@" "$wb_id"
    while [ "$wb_rest" -gt 0 ]; do
        set -- "$@" "$1"
        shift
        wb_rest=$((wb_rest - 1))
    done
    wb_state='starting the container'
    report
    "$wb_program" run --cidfile "$wb_dir/container" "$@" >/dev/null 2>"$wb_dir/answer"
    wb_code=$?
    cat "$wb_dir/answer"
    if [ "$wb_code" -ne 0 ]; then
        identify && discard
        sweep
        wb_why=$(grep -i -m 1 error "$wb_dir/answer") || wb_why="exit code $wb_code"
        fail "$wb_program run: $wb_why" "$wb_code"
    fi
elif [ -r "$wb_dir/launched" ]; then
    while read -r wb_key wb_value; do
        case $wb_key in
            image) wb_image=$wb_value ;;
            pid) wb_pid=$wb_value ;;
            start) wb_start=$wb_value ;;
            began_unix_s) wb_began_unix_s=$wb_value ;;
        esac
    done <"$wb_dir/launched"
    [ -n "$wb_start" ] || wb_pid=
fi
rm -rf "$wb_tmp"
keep
"""
)

# $1 run id, $2 container or "", $3 program, $4 run directory. Prints "own" if the container of the
# run is there, "foreign ID" if another one has its name, for a container $2 that others started
# "other STATUS EXITCODE", or nothing.
ASK_SCRIPT = (
    _OWN_CONTAINER_SCRIPT
    + _END_MONITOR_SCRIPT
    + r"""
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
"""
)

# $1 run id, $2 program, $3 seconds from TERM to KILL, $4 run directory. Stops the container of the
# run, and waits until its keeper has taken the log and the exit code. Without a keeper, takes the
# log, and removes the container.
STOP_SCRIPT = (
    PULL_DIRECTORY_SCRIPT
    + _OWN_CONTAINER_SCRIPT
    + _END_MONITOR_SCRIPT
    + r"""
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
"""
)

# $1 program, $2 image, $3 image to pull, $4 when to pull, $5 platform or "". Pulls a missing image.
FETCH_IMAGE_SCRIPT = r"""
[ "$4" != never ] || exit 0
if [ "$4" != always ]; then
    for name in "$2" "$3"; do
        ! "$1" image inspect "$name" >/dev/null 2>&1 || exit 0
    done
fi
"$1" pull ${5:+--platform "$5"} "$3" >/dev/null
"""

# $1 program, $2 image, $3 image to pull, $4 GPUs (cdi, gpus, none), $5 path of the model or "".
# Prints lines of a key and a value.
CHECK_SCRIPT = (
    f"no_image='{NO_IMAGE_PATTERN}'\n"
    + r"""
command -v "$1" >/dev/null 2>&1 || { echo missing; exit 0; }
[ -z "$5" ] || [ -e "$5" ] || echo 'no-model'
if ! problem=$("$1" ps --quiet 2>&1 >/dev/null); then
    printf '%s\n' "$problem" | sed 's/^/problem /'
    exit 0
fi
echo "uid $(id -u)"
form='{{.Os}}/{{.Architecture}}{{range .RepoDigests}} {{.}}{{end}}'
inspect() { "$1" image inspect --format "$form" "$2"; }
unsure=
for name in "$2" "$3"; do
    image=$(inspect "$1" "$name" 2>/dev/null) && break
    answer=$(inspect "$1" "$name" 2>&1 >/dev/null) && image=$(inspect "$1" "$name" 2>/dev/null) && break
    code=$?
    printf '%s\n' "$answer" | grep -qiE "$no_image" && continue
    unsure="exit code $code${answer:+: $(printf '%s\n' "$answer" | tail -n 1)}"
    [ "$code" -le 128 ] || unsure="it was ended by signal $((code - 128))"
done
if [ -n "$image" ]; then echo "image $image"; elif [ -n "$unsure" ]; then echo "unsure $unsure"; fi
[ "$4" = none ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || [ -e /dev/nvmap ] || echo 'no-gpu'
[ "$4" != cdi ] || ls /etc/cdi /var/run/cdi 2>/dev/null | grep -q '\(yaml\|json\)$' || echo 'no-cdi'
if command -v loginctl >/dev/null 2>&1; then
    echo "linger $(loginctl show-user --property=Linger --value "$(id -un)" 2>/dev/null)"
fi
exit 0
"""
)
