# Prints for each of its arguments, which are process ids: "pid ID", "name NAME", "inside" and the
# ids in the namespaces of the process, then the lines of its control groups.

for pid; do
    [ -r "/proc/$pid/cgroup" ] || continue
    echo "pid $pid"
    sed -n 's/^Name:[[:space:]]*/name /p; s/^NSpid:/inside/p' "/proc/$pid/status" 2>/dev/null
    cat "/proc/$pid/cgroup" 2>/dev/null
done
exit 0
