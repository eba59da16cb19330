# $1 root, $2 staging directory; the others are names below both. Prints "have" and "staged" with
# sizes, and free space.

root=$1 staging=$2
shift 2
for name do
    [ -e "$root/$name" ] && printf 'have=%s %s\n' "$(stat -L -c %s -- "$root/$name")" "$name"
    [ -f "$staging/$name" ] && printf 'staged=%s %s\n' "$(stat -c %s -- "$staging/$name")" "$name"
done
while [ ! -d "$root" ] && [ "${root#/*/}" != "$root" ]; do root=${root%/*}; done
[ -d "$root" ] || root=/
echo "free=$(df -Pk -- "$root" | head -c 65536 | awk 'NR == 2 { print $4 }')"
[ -w "$root" ] || echo "closed=$root"
exit 0
