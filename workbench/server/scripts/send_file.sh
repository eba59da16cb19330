# $1 file, $2 bytes to skip, $3 bytes to print, $4 directory that must contain the file; "" if links
# may lead out of it. The file that is open is examined, and not its name, which another user may
# turn into a link meanwhile.

exec <"$1" || exit
if [ -n "$4" ]; then
    case $(readlink /proc/self/fd/0) in
        "$(cd -- "$4" && pwd -P)"/*) ;;
        *) echo "$1 has become a link that leads out of $4" >&2; exit 5 ;;
    esac
fi
tail -c +"$(($2 + 1))" | head -c "$3"
