"""All POSIX shell code that runs on hosts. It works with dash, bash and busybox, and needs no
python3 on the host.

Each script is a constant. Variable parts are passed as positional parameters or on stdin, never
inserted into the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import LINE_CHARS, VARIABLE_NAME, clean_text

SUDO = ("sudo", "-n")  # before a command that needs root; fails where sudo would ask for a password


def quote(text: str) -> str:
    """Return `text` as one quoted word for a POSIX shell. The word is on one line, with the shell
    variable $_wb_nl for each newline.
    """
    return "'" + text.replace("'", "'\\''").replace("\n", "'\"$_wb_nl\"'") + "'"


def key_value_pairs(output: str, limit: int = LINE_CHARS) -> list[tuple[str, str]]:
    """Return (key, value) of each line key=value in the output of a script, as clean text of at most
    `limit` characters a line. Other lines are left out."""
    found = (clean_text(line, limit).partition("=") for line in output.split("\n"))
    return [(key, value) for key, equals, value in found if equals]


def shell_argv(script: str, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs `script` with `arguments` as $1, $2, …"""
    return ("sh", "-c", script, "sh", *arguments)


# The text that sshd passes to the user's login shell for every command. POSIX shells, fish and csh
# must parse it alike: no newline, no backslash, no "!". The command itself is the first line of
# stdin (`shell_order_line`), which only sh reads.
LINE = """exec sh -c 'IFS= read -r _wb && eval "$_wb"'"""


# Runs "$@" and ends it when stdin ends. Closing an SSH channel, or the end of the reader, does not
# end a process that never writes. All processes are in one process group of their own: sshd and
# LocalHost both start a new session. When stdin ends, the group gets TERM, and KILL 2 s later. When
# the command ends first, the group gets TERM (this ends `cat`) and the command's exit code is
# passed on. The shell's own "Terminated" is kept out of stderr. (TERM is repeated until the shell
# has ended: a process that has just been forked still has its parent's trap.)
GUARD = r"""
trap : TERM HUP INT
exec 9>&2 2>/dev/null
{
    cat
    trap '' TERM
    exec >&-
    kill -s TERM 0
    sleep 2
    kill -s KILL 0
} 9>&- | {
    trap 'ended=1' TERM
    (exec "$@" 2>&9 9>&-)
    code=$?
    [ -n "$ended" ] && kill -s KILL 0
    trap '' TERM
    kill -s TERM 0
    (while { sleep 0.1 || sleep 1; } && kill -s 0 $$; do kill -s TERM 0; done) >/dev/null 9>&- &
    exit "$code"
}
"""

# SshHost wraps every command in this. $1: GUARD or "". MARK goes to both outputs, to separate the
# output of a .bashrc from that of the command. On stderr, the process id follows MARK, or "missing"
# if there is no such command.
MARK = "workbench-4f1c7a2e"
PRELUDE = rf"""
unset _wb _wb_nl
_wb_guard=$1
shift
case $1 in
    */*) if [ ! -f "$1" ] || [ ! -x "$1" ]; then echo "{MARK} missing" >&2; exit 127; fi ;;
    *) command -v "$1" >/dev/null 2>&1 || {{ echo "{MARK} missing" >&2; exit 127; }} ;;
esac
echo "{MARK}"
echo "{MARK} $$" >&2
[ -z "$_wb_guard" ] || exec sh -c "$_wb_guard" sh "$@"
exec "$@"
"""


def shell_order_line(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    guard: bool = False,
    prelude: str = PRELUDE,
) -> bytes:
    """Return a line of shell code, as bytes, which the script LINE reads from stdin, so that no
    value is visible in the process list. The line exports `env` and starts `argv` by the script
    `prelude`, and with `guard` the command ends when its stdin ends. Raises ValueError for an
    invalid variable name or a NUL."""
    for name, value in (env or {}).items():
        if not VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
    newline = "_wb_nl=$(printf '\\012.'); _wb_nl=${_wb_nl%.}"
    exports = "".join(f"; export {name}={quote(value)}" for name, value in (env or {}).items())
    words = " ".join(quote(word) for word in (GUARD if guard else "", *argv))
    text = f"{newline}{exports}; set -- {words}; eval {quote(prelude)}\n"
    return text.encode("utf-8", "surrogateescape")


def stderr_after_mark(errors: str, mark: str = MARK) -> str:
    """Return the part of stderr, given as `errors`, that the command itself wrote. It begins after
    the line `mark`, before which the login shell wrote."""
    before, mark, rest = errors.partition(mark)
    return rest.partition("\n")[2] if mark else before


def pid_in_stderr(errors: str) -> int | None:
    """Return the process id that the script PRELUDE printed on stderr after MARK. None if it
    printed none."""
    word = errors.partition(MARK)[2].split("\n")[0].strip()
    return parse_whole_number(word)


# In place of MARK in a container: the host around it may be behind ssh, and mark its own output.
INSIDE = "workbench-9e0d3b61"

# What a container runs for each command, with $0 "workbench-TOKEN", by which END finds the command.
# $1: the line that reads the order from stdin. The command gets a process group of its own: the
# programs of LXC leave it in that of their caller on the host, and GUARD ends its whole group.
ENTER = rf"""
_wb_line=$1
read -r _wb </proc/self/stat
set -f
set -- ${{_wb##*) }}
set +f
if [ "$3" = $$ ]; then eval "$_wb_line"; exit; fi
command -v setsid >/dev/null 2>&1 || {{ echo "{INSIDE} setsid" >&2; exit 127; }}
exec setsid sh -c "$_wb_line" "$0"
"""
READ_ORDER = 'IFS= read -r _wb && eval "$_wb"'

# In place of PRELUDE in a container. The shell stays, and reports the command's exit code on stderr
# after INSIDE: the programs that enter containers have exit codes of their own, and some cannot be
# told from the command's. A container may be entered without HOME.
PRELUDE_INSIDE = rf"""
unset _wb _wb_nl _wb_line
_wb_guard=$1
shift
if [ -z "${{HOME-}}" ]; then
    HOME=$(sed -n "s/^[^:]*:[^:]*:$(id -u):[^:]*:[^:]*:\([^:]*\):.*/\1/p" /etc/passwd 2>/dev/null | head -n 1)
    export HOME="${{HOME:-/}}"
fi
case $1 in
    */*) if [ ! -f "$1" ] || [ ! -x "$1" ]; then echo "{INSIDE} missing" >&2; exit 127; fi ;;
    *) command -v "$1" >/dev/null 2>&1 || {{ echo "{INSIDE} missing" >&2; exit 127; }} ;;
esac
echo "{INSIDE}"
echo "{INSIDE} $$" >&2
trap : TERM INT HUP
if [ -n "$_wb_guard" ]; then (exec sh -c "$_wb_guard" sh "$@"); else (exec "$@"); fi
_wb=$?
printf '\n%s exit %s\n' "{INSIDE}" "$_wb" >&2
exit "$_wb"
"""

# $1 TOKEN of a command in a container (ENTER). Ends the process group of that command. It looks
# several times: a container's runtime may start a command after the program that asked for it was
# killed.
END = r"""
for pause in 1 2 0; do
    for file in $(grep -ls "[w]orkbench-$1" /proc/[0-9]*/cmdline); do
        pid=${file#/proc/} pid=${pid%/cmdline}
        kill -s KILL -- "-$pid" || kill -s KILL "$pid"
    done
    sleep "$pause"
done 2>/dev/null
exit 0
"""

# $1: a word. Ends every process whose environment has it, also those that such a process starts
# meanwhile.
SWEEP = r"""
mark=$1
for try in 1 2 3 4 5 6 7 8 9; do
    left=
    for file in $(grep -als "WORKBENCH_SWEPT=$mark" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        kill -s KILL "${pid%/environ}" && left=yes
    done
    [ -n "$left" ] || break
done 2>/dev/null
"""
# $1: a word that no other process has. Runs the other arguments, then ends what they left; keeps
# their exit code.
RUN_SWEPT = rf"""
mark=$1
shift
WORKBENCH_SWEPT=$mark "$@"
code=$?
set -- "$mark"
{SWEEP}
exit "$code"
"""

# Prints for each of its arguments, which are process ids: "pid ID", "name NAME", "inside" and the
# ids in the namespaces of the process, then the lines of its control groups.
AROUND = r"""
for pid; do
    [ -r "/proc/$pid/cgroup" ] || continue
    echo "pid $pid"
    sed -n 's/^Name:[[:space:]]*/name /p; s/^NSpid:/inside/p' "/proc/$pid/status" 2>/dev/null
    cat "/proc/$pid/cgroup" 2>/dev/null
done
exit 0
"""

# Prints the GPUs that Slurm gave to the job in which this runs, as CUDA_VISIBLE_DEVICES has them;
# nothing if it gave none; "all" if Slurm does not assign the GPUs of this node, or the words name
# parts of GPUs.
GPUS_OF_JOB = r"""
given=${CUDA_VISIBLE_DEVICES-unset}
case $given in
    NoDevFiles) exit 0 ;;
    *MIG-*) echo all; exit ;;
    unset) ;;
    *) printf '%s\n' "$given"; exit ;;
esac
scontrol show node "${SLURMD_NODENAME-}" 2>/dev/null | grep -q '^ *Gres=.*gpu' || echo all
exit 0
"""

# Prints the network namespace, then the table of the kernel from which the own addresses follow.
NETWORK = r"""
readlink /proc/self/ns/net
cat /proc/net/fib_trie 2>/dev/null
exit 0
"""


def split_exit_code(errors: str) -> tuple[str, int | None]:
    """Return (stderr without the exit code that the script PRELUDE_INSIDE wrote at its end, that
    exit code). The code is None if it is missing, because the command was cut off. Text after the
    code is removed: it is from the program that entered the container, such as srun."""
    before, mark, rest = errors.rpartition(f"\n{INSIDE} exit ")
    code = parse_whole_number(rest.partition("\n")[0].strip())
    return (before, code) if mark and code is not None else (errors, None)


# Prints the absolute path of the state directory, created with mode 0700 if it is missing.
STATE_DIR = r"""
case ${XDG_STATE_HOME-} in
    /*) base=$XDG_STATE_HOME ;;
    *) base=${HOME%/}/.local/state ;;
esac
umask 077
mkdir -p -- "$base/workbench" && printf '%s\n' "$base/workbench"
"""

# $1 path, $2 offset, $3 limit or "". Exit code 3: missing, 4: not a file, 5: no permission.
READ_FILE = r"""
[ -e "$1" ] || exit 3
[ -d "$1" ] && exit 4
[ -r "$1" ] || exit 5
if [ -n "$3" ]; then tail -c "+$(($2 + 1))" <"$1" | head -c "$3"
elif [ "$2" = 0 ]; then cat <"$1"
else tail -c "+$(($2 + 1))" <"$1"
fi
"""

# $1 path, $2 mode, $3 size: if stdin ends early (a lost link), the file stays as it was. `sync
# FILE` is fsync.
WRITE_FILE = r"""
umask 077
dir=$(dirname -- "$1")
mkdir -p -- "$dir" || exit 1
new=$(mktemp "$dir/.new.XXXXXX") || exit 1
trap 'rm -f -- "$new"' EXIT
trap 'exit 1' HUP INT TERM PIPE
cat >"$new" || exit 1
[ "$(wc -c <"$new")" -eq "$3" ] || { echo "received only a part" >&2; exit 1; }
chmod "$2" "$new" || exit 1
sync "$new" 2>/dev/null || sync
mv -f -- "$new" "$1" || exit 1
sync "$dir" 2>/dev/null || sync
"""

# Prints key=value lines. With $1 = "ping" it first answers a line on stdin, from which the latency
# is measured.
FACTS = r"""
if [ "$1" = ping ]; then IFS= read -r ping; echo "ping=$ping"; fi
say() { [ -n "$2" ] && printf '%s=%s\n' "$1" "$2"; }
first() { word=; { IFS= read -r word <"$2"; } 2>/dev/null; say "$1" "$word"; }
limit=$(command -v timeout) && limit="$limit -s KILL"
say user "$(id -un 2>/dev/null)"
say uid "$(id -u)"
say hostname "$(uname -n)"
say kernel "$(uname -r)"
say arch "$(uname -m)"
say os "$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)"
first boot_id /proc/sys/kernel/random/boot_id
say cpu_count "$(getconf _NPROCESSORS_ONLN 2>/dev/null || grep -c '^processor' /proc/cpuinfo)"
say memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)"
if python=$(command -v python3); then
    say python3 "$python"
    look='import platform; print(platform.python_version())'
    say python3_version "$(${limit:+$limit 5} python3 -c "$look" 2>/dev/null | head -c 64)"
fi
say nvidia_smi "$(command -v nvidia-smi)"
first uid_map /proc/self/uid_map
if command -v systemd-detect-virt >/dev/null 2>&1; then
    say detect_container "$(${limit:+$limit 2} systemd-detect-virt --container 2>/dev/null | head -c 64)"
    say detect_vm "$(${limit:+$limit 2} systemd-detect-virt --vm 2>/dev/null | head -c 64)"
fi
first container_manager /run/systemd/container
[ -e /run/.containerenv ] && say container_file podman
[ -e /.dockerenv ] && say container_file docker
if grep -q '^flags.*[[:space:]]hypervisor' /proc/cpuinfo 2>/dev/null; then say cpu_hypervisor yes; fi
first dmi_vendor /sys/class/dmi/id/sys_vendor
first dmi_product /sys/class/dmi/id/product_name
first hypervisor_type /sys/hypervisor/type
missing=
for tool in setsid sed grep head tail mktemp stat du; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
say missing_programs "$missing"
say init "$(tr '\0' ' ' </proc/1/cmdline 2>/dev/null | head -c 200)"
say home "$HOME"
say path "$PATH"
say shell "${SHELL-}"
say simulated "${WORKBENCH_SIM_PROFILE-}"
exit 0
"""

# Prints field 22 of /proc/PID/stat: the start in clock ticks since boot. "self" within $( ) is a
# new process, so that is the current time.
_START_OF = r"""
start_of() { { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1; set -f; set -- ${stat##*) }; echo "${20}"; }
"""

# $1 run directory, $2 umask of the caller, then the command. The process writes its own id, then
# becomes the command. Not `"$@" &`: a background command of sh ignores SIGINT and SIGQUIT, and so
# would the server.
_BECOME = (
    _START_OF
    + r"""
dir=$1 mask=$2
shift 2
start_of $$ >"$dir/starttime"
echo $$ >"$dir/pid"
umask "$mask"
exec "$@"
"""
)

# Session leader: waits for the command's end and records its exit code. The traps keep it alive
# when the group gets TERM and are reset in the command. Its own "Killed" does not go into the log.
# `exit.tmp` was filled beforehand, so that the code can be written even if the log has filled the
# disk.
_LEAD = (
    _START_OF
    + r"""
dir=$1 mask=$2 become=$3
shift 3
trap : TERM INT HUP
oom_kills() {  # of the control group in which this shell runs
    while IFS=: read -r id kinds path; do
        case $id:$kinds in
            0:) file=/sys/fs/cgroup$path/memory.events ;;
            *:memory | *:memory,* | *:*,memory) file=/sys/fs/cgroup/memory$path/memory.oom_control ;;
            *) continue ;;
        esac
        [ -r "$file" ] && sed -n 's/^oom_kill \([0-9]*\)$/\1/p' "$file"
    done </proc/self/cgroup 2>/dev/null | head -n 1
}
killed=$(oom_kills)
start_of $$ >"$dir/sid_starttime"
echo $$ >"$dir/sid"
exec 9>&2 2>/dev/null
(exec sh -c "$become" sh "$dir" "$mask" "$@" 2>&9 9>&- 8<&-)
code=$?
now=$(oom_kills)
[ -z "$killed" ] || killed=" $((${now:-killed} - killed))"
printf '%-4s%s %s%s' "$code" "$(start_of self)" "$(date +%s)" "$killed" 1<>"$dir/exit.tmp"
mv -f "$dir/exit.tmp" "$dir/exit"
"""
)

# Two servers on one port cannot both run, but neither listens while it loads. So the leader of a
# run's session holds the kernel's lock of a file per port, which all users of the host share, from
# before the start until the end of its process. A start that comes second waits a moment and then
# fails with the name of the first: it prints "error claimed USER RUN". A host without `flock` or a
# common directory has no such locks.
_CLAIM = r"""
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
"""

# $1 run directory, $2 token, $3 working directory or "", $4 files that the processes may have open
# at least or "", $5 _LEAD, $6 _BECOME, then the command. Only root may raise the hard limit of open
# files. Prints "ok PID STARTTIME SID" or "error KIND". `setsid setsid`: the first one becomes a
# leader, so that the second one forks and returns at once, without `&` (see _BECOME).
_START = (
    _CLAIM
    + r"""
fail() { echo "error $1"; exit 1; }
dir=$1 token=$2 workdir=$3 files=$4 port=$5 lead=$6 become=$7
shift 7
mask=$(umask)
umask 077
unset CDPATH
command -v setsid >/dev/null 2>&1 || fail setsid
if [ -n "$workdir" ]; then cd -- "$workdir" || fail workdir; fi
case $1 in
    */*) { [ -f "$1" ] && [ -x "$1" ]; } || fail command ;;
    *) command -v "$1" >/dev/null 2>&1 || fail command ;;
esac
if [ -n "$files" ] && [ "$(ulimit -Sn)" != unlimited ] && [ "$(ulimit -Sn)" -lt "$files" ]; then
    ulimit -Sn "$files" || ulimit -n "$files" || ulimit -Sn "$(ulimit -Hn)"
fi 2>/dev/null
[ -z "$port" ] || claim "$port" "${dir##*/}"
mkdir -p -- "$dir" || fail write
if ! (set -C; : >"$dir/log") 2>/dev/null; then
    [ -e "$dir/log" ] && fail used
    : >"$dir/log" || fail write
fi
{
    cat /proc/sys/kernel/random/boot_id >"$dir/boot_id" && printf '%s\n' "$token" >"$dir/token" &&
    date +%s >"$dir/started" && printf '%63s\n' '' >"$dir/exit.tmp" &&
    { ls -i /dev/shm >"$dir/shm_before" 2>/dev/null || [ -e "$dir/shm_before" ]; }
} || { rm -f "$dir/log"; fail write; }
export WORKBENCH_RUN="$token"
setsid setsid sh -c "$lead" sh "$dir" "$mask" "$become" "$@" </dev/null >>"$dir/log" 2>&1
tries=0
until [ -s "$dir/pid" ] || [ -e "$dir/exit" ]; do
    [ "$tries" -lt 500 ] || fail started
    tries=$((tries + 1))
    sleep 0.02 2>/dev/null || sleep 1
done
read -r pid <"$dir/pid"; read -r start <"$dir/starttime"; read -r sid <"$dir/sid"
echo "ok $pid $start $sid"
"""
)


def start_script_argv(
    run_dir: str,
    token: str,
    workdir: str,
    argv: Sequence[str],
    open_files: int | None = None,
    port: int | None = None,
) -> tuple[str, ...]:
    """Return the argv that starts `argv` as a detached process in `run_dir`, with the working
    directory `workdir` ("" for the default). `token` is put into the environment of its processes
    and marks them as members of the run. Their limit of open files is raised to `open_files`, or to
    the hard limit if that is lower. The start fails if the process of another start has claimed
    `port`.
    """
    numbers = str(open_files or ""), str(port or "")
    return shell_argv(_START, run_dir, token, workdir, *numbers, _LEAD, _BECOME, *argv)


# $1 run directory, $2 id of the process that has ended, $3 _START, then its arguments from the
# working directory on. Moves the files of the ended process into a directory of its own, then
# starts another process in the run directory, as a part of the same run (same token and time of
# start). The new directory has the name of the ended process: of two callers, only one can make it.
_START_AGAIN = r"""
dir=$1 ended=$2 before=$1/before-$2 start=$3
shift 3
umask 077
{ IFS= read -r token <"$dir/token"; } 2>/dev/null || { echo "error write"; exit 1; }
used() { echo "error used"; exit 1; }
if [ -e "$dir/pid" ]; then
    # Of another process than the ended one: another caller has started it since.
    pid= began=
    { IFS= read -r pid <"$dir/pid"; IFS= read -r began <"$dir/starttime"; } 2>/dev/null
    [ -e "$dir/starttime" ] && [ "${pid:-None}-${began:-None}" = "$ended" ] || used
else
    # Another caller has just moved the files of the ended process, or was killed while it did.
    [ -n "$(find "$dir" -prune -mmin +1)" ] || used
fi
mkdir -- "$before" 2>/dev/null || { [ -d "$before" ] && used; echo "error write"; exit 1; }
for name in log pid starttime sid sid_starttime boot_id started exit exit.tmp ended; do
    [ ! -e "$dir/$name" ] || mv -f -- "$dir/$name" "$before/$name" || { echo "error write"; exit 1; }
done
sh -c "$start" sh "$dir" "$token" "$@"
code=$?
cat "$before/started" >"$dir/started"
exit "$code"
"""


def start_again(run_dir: str, ended: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that starts `argv` in the directory of a run whose process has ended.
    `ended`, "PID-STARTTIME" of that process, becomes a part of the name of the subdirectory to
    which its files are moved."""
    return shell_argv(_START_AGAIN, run_dir, ended, _START, "", "", "", _LEAD, _BECOME, *argv)


# $1 names of files to print in full, then run directories; or $2 "-r", $3 their parent, $4 a
# number: of the directories that are marked as ended and are not among that many newest ones (by
# name), only the name is printed, as "older NAME". The process table contains every process that
# has a session, as "pid state parent group session start". Each line of a file begins with its path
# and ":". One grep prints many files, because a process per file takes a second for 500 runs.
SURVEY = r"""
names=$1 newest=
shift
if [ "$1" = -r ]; then newest=$3; set -- "$2"/*/; fi
IFS= read -r boot </proc/sys/kernel/random/boot_id
echo "boot $boot"
echo "now $(date +%s)"
{ read -r uptime rest </proc/uptime && echo "uptime $uptime"; } 2>/dev/null
n='\([0-9]*\)'
cat /proc/[0-9]*/stat 2>/dev/null |
    sed -n "s/^$n (.*) \([A-Za-z]\) $n $n \([1-9][0-9]*\) \([^ ]* \)\{15\}$n .*/proc \1 \2 \3 \4 \5 \7/p"
grep -aos 'WORKBENCH_RUN=[0-9a-f]*' /proc/[0-9]*/environ 2>/dev/null |
    sed -n "s|^/proc/$n/environ:WORKBENCH_RUN=|token \1 |p"
print() { [ $# -eq 0 ] || grep -as '' /dev/null "$@"; }
left=$# first=yes
for dir in "$@"; do
    [ -n "$first" ] && set -- && first=
    left=$((left - 1)) dir=${dir%/}
    [ -d "$dir" ] || continue
    if [ -n "$newest" ] && [ "$left" -ge "$newest" ] && [ -s "$dir/ended" ]; then
        echo "older ${dir##*/}"
        continue
    fi
    echo "run $dir"
    for name in pid starttime sid sid_starttime boot_id token started exit ended; do
        [ -f "$dir/$name" ] || continue  # a named pipe would be waited for
        { IFS= read -r value <"$dir/$name"; } 2>/dev/null || [ -n "$value" ] && echo "value $name $value"
        value=
    done
    for name in members $names; do
        [ -f "$dir/$name" ] && set -- "$@" "$dir/$name"
    done
    [ $# -lt 1000 ] || { print "$@"; set --; }
done
print "$@"
echo end
"""

# `kernel_log` prints the kernel's log since its start, with the seconds since boot in front: nothing if
# this user may not read it. "$limit" guards the programs, such as "timeout 1".
KERNEL_LOG_FUNCTION = r"""
kernel_log() {
    log=$($limit dmesg 2>/dev/null)
    [ -n "$log" ] || log=$($limit journalctl -k -b -q --no-pager -o short-monotonic -n 5000 2>/dev/null)
    [ -n "$log" ] && printf '%s\n' "$log"
}
"""

# Prints "read" and the lines of the kernel's log that report the end of a process or a fault of a
# GPU. Prints "denied" if this user may not read that log.
KERNEL_LOG = (
    KERNEL_LOG_FUNCTION
    + r"""
limit=
lines=$(kernel_log) || { echo denied; exit 0; }
echo read
printf '%s\n' "$lines" |
    grep -aiE 'killed process|oom-kill:|segfault at|general protection|trap |NVRM: Xid' | tail -n 300
exit 0
"""
)

# $1 parent of run directories, then names and texts in turn. Writes each text into the file `ended`
# of that directory.
MARK_ENDED = r"""
cd -- "$1" 2>/dev/null || exit 0
shift
umask 077
while [ $# -gt 1 ]; do
    [ -d "$1" ] && echo "$2" >"$1/ended"
    shift 2
done 2>/dev/null
exit 0
"""

# $1 parent of run directories. Prints "now UNIX_S", "run NAME READ TEXT" for each that is marked as
# ended, and "KIB NAME" with the size of each. READ is "read" or "unread". A link is left out.
ENDED_RUNS = r"""
cd -- "$1" 2>/dev/null || exit 0
echo "now $(date +%s)"
set --
for dir in */; do
    dir=${dir%/} text=
    [ -L "$dir" ] || ! [ -f "$dir/ended" ] && continue
    { read -r text <"$dir/ended"; } 2>/dev/null
    [ -e "$dir/read" ] && read=read || read=unread
    echo "run $dir $read $text"
    set -- "$@" "./$dir"
    [ $# -lt 1000 ] || { du -sk -- "$@"; set --; }
done
[ $# -eq 0 ] || du -sk -- "$@"
exit 0
"""

# $1 parent of run directories, then names. Removes those that are directories marked as ended, and
# prints them.
REMOVE_RUNS = r"""
cd -- "$1" || exit
shift
for name in "$@"; do
    case $name in */*|.*) continue ;; esac
    [ -L "$name" ] || ! [ -f "$name/ended" ] && continue
    rm -rf -- "./$name" && echo "$name"
done
exit 0
"""

# Prints those of its arguments that are ids of processes.
EXISTING = r"""
for pid; do [ ! -d "/proc/$pid" ] || echo "$pid"; done
"""

# $1 signal, $2 seconds to wait at most, then targets PID:START or PID:START:GROUP (that whole
# group, if PID is in it), then "--" and PID:START of the processes to wait for. The start time is
# checked just before each signal. Prints "sent TARGET", "refused TARGET" (no permission) or "gone
# TARGET".
SIGNAL = r"""
same() {
    want=${1#*:} group=
    case $want in *:*) group=${want#*:} want=${want%%:*} ;; esac
    { read -r stat <"/proc/${1%%:*}/stat"; } 2>/dev/null || return 1
    set -f
    set -- ${stat##*) }
    case $1 in [ZX]) return 1 ;; esac
    [ "${20}" = "$want" ] && { [ -z "$group" ] || [ "$3" = "$group" ]; }
}
signal=$1 seconds=$2
shift 2
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if ! same "$1"; then echo "gone $1"
    elif [ -n "$group" ]; then
        if kill -s "$signal" -- "-$group" 2>/dev/null; then echo "sent $1"; else echo "refused $1"; fi
    elif kill -s "$signal" "${1%%:*}" 2>/dev/null; then echo "sent $1"
    else echo "refused $1"
    fi
    shift
done
[ $# -gt 0 ] && shift
read -r now rest </proc/uptime
until=$((${now%%.*} + seconds))
for target in "$@"; do
    while same "$target"; do
        read -r now rest </proc/uptime
        [ "${now%%.*}" -lt "$until" ] || exit 0
        sleep 0.05 2>/dev/null || sleep 1
    done
done
exit 0
"""

# $1 run directory, then process ids. Adds to `shm`, as "inode path", each file directly under
# /dev/shm that they have mapped shared and writable, that this user owns, and that did not exist
# before the run: files that the run created, never a model that someone put there. By inode, since
# a semaphore is mapped under its first, temporary name.
RECORD_SHARED_MEMORY = r"""
dir=$1
shift
for pid in "$@"; do cat "/proc/$pid/maps" 2>/dev/null; done |
sed -n 's|^[^ ]* .w.s [^ ]* [^ ]* \([0-9]*\) */dev/shm/[^/]*$|\1|p' | sort -u | while read -r mapped; do
    ls -i /dev/shm | while read -r inode name; do
        path=/dev/shm/$name
        { [ "$inode" = "$mapped" ] && [ -f "$path" ] && [ -O "$path" ]; } || continue
        while read -r old rest; do [ "$old" = "$inode" ] && continue 2; done <"$dir/shm_before"
        grep -qsxF "$inode $path" "$dir/shm" || echo "$inode $path" >>"$dir/shm"
    done
done
exit 0
"""

# $1 run directory. Removes and prints the files of `shm` that still exist (same inode, owned by
# this user) and that no process has mapped or open.
CLEAR_SHARED_MEMORY = r"""
[ -f "$1/shm" ] || exit 0
while read -r inode path; do
    { [ -f "$path" ] && [ -O "$path" ]; } || continue
    now=$(ls -i -- "$path") || continue
    now=${now#"${now%%[! ]*}"}
    [ "${now%% *}" = "$inode" ] || continue
    grep -qs " $inode  */dev/shm/" /proc/[0-9]*/maps && continue
    rm -f -- "$path" && printf '%s\n' "$path"
done <"$1/shm"
exit 0
"""
