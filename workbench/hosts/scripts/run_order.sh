# SshHost wraps every command in this. $1: the code of end_with_stdin.sh or "", then the command.
# @MARK@ goes to both outputs, to separate the output of a .bashrc from that of the command. On
# stderr, the process id follows it, or "missing" if there is no such command.

unset _wb _wb_nl
_wb_guard=$1
shift
case $1 in
    */*) if [ ! -f "$1" ] || [ ! -x "$1" ]; then echo "@MARK@ missing" >&2; exit 127; fi ;;
    *) command -v "$1" >/dev/null 2>&1 || { echo "@MARK@ missing" >&2; exit 127; } ;;
esac
echo "@MARK@"
echo "@MARK@ $$" >&2
[ -z "$_wb_guard" ] || exec sh -c "$_wb_guard" sh "$@"
exec "$@"
