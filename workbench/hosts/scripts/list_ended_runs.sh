# $1 parent of run directories. Prints "now UNIX_S", "run NAME READ TEXT" for each that is marked as
# ended, and "KIB NAME" with the size of each. READ is "read" or "unread". A link is left out.

cd -- "$1" 2>/dev/null || exit 0
echo "now $(date +%s)"
set --
for dir in */; do
    dir=${dir%/} text=
    [ -L "$dir" ] || ! [ -f "$dir/ended" ] && continue
    { read -r text <"$dir/ended"; } 2>/dev/null
    [ -e "$dir/read" ] && read="read" || read=unread
    echo "run $dir $read $text"
    set -- "$@" "./$dir"
    [ $# -lt 1000 ] || { du -sk -- "$@"; set --; }
done
[ $# -eq 0 ] || du -sk -- "$@"
exit 0
