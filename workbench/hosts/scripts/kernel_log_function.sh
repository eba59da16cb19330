# `kernel_log` prints the kernel's log since its start, with the seconds since boot in front: nothing if
# this user may not read it. "$limit" guards the programs, such as "timeout 1".

kernel_log() {
    log=$($limit dmesg 2>/dev/null)
    [ -n "$log" ] || log=$($limit journalctl -k -b -q --no-pager -o short-monotonic -n 5000 2>/dev/null)
    [ -n "$log" ] && printf '%s\n' "$log"
}
