"""Shell code for jobs: the script that a scheduler runs on a node, and the keeper that follows the
job from the login host.

All of it is constant POSIX sh, for dash, bash and busybox. Inputs are arguments; the command line
and the environment of the server are in the file `server` of the run directory. The module of each
scheduler defines these shell functions:

submit WORDS    submit job.sh with the options WORDS and set `job` to its id, or print an error to stderr and return 1
find            set `job` to the id of the newest job called $name; leave it empty if there is none; set `why` if the
                scheduler does not answer
look            set `phase` (queued, running, ended, gone, unknown), `state`, `host` (the node), `left` (seconds) or
                `limit` (seconds from the start), `code` (exit code that the scheduler reports), and
                `why` if `phase` is unknown
place           for a job that another keeper or user has submitted: set `log` and `out` to the paths of the server's
                and of the scheduler's output, and `of` to their directory
cancel          ask the scheduler to end `job`
enter WORDS     run the command WORDS inside the job, on its first node; not defined for a scheduler that cannot

Files in the run directory, which the node and the login host must both see:
server          exports, working directory and command line of the server, with its secrets; removed when the job ends
environment     PATH of the login host and variables of Workbench, which the scheduler does not pass to the job
job.log         output of the server       job.out   output of the scheduler for the job
job.began       written on the node: lines "node NAME", "pid N", "gpus …", "restarts N", "began UNIX_S"
job.exit        exit code of the server
"""

from __future__ import annotations

# The job. $1: run directory; PBS passes no arguments, but the directory of qsub. The body is a
# function, because PBS gives the script to a shell on stdin. TERM goes to all processes of a job:
# the shell waits for the server's end.
JOB_SCRIPT = r"""#!/bin/sh
main() {
    dir=${1:-${PBS_O_WORKDIR-}}
    if ! [ -r "$dir/server" ] || ! cd -- "$dir"; then
        echo "workbench: the node $(uname -n) does not see the run directory $dir" >&2
        exit 66
    fi
    [ -e stop.json ] && exit 0  # submitted while it was stopped, or after its run had been given up
    grep -qs '^ended ' launched && exit 0
    trap : TERM INT HUP
    rm -f job.exit
    . ./environment
    if [ -z "${CUDA_VISIBLE_DEVICES-}" ] && [ -r "${PBS_GPUFILE-}" ]; then
        CUDA_VISIBLE_DEVICES=$(sed 's/.*-gpu//' "$PBS_GPUFILE" | paste -s -d , -)
        export CUDA_VISIBLE_DEVICES
    fi
    gpus=
    if [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
        limit=
        command -v timeout >/dev/null 2>&1 && limit='timeout 10'
        gpus=$($limit nvidia-smi -i "$CUDA_VISIBLE_DEVICES" --query-gpu=uuid --format=csv,noheader 2>/dev/null) ||
            gpus=${SLURM_JOB_GPUS:-$CUDA_VISIBLE_DEVICES}
    fi
    {
        echo "node $(uname -n)"
        echo "gpus" $gpus
        echo "restarts ${SLURM_RESTART_COUNT:-0}"
        echo "began $(date +%s)"
    } >job.began.new
    (
        . ./server
        exec sh -c 'dir=$1; shift; echo "pid $$" >>"$dir/job.began.new"; mv -f "$dir/job.began.new" "$dir/job.began"
            exec "$@"' sh "$dir" "$@"
    ) </dev/null >>job.log 2>&1
    code=$?
    echo "$code" >job.exit.new && mv -f job.exit.new job.exit
    exit "$code"
}
main "$@"
"""

# The parts of the keeper that all schedulers share. `say` replaces the file `launched` if its text
# has changed.
_SHARED_FUNCTIONS = r"""
job= phase= state= host= left= limit= code= why= shown=
node= gpus= restarts= pid= began_unix_s= ends_unix_s= exit_code= ended=
say() {
    text="state $state"
    [ -z "$job" ] || text="handle $job
$text"
    for key in node gpus restarts pid began_unix_s ends_unix_s exit_code ended; do
        eval "value=\$$key"
        [ -z "$value" ] || text="$text
$key $value"
    done
    [ "$text" = "$shown" ] && return
    shown=$text
    (umask 077; printf '%s\n' "$text" >launched.new) && mv -f launched.new launched
}

# Prints $1 if it is a whole number of at most 11 digits, as times are: dash ends at longer ones in $(( )).
whole() {
    case $1 in '' | *[!0-9]* | ????????????*) ;; *) printf '%s\n' "$1" ;; esac
}

# Prints a duration such as 1-02:03:04 or 02:03 in seconds; nothing if $1 is none.
seconds() {
    printf '%s\n' "$1" | awk '/^([0-9]+-)?[0-9]+(:[0-9]+)*$/ {
        days = 0
        if (split($0, part, "-") == 2) { days = part[1]; $0 = part[2] }
        n = split($0, word, ":")
        sum = 0
        for (i = 1; i <= n; i++) sum = sum * 60 + word[i]
        if (n == 2 && days) sum *= 60
        sum += days * 86400
        if (sum < 10000000000) printf "%.0f\n", sum
    }'
}

# Prints a line that exports the variable $1 with its value, quoted for a shell.
exported() {
    eval "value=\$$1"
    printf "export %s='" "$1"
    printf '%s\n' "$value" | sed "s/'/'\\\\''/g; \$s/\$/'/"
}

# Reads what the job has written about its node, and computes when its time is over. Both `left` and the clock are in
# whole seconds, so an end that has moved by a few seconds is the same. The node may be this host.
learn() {
    if [ -r "$of/job.began" ]; then
        while read -r key value; do
            case $key in
                node | gpus) eval "its_$key=\$value" ;;
                pid | restarts | began) eval "its_$key=\$(whole \"\$value\")" ;;
            esac
        done <"$of/job.began"
    fi
    node= gpus= pid=
    [ "$phase" = running ] || { began_unix_s= ends_unix_s=; return; }
    gpus=${its_gpus-}
    [ "${its_restarts:-0}" = 0 ] || restarts=$its_restarts
    if [ "${its_node:-$host}" = "$(uname -n)" ]; then pid=${its_pid-}; else node=${host:-${its_node-}}; fi
    began_unix_s=${its_began:-${began_unix_s:-$(date +%s)}}
    over=
    if [ -n "$left" ]; then over=$(($(date +%s) + left))
    elif [ -n "$limit" ]; then over=$((began_unix_s + limit))
    fi
    if [ -z "$over" ] || [ -z "$ends_unix_s" ] ||
        [ "$((over - ends_unix_s))" -gt 5 ] || [ "$((ends_unix_s - over))" -gt 5 ]; then
        ends_unix_s=$over
    fi
}

# $1: the file for the output of the job, as the scheduler names it. A job of Workbench has its log beside it.
placed() {
    of=${1%/*} out=$1 log=${1%/*}/job.log
    [ "${1##*/}" = job.out ] || { of=$dir out= log=$1; }
}

# Copies what is new in the file $1, of which `at` bytes have been copied. The file is opened each time, because only
# that makes a client of NFS ask for its size.
copy() {
    [ -r "$1" ] || return 1
    size=$(wc -c <"$1") || return 1
    [ "$size" -ge "$at" ] || at=0
    [ "$size" -gt "$at" ] || return 1
    tail -c "+$((at + 1))" <"$1" | head -c "$((size - at))"
    at=$size
}
"""

# $1 run directory, $2 job name, $3 "submit", then the options of the job; or $2 job id, $3
# "follow". A job that is put back into the queue may look ended for a moment, and what a node
# writes may appear seconds later. A job that waits is looked at every 5 s; the end of a server that
# runs is seen at once, because its exit code appears.
_KEEP_SCRIPT = r"""
unset WORKBENCH_RUN
dir=$1 name=$2 how=$3 at=0 tries=0 silent=0 wait=0
shift 3
cd -- "$dir" || exit 1
of=$dir log=$dir/job.log out=$dir/job.out
if [ "$how" = submit ]; then
    (
        umask 077
        exported PATH
        for key in $(env | sed -n 's/^\(WORKBENCH_[A-Z_]*\)=.*/\1/p'); do exported "$key"; done
    ) >environment
    state=submitting
    say
    if ! submit "$@" 2>job.refused; then
        cat job.refused >&2
        find
        if [ -z "$job" ]; then
            ended="not submitted: $(sed -n '$p' job.refused)"
            say
            rm -f server environment
            exit 1
        fi
    fi
else
    job=$name
    [ -e job.sh ] || { place; trap 'rm -f server; exit 143' TERM; }
fi
state=submitted
say
while :; do
    copy "$log"
    [ "$phase" = running ] && [ -e "$of/job.exit" ] && [ "$wait" -gt 1 ] && wait=1
    if [ "$wait" -le 0 ]; then
        ls "$of" >/dev/null  # a client of NFS then sees new files
        phase=unknown host= left= limit= code= why=
        look
        wait=1
        case $phase in
            queued) wait=5 ;;
            running) [ -e "$of/job.began" ] && wait=10 ;;
            unknown) silent=$((silent + 1)) wait=$((silent < 6 ? silent * 5 : 30)) state="unknown: $why" ;;
            *) tries=$((tries + 1)) ;;
        esac
        case $phase in queued | running) tries=0 silent=0 && learn ;; esac
        say
    fi
    [ "$tries" -ge 8 ] && break
    [ "$tries" -ge 2 ] && { [ -n "$code" ] || [ -e "$of/job.exit" ]; } && break
    sleep 1
    wait=$((wait - 1))
done
copy "$log"
at=0
[ -z "$out" ] || copy "$out"
if [ -e job.sh ] && ! [ -e job.began ] && [ "${state%% *}" = FAILED ]; then
    state="$state: it has written nothing into $dir; does its node see this directory?"
fi
if [ -r "$of/job.exit" ]; then read -r code <"$of/job.exit"; fi
exit_code=$code pid= began_unix_s= ends_unix_s=
[ "$phase" = ended ] || state="the scheduler no longer knows it${code:+ (exit code $code)}"
ended="job $job ended: $state"
say
echo "workbench: $ended"
rm -f server environment
exit "${code:-1}"
"""

# $1 job name, $2 job id or "", $3 run directory, $4 seconds. Cancels the job, waits for its end,
# and removes the words of its server. Prints why not.
_STOP_SCRIPT = r"""
name=$1 job=$2 dir=$3 seconds=$4
over() {
    rm -f "$dir/server" "$dir/environment"
    exit 0
}
[ -n "$job" ] || find
[ -n "$job$why" ] || over
[ -n "$job" ] || { echo "$why"; exit 1; }
refused=$(cancel 2>&1)
while [ "$seconds" -gt 0 ]; do
    phase=unknown state= why=
    look
    case $phase in ended | gone) over ;; esac
    sleep 1
    seconds=$((seconds - 1))
done
echo "job $job is still ${state:-in an unknown state}${refused:+: $refused}${why:+: $why}"
exit 1
"""

# $1 job name, $2 job id or "", $3 run directory. Prints "job ID", "phase PHASE", "state TEXT",
# "code N" and "why TEXT".
_ASK_SCRIPT = r"""
name=$1 job=$2 dir=$3
[ -n "$job" ] || find
if [ -n "$job" ]; then
    phase=unknown
    look
elif [ -z "$why" ]; then phase=gone
else phase=unknown
fi
if [ -r "$dir/job.exit" ]; then read -r code <"$dir/job.exit"; fi
for key in job phase state code why; do
    eval "echo \"$key \$$key\""
done
"""


# $1 job id, $2 a pattern of command lines for grep -E, $3 process_command.LOOK, $4 FIND_INSIDE_JOB_SCRIPT. Prints
# "phase PHASE", "state TEXT", "host NODE" and "why TEXT"; of a job that runs, also what FIND_INSIDE_JOB_SCRIPT
# prints, or "refused WHY".
_FIND_SCRIPT = r"""
job=$1 pattern=$2 read=$3 inside=$4
phase=unknown
look
for key in phase state host why; do
    eval "echo \"$key \$$key\""
done
[ "$phase" = running ] || exit 0
answer=$(enter sh -c "$inside" sh "$pattern" "$read" 2>&1) ||
    printf 'refused %s\n' "$(printf '%s\n' "$answer" | sed -n '$p')"
printf '%s\n' "$answer"
"""

# Runs in the job. $1 the pattern, $2 LOOK. Prints "proc PID PARENT" and the command of each process
# of this job whose command line has the pattern.
FIND_INSIDE_JOB_SCRIPT = r"""
for file in $(grep -alE "$1" /proc/[0-9]*/cmdline 2>/dev/null | head -n 64); do
    dir=${file%/cmdline} pid=${file%/cmdline} pid=${pid#/proc/}
    [ "$pid" != $$ ] || continue
    tr '\0' '\n' <"$dir/environ" 2>/dev/null | grep -qxF "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
    echo "proc $pid $(sed -n 's/^PPid:[[:space:]]*//p' "$dir/status" 2>/dev/null)"
    sh -c "$2" sh "$pid"
done
exit 0
"""


def find_script(scheduler: str) -> str:
    """Return the shell script that prints the commands of the processes of a job. `scheduler` is
    the shell code that defines the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_FIND_SCRIPT}"


def keeper_script(scheduler: str) -> str:
    """Return the shell script of the keeper, the process that submits a job and follows it.
    `scheduler` is the shell code that defines the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_KEEP_SCRIPT}"


def cancel_script(scheduler: str) -> str:
    """Return the shell script that cancels a job and waits for its end. `scheduler` is the shell
    code that defines the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_STOP_SCRIPT}"


def state_script(scheduler: str) -> str:
    """Return the shell script that prints the state of a job. `scheduler` is the shell code that
    defines the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_ASK_SCRIPT}"
