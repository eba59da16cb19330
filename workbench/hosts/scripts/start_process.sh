# $1 run directory, $2 token, $3 working directory or "", $4 files that the processes may have open
# at least or "", $5 lead_session.sh, $6 become_command.sh, then the command. Only root may raise
# the hard limit of open files. Prints "ok PID STARTTIME SID" or "error KIND". `setsid setsid`: the
# first one becomes a leader, so that the second one forks and returns at once, without `&` (see
# become_command.sh).

fail() { echo "error $1"; exit 1; }
dir=$1 token=$2 workdir=$3 files=$4 port=$5 lead=$6 become=$7
shift 7
mask=$(umask)
umask 077
unset CDPATH
command -v setsid >/dev/null 2>&1 || fail setsid
if [ -n "$workdir" ]; then cd -- "$workdir" || fail workdir; fi
case $1 in
    */*) { [ -f "$1" ] && [ -x "$1" ]; } || fail command ;;
    *) command -v "$1" >/dev/null 2>&1 || fail command ;;
esac
if [ -n "$files" ] && [ "$(ulimit -Sn)" != unlimited ] && [ "$(ulimit -Sn)" -lt "$files" ]; then
    ulimit -Sn "$files" || ulimit -n "$files" || ulimit -Sn "$(ulimit -Hn)"
fi 2>/dev/null
[ -z "$port" ] || claim "$port" "${dir##*/}"
mkdir -p -- "$dir" || fail write
if ! (set -C; : >"$dir/log") 2>/dev/null; then
    [ -e "$dir/log" ] && fail used
    : >"$dir/log" || fail write
fi
{
    cat /proc/sys/kernel/random/boot_id >"$dir/boot_id" && printf '%s\n' "$token" >"$dir/token" &&
    date +%s >"$dir/started" && printf '%63s\n' '' >"$dir/exit.tmp" &&
    { ls -i /dev/shm >"$dir/shm_before" 2>/dev/null || [ -e "$dir/shm_before" ]; }
} || { rm -f "$dir/log"; fail write; }
export WORKBENCH_RUN="$token"
setsid setsid sh -c "$lead" sh "$dir" "$mask" "$become" "$@" </dev/null >>"$dir/log" 2>&1
tries=0
until [ -s "$dir/pid" ] || [ -e "$dir/exit" ]; do
    [ "$tries" -lt 500 ] || fail started
    tries=$((tries + 1))
    sleep 0.02 2>/dev/null || sleep 1
done
read -r pid <"$dir/pid"; read -r start <"$dir/starttime"; read -r sid <"$dir/sid"
echo "ok $pid $start $sid"
