# $1 run directory, then process ids. Adds to `shm`, as "inode path", each file directly under
# /dev/shm that they have mapped shared and writable, that this user owns, and that did not exist
# before the run: files that the run created, never a model that someone put there. By inode, since
# a semaphore is mapped under its first, temporary name.

dir=$1
shift
for pid in "$@"; do cat "/proc/$pid/maps" 2>/dev/null; done |
sed -n 's|^[^ ]* .w.s [^ ]* [^ ]* \([0-9]*\) */dev/shm/[^/]*$|\1|p' | sort -u | while read -r mapped; do
    ls -i /dev/shm | while read -r inode name; do
        path=/dev/shm/$name
        { [ "$inode" = "$mapped" ] && [ -f "$path" ] && [ -O "$path" ]; } || continue
        while read -r old rest; do [ "$old" = "$inode" ] && continue 2; done <"$dir/shm_before"
        grep -qsxF "$inode $path" "$dir/shm" || echo "$inode $path" >>"$dir/shm"
    done
done
exit 0
