# squeue shows a job for some minutes after its end (MinJobAge). The output path of sbatch has "%"
# for patterns. A job that is gone is looked up in the accounting, which small clusters lack.

submit() {
    output=$(printf %s "$dir/job.out" | sed 's/%/%%/g')
    answer=$(sbatch --parsable --chdir="$dir" --output="$output" --open-mode=append --comment="workbench ${dir##*/}" \
        "$@" "$dir/job.sh" "$dir") || return 1
    job=$(printf '%s\n' "$answer" | sed -n '$p')
    job=${job%%;*}
}
find() {
    answer=$(squeue -h -t all -u "$(id -un)" -n "$name" -S i -o %i 2>&1) || why=$(printf '%s\n' "$answer" | sed -n '$p')
    [ -n "$why" ] || job=$(printf '%s\n' "$answer" | sed -n '$p')
}
place() {
    placed "$(scontrol show job "$job" 2>/dev/null | sed -n 's/^ *StdOut=//p')"
}
look() {
    answer=$(squeue -h -t all -j "$job" -o '%T|%B|%L|%r' 2>&1)
    if [ "$?" -ne 0 ]; then
        case $answer in
            *[Ii]nvalid\ job\ id*) gone; return ;;
        esac
        why=$(printf '%s\n' "$answer" | sed -n '$p')
        return
    fi
    [ -n "$answer" ] || { gone; return; }
    IFS='|' read -r word host left reason <<END
$answer
END
    left=$(seconds "$left")
    told
}
gone() {
    phase=gone
    answer=$(sacct -n -X -P -j "$job" -o State,ExitCode 2>/dev/null | sed -n '$p')
    [ -n "$answer" ] || return
    word=${answer%%|*} reason=
    code=${answer#*|}
    told
}
told() {
    state=$word
    case $word in
        PENDING | REQUEUE* | SPECIAL_EXIT | CONFIGURING | STAGE_OUT)
            phase=queued
            [ "$reason" = None ] || state="$word ($reason)"
            return ;;
        RUNNING | COMPLETING | SUSPENDED | STOPPED | SIGNALING | RESIZING)
            phase=running
            address
            return ;;
        COMPLETED) ;;
        TIMEOUT) state="TIMEOUT (its walltime was over)" ;;
        OUT_OF_ME*) state="OUT_OF_MEMORY (it used more memory than it had asked for)" ;;
        PREEMPTED) state="PREEMPTED (a job with a higher priority took its place)" ;;
        NODE_FAIL)
            case $host in '' | n/a | None) host=node ;; *) host="node $host" ;; esac
            state="NODE_FAIL (the $host failed)" ;;
        *) [ "${reason:-None}" = None ] || state="$word ($reason)" ;;
    esac
    phase=ended
    case $word in NODE_FAIL | OUT_OF_ME*) code= && return ;; esac  # Slurm's 0:0 and 0:125 are not of the server
    [ -n "$code" ] || code=$(scontrol show job "$job" 2>/dev/null | sed -n 's/.* ExitCode=\([0-9:]*\).*/\1/p')
    case $code in
        *:0) code=$(whole "${code%:*}") ;;
        *:*) code=$(whole "${code#*:}") code=${code:+$((128 + code))} ;;
    esac
}
# Replaces the name of the node by its address, which may be another name or a number.
address() {
    case $host in '' | n/a | None) host=; return ;; esac
    if [ "$host" != "${known-}" ]; then
        known=$host
        its_address=$(scontrol show node "$host" 2>/dev/null | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
    fi
    host=${its_address:-$host}
}
cancel() {
    scancel "$job"
}
enter() {
    srun --jobid="$job" --overlap --nodes=1 --ntasks=1 --relative=0 --unbuffered --mpi=none "$@" </dev/null
}
