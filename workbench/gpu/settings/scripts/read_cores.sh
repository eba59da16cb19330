# WORKBENCH_SIM_SYSFS: a simulated host's own /sys. Prints "governor CPU GOVERNOR AVAILABLE…" for
# each core with a governor, and "state CPU NUMBER DISABLED" for each idle state of a core, with "?"
# for one that cannot be read.

root=${WORKBENCH_SIM_SYSFS:-/sys}
echo "$root"
for core in "$root"/devices/system/cpu/cpu[0-9]*; do
    cpu=${core##*/cpu}
    for state in "$core"/cpuidle/state[0-9]*; do
        [ -e "$state/disable" ] || continue
        disabled=
        read -r disabled 2>/dev/null <"$state/disable"
        echo "state $cpu ${state##*/state} ${disabled:-?}"
    done
    read -r governor 2>/dev/null <"$core/cpufreq/scaling_governor" && [ -n "$governor" ] || continue
    available=
    read -r available 2>/dev/null <"$core/cpufreq/scaling_available_governors"
    echo "governor $cpu $governor $available"
done
exit 0
