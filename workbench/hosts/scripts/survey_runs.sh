# $1 names of files to print in full, then run directories; or $2 "-r", $3 their parent, $4 a
# number: of the directories that are marked as ended and are not among that many newest ones (by
# name), only the name is printed, as "older NAME". The process table contains every process that
# has a session, as "pid state parent group session start". Each line of a file begins with its path
# and ":". One grep prints many files, because a process per file takes a second for 500 runs.

names=$1 newest=
shift
if [ "$1" = -r ]; then newest=$3; set -- "$2"/*/; fi
IFS= read -r boot </proc/sys/kernel/random/boot_id
echo "boot $boot"
echo "now $(date +%s)"
{ read -r uptime rest </proc/uptime && echo "uptime $uptime"; } 2>/dev/null
n='\([0-9]*\)'
cat /proc/[0-9]*/stat 2>/dev/null |
    sed -n "s/^$n (.*) \([A-Za-z]\) $n $n \([1-9][0-9]*\) \([^ ]* \)\{15\}$n .*/proc \1 \2 \3 \4 \5 \7/p"
grep -aos 'WORKBENCH_RUN=[0-9a-f]*' /proc/[0-9]*/environ 2>/dev/null |
    sed -n "s|^/proc/$n/environ:WORKBENCH_RUN=|token \1 |p"
print() { [ $# -eq 0 ] || grep -as '' /dev/null "$@"; }
left=$# first=yes
for dir in "$@"; do
    [ -n "$first" ] && set -- && first=
    left=$((left - 1)) dir=${dir%/}
    [ -d "$dir" ] || continue
    if [ -n "$newest" ] && [ "$left" -ge "$newest" ] && [ -s "$dir/ended" ]; then
        echo "older ${dir##*/}"
        continue
    fi
    echo "run $dir"
    for name in pid starttime sid sid_starttime boot_id token started exit ended; do
        [ -f "$dir/$name" ] || continue  # a named pipe would be waited for
        { IFS= read -r value <"$dir/$name"; } 2>/dev/null || [ -n "$value" ] && echo "value $name $value"
        value=
    done
    for name in members $names; do
        [ -f "$dir/$name" ] && set -- "$@" "$dir/$name"
    done
    [ $# -lt 1000 ] || { print "$@"; set --; }
done
print "$@"
echo end
