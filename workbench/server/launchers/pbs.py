"""The launcher `pbs`: a server as a batch job of PBS Pro, OpenPBS or Torque.

A job that signal n ended has the Exit_status 256 + n. The status is negative if PBS itself ended
the job: -29 for the walltime, -27 for the memory (JOB_EXEC_KILL_* in job.h of OpenPBS). `qstat -x`
includes ended jobs in PBS Pro, but selects XML output in Torque. A preempted job is suspended, or
put back into the queue; run_count counts its starts.
"""

from __future__ import annotations

from workbench.model.job_request import JobRequest, pbs_words
from workbench.server.launchers.jobs import JobLauncher, Scheduler
from workbench.server.launchers.launcher import Launch, LaunchedServer

# The first two options of `submit` are the resources of the node, for PBS Pro and for Torque. qsub
# takes the directory from which it runs. qstat continues a long value on lines that begin with a
# tab.
_SCHEDULER_FUNCTIONS = r"""
pro() {
    [ -n "${kind-}" ] || case $(qstat --version 2>&1) in *pbs_version*) kind=pro ;; *) kind=torque ;; esac
    [ "$kind" = pro ]
}
submit() {
    if pro; then resources=$1; else resources=$2; fi
    shift 2
    job=$(qsub -S /bin/sh -j oe -o job.out -l "$resources" "$@" job.sh)
}
find() {
    history=
    pro && history=-x
    answer=$(qselect $history -u "$(id -un)" -N "$name" 2>&1) || why=$(printf '%s\n' "$answer" | sed -n '$p')
    [ -n "$why" ] || job=$(printf '%s\n' "$answer" | sed -n '$p')
}
place() {
    query
    path=$(field Output_Path)
    placed "${path#*:}"
}
query() {
    history=
    pro && history=-x
    answer=$(qstat $history -f "$job" 2>&1)
    failed=$?
    case $answer in *job_history_enable*) answer=$(qstat -f "$job" 2>&1) failed=$? ;; esac
    answer=$(printf '%s\n' "$answer" | awk '/^\t/ { line = line substr($0, 2); next }
        NR > 1 { print line } { line = $0 } END { print line }')
    return "$failed"
}
field() {
    printf '%s\n' "$answer" | sed -n "s/^ *$1 = //p" | sed -n 1p
}
look() {
    if ! query; then
        case $answer in
            *Unknown\ Job*|*Job\ has\ finished*) phase=gone ;;
            *) why=$(printf '%s\n' "$answer" | sed -n '$p') ;;
        esac
        return
    fi
    letter=$(field job_state) host=$(field exec_host) comment=$(field comment)
    host=${host%%/*}
    limit=$(seconds "$(field Resource_List.walltime)")
    runs=$(whole "$(field run_count)")
    [ "${runs:-1}" -le 1 ] || restarts=$((runs - 1))
    case $letter in
        Q | H | W | T | M) phase=queued state="$(named "$letter")${comment:+ ($comment)}" ;;
        R | E | S | U | B) phase=running state=$(named "$letter") ;;
        F | X | C) phase=ended; ended ;;
        *) why="qstat shows no job_state for $job" ;;
    esac
}
named() {
    case $1 in
        Q) echo queued ;; H) echo held ;; W) echo waiting ;; T) echo moving ;; M) echo moved ;;
        R) echo running ;; E) echo exiting ;; S | U) echo suspended ;; *) echo "$1" ;;
    esac
}
ended() {
    code=$(field '[Ee]xit_status')
    case $code in -*) code=-$(whole "${code#-}") ;; *) code=$(whole "$code") ;; esac
    over=$(sed -n 's/.*PBS: job killed: \(.*\)/\1/p' "${out:-/dev/null}" 2>/dev/null | sed -n 1p)
    case $code:$over in
        -29:* | *:walltime*) state="its walltime was over" ;;
        -2[4-8]:* | *:?*) state="PBS killed it: ${over:-it used more than it had asked for (Exit_status $code)}" ;;
        -*) state="PBS could not run it (Exit_status $code)${comment:+: $comment}" ;;
        :*) state="${comment:-PBS names no exit status}" ;;
        *) if [ "$code" -ge 256 ]; then state="signal $((code - 256))"; else state="exit code $code"; fi ;;
    esac
    case $code in
        -*) code= ;;
        ?*) [ "$code" -lt 256 ] || code=$((code - 128)) ;;
    esac
}
cancel() {
    qdel "$job"
}
"""

PBS = Scheduler(
    "pbs",
    programs=("qsub", "qstat", "qdel"),
    functions=_SCHEDULER_FUNCTIONS,
    nodes=("sh", "-c", "pbsnodes -a | sed -n 's/^ *Mom = //p'"),
)


class PbsLauncher(JobLauncher):
    """The launcher that runs servers as jobs of PBS."""

    scheduler = PBS

    def words(self, request: JobRequest) -> tuple[str, ...]:
        words = pbs_words(request)
        return (words.chunk, words.nodes, *words.others)

    def submit(self, request: JobRequest, run_dir: str) -> tuple[str, ...]:
        words = pbs_words(request)
        fixed = ("-S", "/bin/sh", "-j", "oe", "-o", f"{run_dir}/job.out")
        return ("qsub", *fixed, "-l", words.chunk, *words.others, f"{run_dir}/job.sh")

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        return ("qrerun", launched.handle) if launched.handle else ()


def launcher(name: str) -> PbsLauncher:
    return PbsLauncher()
