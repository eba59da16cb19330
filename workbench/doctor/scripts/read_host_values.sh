# $1: pattern of engines' workers; the others are ports in hex ("1F40"). Prints key=value lines. A
# simulated host's own lines come first: of several lines with one key the first counts. What
# belongs to the machine below it is then not read. `timeout` guards what may hang: a file system
# over the network, and a program. It sends KILL: a program may ignore TERM, and `timeout` leaves
# the group that Workbench ends.

say() { [ -n "$2" ] && printf '%s=%s\n' "$1" "$2"; }
limit=$(command -v timeout) && limit="$limit -s KILL 1"
look() {
    say files_soft "$(ulimit -Sn)"
    say files_hard "$(ulimit -Hn)"
    say memlock_kib "$(ulimit -l 2>/dev/null)"
    say memory_available_kib "$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)"
    space shared_memory /dev/shm
    hub=${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}
    say hub "$hub"
    while [ ! -d "$hub" ] && [ "${hub#/*/}" != "$hub" ]; do hub=${hub%/*}; done
    space disk "$hub"
}
space() { say "$1" "$($limit df -Pk "$2" 2>/dev/null | head -c 65536 | awk 'NR == 2 { print $4, $3 + $4 }')"; }
ports() {
    wanted=" $* "
    taken=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v wanted="$wanted" '
        { port = substr($2, length($2) - 3) }
        $4 == "0A" && index(wanted, " " port " ") && !seen[port]++ { print port, $10 }')
    [ -n "$taken" ] || return
    ls -l /proc/[0-9]*/fd 2>/dev/null | awk -v taken="$taken" '
        BEGIN { n = split(taken, word); for (i = 1; i < n; i += 2) port["socket:[" word[i + 1] "]"] = word[i] }
        /^\/proc\// { split($1, part, "/"); pid = part[3] }
        $NF in port { print "port=" port[$NF], pid; delete port[$NF] }
        END { for (left in port) print "port=" port[left] }'
}
idle() {
    for state in "${WORKBENCH_SIM_SYSFS:-/sys}"/devices/system/cpu/cpu0/cpuidle/state*; do
        { read -r name <"$state/name" && read -r latency <"$state/latency" && read -r off <"$state/disable"; } \
            2>/dev/null && echo "idle=$latency $off $name"
    done
}
machine() {
    say cuda_home "${CUDA_HOME-}"
    [ -n "${CUDA_HOME-}" ] && [ ! -d "$CUDA_HOME" ] && say cuda_home_missing yes
    for nvcc in "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc ''; do
        [ -f "$nvcc" ] && [ -x "$nvcc" ] && break
    done
    say nvcc "$nvcc"
    [ -n "$nvcc" ] && [ -n "$limit" ] &&
        say nvcc_version "$($limit "$nvcc" --version 2>/dev/null | head -c 4096 |
            sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    say environment_file "$(head -c 65536 /etc/environment 2>/dev/null |
        sed -n 's/^ *\([A-Za-z_]*\)=.*\$.*/\1/p' | head -n 5 | tr '\n' ' ')"
    grep -q '^nouveau ' /proc/modules 2>/dev/null && say nouveau yes
    grep -qi 'open kernel module' /proc/driver/nvidia/version 2>/dev/null && say open_module yes
    [ -n "$(ls /dev/infiniband 2>/dev/null)" ] && say infiniband yes
    kernel_log | grep -a 'NVRM: Xid' | tail -n 50 | cut -c 1-300 | sed 's/^/xid=/'
    for file in $(grep -alE "$workers" /proc/[0-9]*/cmdline 2>/dev/null | head -n 64); do
        dir=${file%/cmdline}
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$dir/status" 2>/dev/null)
        parent_name=
        read -r parent_name 2>/dev/null <"/proc/$parent/comm"
        echo "worker=${dir#/proc/} $parent ${parent_name:-?} $(tr '\0' ' ' <"$file" | head -c 60)"
    done
}
workers=$1
shift
own() { grep -als 'WORKBENCH_RUN=' /proc/[0-9]*/environ | sed 's|^/proc/\([0-9]*\)/environ$|own=\1|'; }
{
    if [ -n "${WORKBENCH_SIM_PROFILE-}" ]; then cat "$WORKBENCH_SIM_STATE/doctor" 2>/dev/null; fi
    look
    idle
    ports "$@"
    own
    [ -n "${WORKBENCH_SIM_PROFILE-}" ] || machine
} | head -c 65536
exit 0
