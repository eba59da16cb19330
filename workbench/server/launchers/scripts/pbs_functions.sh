# The first two options of `submit` are the resources of the node, for PBS Pro and for Torque. qsub
# takes the directory from which it runs. qstat continues a long value on lines that begin with a
# tab.

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
