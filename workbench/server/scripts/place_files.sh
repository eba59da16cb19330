# $1 root, $2 staging directory, $3 "replace" to replace files; then names to move, "--", and pairs
# of a link and its target. A link that is there already stays.

root=$1 staging=$2 replace=$3
shift 3
while [ "$1" != -- ]; do
    mkdir -p -- "$(dirname -- "$root/$1")" || exit
    if [ -e "$root/$1" ] && [ -z "$replace" ]; then echo "$root/$1 has appeared meanwhile" >&2; exit 1; fi
    mv -f -- "$staging/$1" "$root/$1" || exit
    shift
done
shift
while [ $# -gt 1 ]; do
    mkdir -p -- "$(dirname -- "$root/$1")" || exit
    [ -e "$root/$1" ] || ln -sf -- "$2" "$root/$1" || exit
    shift 2
done
[ -d "$staging" ] && find "$staging" -depth -type d -exec rmdir {} \; 2>/dev/null
exit 0
