# Shell lines that print the CPUs that a program may use, and the cores and NUMA nodes that the host
# has, in the form that `parse_host_cores` parses. Those of a simulated host would be this
# machine's.

if [ -z "${WORKBENCH_SIM_PROFILE:-}" ]; then
    echo "cpus=$(OMP_NUM_THREADS= OMP_THREAD_LIMIT= nproc 2>/dev/null)"
    echo "cores=$(cat /sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list 2>/dev/null | sort -u | wc -l)"
    echo "nodes=$(cat /sys/devices/system/node/node[0-9]*/cpulist 2>/dev/null | grep -c .)"
fi
