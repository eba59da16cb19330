# $1 directory, which may be missing, $2 number of programs, the programs, then the command that
# prints the names of the nodes. Prints "missing PROGRAM", "host NAME", "files TYPE OF FILE SYSTEM",
# "node NAME" and "refused WHY".

dir=$1 count=$2
shift 2
while [ "$count" -gt 0 ]; do
    command -v -- "$1" >/dev/null 2>&1 || echo "missing $1"
    shift
    count=$((count - 1))
done
echo "host $(uname -n)"
while ! [ -d "$dir" ] && [ "$dir" != / ]; do dir=$(dirname -- "$dir"); done
echo "files $(stat -f -c %T -- "$dir" 2>/dev/null)"
command -v -- "$1" >/dev/null 2>&1 || exit 0
answer=$("$@" 2>&1) || { echo "refused $(printf '%s\n' "$answer" | sed -n '$p')"; exit 0; }
printf '%s\n' "$answer" | sort -u | sed 's/^/node /'
