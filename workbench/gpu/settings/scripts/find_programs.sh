# $1: SECURE_PATH, then programs. For each file of that name a line with its path, and lines with
# uid, gid and mode in hex of all that decides what the path means: the file, each directory above
# it, each link and where that leads; "sudo" and whether it would ask, or "no"; what sudo lists.
# Listing runs nothing.

way() {
    printf 'on %s %s\n' "$(stat -c '%u %g %f' "$1")" "$1"
    [ "$1" != / ] || return
    (way "$(dirname "$1")")
    [ -L "$1" ] || return
    to=$(readlink "$1")
    case $to in /*) ;; *) to=$(dirname "$1")/$to ;; esac
    way "$to"
}
places=$PATH:$1
shift
set -f
IFS=:
for name; do
    for place in $places; do
        case $place in /*) found=$place/$name ;; *) continue ;; esac
        [ -f "$found" ] && [ -x "$found" ] || continue
        printf 'program %s %s\n' "$name" "$found"
        way "$found"
    done
done
command -v sudo >/dev/null 2>&1 || { echo "sudo no"; exit 0; }
rules=$(sudo -n -l </dev/null 2>&1) && sudo -n -v </dev/null >/dev/null 2>&1 && echo "sudo unasked" || echo "sudo asks"
printf '%s\n' "$rules"
