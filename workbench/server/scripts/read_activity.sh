# The arguments are process ids. Prints a line for each: id, bytes read and written, kernel function
# in which it waits, name, then its line of /proc without id and name. Columns are separated by tabs.

for pid; do
    stat=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
    io=$(awk '/^(rchar|wchar|read_bytes):/ { sum += $2 } END { printf "%.0f", sum }' "/proc/$pid/io" 2>/dev/null) || io=
    printf '%s\t%s\t%s\t%s\t%s\n' "$pid" "$io" "$(cat "/proc/$pid/wchan" 2>/dev/null)" \
        "$(cat "/proc/$pid/comm" 2>/dev/null)" "${stat##*) }"
done
exit 0
