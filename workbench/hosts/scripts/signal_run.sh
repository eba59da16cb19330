# $1 signal, $2 seconds to wait at most, then targets PID:START or PID:START:GROUP (that whole
# group, if PID is in it), then "--" and PID:START of the processes to wait for. The start time is
# checked just before each signal. Prints "sent TARGET", "refused TARGET" (no permission) or "gone
# TARGET".

same() {
    want=${1#*:} group=
    case $want in *:*) group=${want#*:} want=${want%%:*} ;; esac
    { read -r stat <"/proc/${1%%:*}/stat"; } 2>/dev/null || return 1
    set -f
    set -- ${stat##*) }
    case $1 in [ZX]) return 1 ;; esac
    [ "${20}" = "$want" ] && { [ -z "$group" ] || [ "$3" = "$group" ]; }
}
signal=$1 seconds=$2
shift 2
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if ! same "$1"; then echo "gone $1"
    elif [ -n "$group" ]; then
        if kill -s "$signal" -- "-$group" 2>/dev/null; then echo "sent $1"; else echo "refused $1"; fi
    elif kill -s "$signal" "${1%%:*}" 2>/dev/null; then echo "sent $1"
    else echo "refused $1"
    fi
    shift
done
[ $# -gt 0 ] && shift
read -r now rest </proc/uptime
until=$((${now%%.*} + seconds))
for target in "$@"; do
    while same "$target"; do
        read -r now rest </proc/uptime
        [ "${now%%.*}" -lt "$until" ] || exit 0
        sleep 0.05 2>/dev/null || sleep 1
    done
done
exit 0
