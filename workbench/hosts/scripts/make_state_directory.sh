# Prints the absolute path of the state directory, created with mode 0700 if it is missing.

case ${XDG_STATE_HOME-} in
    /*) base=$XDG_STATE_HOME ;;
    *) base=${HOME%/}/.local/state ;;
esac
umask 077
mkdir -p -- "$base/workbench" && printf '%s\n' "$base/workbench"
