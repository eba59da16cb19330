# Prints those of its arguments that are ids of processes.

for pid; do [ ! -d "/proc/$pid" ] || echo "$pid"; done
