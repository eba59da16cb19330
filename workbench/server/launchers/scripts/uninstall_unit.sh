# $1 scope, $2 unit, $3 directory with its environment. Removes an installed unit that Workbench has
# written, and prints the paths that it has removed; or prints why not, and ends with 1.

place_of_unit
if [ -e "$place/$unit" ]; then
    grep -qxF "$written" "$place/$unit" || { echo "Workbench did not write $place/$unit"; exit 1; }
    [ "$other" = "${user-}" ] || { echo "$place/$unit is the unit of ${other:-root}"; exit 1; }
    said=$($run systemctl "$mine" disable --now -- "$unit" 2>&1 && $run rm -f -- "$place/$unit" 2>&1) ||
        { printf '%s\n' "$said" | tail -n 1; exit 1; }
    $run systemctl "$mine" daemon-reload >/dev/null 2>&1
    echo "$place/$unit"
fi
[ ! -d "$home" ] || { rm -rf -- "$home" && echo "$home"; }
exit 0
