# The arguments are the directory of the engine's program and process ids. Prints for each process a
# line "pid NUMBER", and what py-spy prints. Without py-spy, prints "absent".

spy=$(command -v py-spy) || spy="$1/py-spy"
[ -x "$spy" ] || { echo absent; exit 0; }
printf 'scope %s\n' "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null)"
shift
for pid; do
    [ -d "/proc/$pid" ] || continue
    printf 'pid %s\n' "$pid"
    timeout -s KILL SECONDS "$spy" dump --nonblocking --pid "$pid" 2>&1 </dev/null
done
exit 0
