# Session leader: waits for the command's end and records its exit code. The traps keep it alive
# when the group gets TERM and are reset in the command. Its own "Killed" does not go into the log.
# `exit.tmp` was filled beforehand, so that the code can be written even if the log has filled the
# disk.

dir=$1 mask=$2 become=$3
shift 3
trap : TERM INT HUP
oom_kills() {  # of the control group in which this shell runs
    while IFS=: read -r id kinds path; do
        case $id:$kinds in
            0:) file=/sys/fs/cgroup$path/memory.events ;;
            *:memory | *:memory,* | *:*,memory) file=/sys/fs/cgroup/memory$path/memory.oom_control ;;
            *) continue ;;
        esac
        [ -r "$file" ] && sed -n 's/^oom_kill \([0-9]*\)$/\1/p' "$file"
    done </proc/self/cgroup 2>/dev/null | head -n 1
}
killed=$(oom_kills)
start_of $$ >"$dir/sid_starttime"
echo $$ >"$dir/sid"
exec 9>&2 2>/dev/null
(exec sh -c "$become" sh "$dir" "$mask" "$@" 2>&9 9>&- 8<&-)
code=$?
now=$(oom_kills)
[ -z "$killed" ] || killed=" $((${now:-killed} - killed))"
printf '%-4s%s %s%s' "$code" "$(start_of self)" "$(date +%s)" "$killed" 1<>"$dir/exit.tmp"
mv -f "$dir/exit.tmp" "$dir/exit"
