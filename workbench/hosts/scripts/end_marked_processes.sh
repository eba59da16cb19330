# $1: a word. Ends every process whose environment has it, also those that such a process starts
# meanwhile.

mark=$1
for try in 1 2 3 4 5 6 7 8 9; do
    left=
    for file in $(grep -als "WORKBENCH_SWEPT=$mark" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        kill -s KILL "${pid%/environ}" && left=yes
    done
    [ -n "$left" ] || break
done 2>/dev/null
