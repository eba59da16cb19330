# Prints field 22 of /proc/PID/stat: the start in clock ticks since boot. "self" within $( ) is a
# new process, so that is the current time.

start_of() { { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1; set -f; set -- ${stat##*) }; echo "${20}"; }
