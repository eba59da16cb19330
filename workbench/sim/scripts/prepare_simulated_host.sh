# $1: directory of the simulated programs, $2: the simulated host's /sys, then its cores. Settings
# of the cores outlive a session. The idle states are those of a server CPU of Intel, with the
# microseconds that a core needs to leave them.

[ -x "$1/nvidia-smi" ] || exit 3
printf %s "$PATH"
cpus=$2/devices/system/cpu
shift 2
for core; do
    mkdir -p "$cpus/cpu$core/cpufreq" && cd "$cpus/cpu$core/cpufreq" || exit 1
    [ -s scaling_governor ] || echo performance >scaling_governor
    [ -s scaling_available_governors ] || echo performance powersave schedutil >scaling_available_governors
    for state in 0,POLL,0 1,C1,2 2,C1E,10 3,C6,133; do
        dir=$cpus/cpu$core/cpuidle/state${state%%,*} state=${state#*,}
        mkdir -p "$dir" && cd "$dir" || exit 1
        [ -s disable ] || echo 0 >disable
        [ -s latency ] || { echo "${state%,*}" >name && echo "${state#*,}" >latency; }
    done
done
