# $1 path, $2 offset, $3 limit or "". Exit code 3: missing, 4: not a file, 5: no permission.

[ -e "$1" ] || exit 3
[ -d "$1" ] && exit 4
[ -r "$1" ] || exit 5
if [ -n "$3" ]; then tail -c "+$(($2 + 1))" <"$1" | head -c "$3"
elif [ "$2" = 0 ]; then cat <"$1"
else tail -c "+$(($2 + 1))" <"$1"
fi
