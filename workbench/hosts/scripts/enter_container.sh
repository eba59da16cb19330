# What a container runs for each command, with $0 "workbench-TOKEN", by which end_in_container.sh
# finds the command. $1: the line that reads the order from stdin. The command gets a process group
# of its own: the programs of LXC leave it in that of their caller on the host, and
# end_with_stdin.sh ends its whole group.

_wb_line=$1
read -r _wb </proc/self/stat
set -f
set -- ${_wb##*) }
set +f
if [ "$3" = $$ ]; then eval "$_wb_line"; exit; fi
command -v setsid >/dev/null 2>&1 || { echo "@INSIDE@ setsid" >&2; exit 127; }
exec setsid sh -c "$_wb_line" "$0"
