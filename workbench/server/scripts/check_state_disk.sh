# $1: the state directory. Prints key=value lines; "written" is "yes" or the system's reason. A block
# is written, because a full disk can still take an empty file.

if said=$(mktemp "$1/check.XXXXXX" 2>&1); then
    probe=$said
    said=$(head -c 4096 /dev/zero 2>&1 >"$probe") && said=yes
    rm -f -- "$probe"
fi
said=$(echo "$said" | tail -n 1)
echo "written=${said##*: }"
echo "free_kib=$(df -Pk -- "$1" 2>/dev/null | head -c 65536 | awk 'NR == 2 { print $4 }')"
