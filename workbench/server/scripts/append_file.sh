# $1 file, $2 the size that it must have, $3 bytes to append from stdin. `head` ends by itself after
# them.

mkdir -p -- "$(dirname -- "$1")" || exit
[ -f "$1" ] || : >"$1" || exit
[ "$(stat -c %s -- "$1")" = "$2" ] || { echo "$1 has not $2 bytes" >&2; exit 4; }
head -c "$3" >>"$1"
