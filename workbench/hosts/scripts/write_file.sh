# $1 path, $2 mode, $3 size: if stdin ends early (a lost link), the file stays as it was. `sync
# FILE` is fsync.

umask 077
dir=$(dirname -- "$1")
mkdir -p -- "$dir" || exit 1
new=$(mktemp "$dir/.new.XXXXXX") || exit 1
trap 'rm -f -- "$new"' EXIT
trap 'exit 1' HUP INT TERM PIPE
cat >"$new" || exit 1
[ "$(wc -c <"$new")" -eq "$3" ] || { echo "received only a part" >&2; exit 1; }
chmod "$2" "$new" || exit 1
sync "$new" 2>/dev/null || sync
mv -f -- "$new" "$1" || exit 1
sync "$dir" 2>/dev/null || sync
