# $1 TOKEN of a command in a container (enter_container.sh). Ends the process group of that command.
# It looks several times: a container's runtime may start a command after the program that asked for
# it was killed.

for pause in 1 2 0; do
    for file in $(grep -ls "[w]orkbench-$1" /proc/[0-9]*/cmdline); do
        pid=${file#/proc/} pid=${pid%/cmdline}
        kill -s KILL -- "-$pid" || kill -s KILL "$pid"
    done
    sleep "$pause"
done 2>/dev/null
exit 0
