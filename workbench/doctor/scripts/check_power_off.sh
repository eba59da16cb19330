# $1: boot id. Prints lines of KEY=VALUE: the host's time, when it was started, the last lines of the
# journal under that boot with their Unix times, and the starts and shutdowns in /var/log/wtmp.

limit=$(command -v timeout) && limit="$limit -s KILL 4"
{
    date +now=%s
    if [ -n "${WORKBENCH_SIM_PROFILE-}" ]; then
        cat "$WORKBENCH_SIM_STATE/before_boot" 2>/dev/null
        exit 0
    fi
    sed -n 's/^btime /started=/p' /proc/stat
    $limit journalctl --quiet --no-pager -b "$1" -n 60 -o short-unix 2>/dev/null | sed 's/^/journal=/'
    LC_ALL=C $limit last -x --time-format iso reboot shutdown 2>/dev/null | head -n 40 | sed 's/^/wtmp=/'
} | head -c 65536
exit 0
