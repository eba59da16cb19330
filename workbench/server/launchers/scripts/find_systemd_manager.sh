# Sets $run, the words before systemctl and its relatives, and $mine, their option. $scope is
# "user", "system", or "own" for the system without sudo.
# shellcheck disable=SC2155 # id does not fail

case $scope in
    user)
        run= mine=--user
        if [ -z "${XDG_RUNTIME_DIR-}" ] && [ -d "/run/user/$(id -u)" ]; then
            export XDG_RUNTIME_DIR="/run/user/$(id -u)"
        fi ;;
    own) run= mine=--system ;;
    *)
        run= mine=--system
        [ "$(id -u)" = 0 ] || run='sudo -n' ;;
esac
