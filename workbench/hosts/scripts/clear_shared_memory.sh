# $1 run directory. Removes and prints the files of `shm` that still exist (same inode, owned by
# this user) and that no process has mapped or open.

[ -f "$1/shm" ] || exit 0
while read -r inode path; do
    { [ -f "$path" ] && [ -O "$path" ]; } || continue
    now=$(ls -i -- "$path") || continue
    now=${now#"${now%%[! ]*}"}
    [ "${now%% *}" = "$inode" ] || continue
    grep -qs " $inode  */dev/shm/" /proc/[0-9]*/maps && continue
    rm -f -- "$path" && printf '%s\n' "$path"
done <"$1/shm"
exit 0
