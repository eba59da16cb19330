# $1: the guard's directory, $2: the owner whose heartbeat to renew, or "". Prints the time, the
# last reported act, the boot id, the state of the guard's process, and the seconds since the boot,
# now and at the guard's last round; a line for each of the newest heartbeats; an empty line; the
# guard's state. Only regular files are opened, and only their beginning is read: a FIFO would never
# end.
# shellcheck disable=SC2046 # the words are split on purpose

begin() { [ ! -f "$1" ] || head -c "$2" <"$1"; }
cd "$1" 2>/dev/null || exit 3
[ -z "$2" ] || touch "beats/$2"
date +%s
set -f
set -- $(begin told 100)
echo "${1:--}"
read -r boot </proc/sys/kernel/random/boot_id; echo "$boot"
set -- $(begin pid 100)
pid=$1 start=$2
case $pid in *[!0-9]*) pid= ;; esac
stat=; { read -r stat <"/proc/$pid/stat"; } 2>/dev/null
set -- ${stat##*) }
if [ -n "$pid" ] && [ "${20}" = "$start" ]; then echo "$1"; else echo gone; fi
read -r up _ </proc/uptime
set -- $(begin round 40)
echo "${up:--} ${1:--}"
set +f
ls -t beats | head -n 64 | while read -r beat; do stat -c '%Y %n' "beats/$beat"; done 2>/dev/null
echo
begin state.json 1000000
