# In place of run_order.sh in a container. The shell stays, and reports the command's exit code on
# stderr after @INSIDE@: the programs that enter containers have exit codes of their own, and some
# cannot be told from the command's. A container may be entered without HOME.

unset _wb _wb_nl _wb_line
_wb_guard=$1
shift
if [ -z "${HOME-}" ]; then
    HOME=$(sed -n "s/^[^:]*:[^:]*:$(id -u):[^:]*:[^:]*:\([^:]*\):.*/\1/p" /etc/passwd 2>/dev/null | head -n 1)
    export HOME="${HOME:-/}"
fi
case $1 in
    */*) if [ ! -f "$1" ] || [ ! -x "$1" ]; then echo "@INSIDE@ missing" >&2; exit 127; fi ;;
    *) command -v "$1" >/dev/null 2>&1 || { echo "@INSIDE@ missing" >&2; exit 127; } ;;
esac
echo "@INSIDE@"
echo "@INSIDE@ $$" >&2
trap : TERM INT HUP
if [ -n "$_wb_guard" ]; then (exec sh -c "$_wb_guard" sh "$@"); else (exec "$@"); fi
_wb=$?
printf '\n%s exit %s\n' "@INSIDE@" "$_wb" >&2
exit "$_wb"
