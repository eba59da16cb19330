# Sets $place, the directory of installed units, $user, whom the unit runs as if it is not the
# caller, and $other, whom the present unit names.

place_of_unit() {
    case $scope in
        user) place=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user ;;
        *) place=/etc/systemd/system ;;
    esac
    user=
    [ -z "$run" ] || user=$(id -un)
    other=$(sed -n '/^\[Service\]$/{n;s/^User=//p;q;}' "$place/$unit" 2>/dev/null)  # as the keeper writes it
}
