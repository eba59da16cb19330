# $1: directory of the simulated programs, $2: the simulated host's /sys, then its cores. Settings
# of the cores outlive a session. The idle states are those of a server CPU of Intel, with the
# microseconds that a core needs to leave them. Exits with 4 if the disk is full.

[ -x "$1/nvidia-smi" ] || exit 3
printf %s "$PATH"
cpus=$2/devices/system/cpu
fail() {
    where=$cpus
    until [ -d "$where" ]; do where=${where%/*}; done
    free_kib=$(df -Pk "${where:-/}" | awk 'END { print $4 }')
    [ "${free_kib:-16}" -ge 16 ] || exit 4
    exit 1
}
shift 2
for core; do
    mkdir -p "$cpus/cpu$core/cpufreq" && cd "$cpus/cpu$core/cpufreq" || fail
    [ -s scaling_governor ] || echo performance >scaling_governor || fail
    governors=scaling_available_governors
    [ -s "$governors" ] || echo performance powersave schedutil >"$governors" || fail
    for state in 0,POLL,0 1,C1,2 2,C1E,10 3,C6,133; do
        dir=$cpus/cpu$core/cpuidle/state${state%%,*} state=${state#*,}
        mkdir -p "$dir" && cd "$dir" || fail
        [ -s disable ] || echo 0 >disable || fail
        [ -s latency ] || { echo "${state%,*}" >name && echo "${state#*,}" >latency; } || fail
    done
done
