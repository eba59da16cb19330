# The job. $1: run directory; PBS passes no arguments, but the directory of qsub. The body is a
# function, because PBS gives the script to a shell on stdin. TERM goes to all processes of a job:
# the shell waits for the server's end.

#!/bin/sh
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
