# $1 parent of run directories, then names. Removes those that are directories marked as ended, and
# prints them.

cd -- "$1" || exit
shift
for name in "$@"; do
    case $name in */*|.*) continue ;; esac
    [ -L "$name" ] || ! [ -f "$name/ended" ] && continue
    rm -rf -- "./$name" && echo "$name"
done
exit 0
