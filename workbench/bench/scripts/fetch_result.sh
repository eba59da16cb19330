# $1: the result's file, $2: process id of the client, $3: its name. Ends a client that has not
# noticed that its link is lost, and prints the result. Exit code 1: there is none.

tr '\0' ' ' <"/proc/$2/cmdline" 2>/dev/null | grep -qF "$3" && kill -s TERM "$2"
tries=0
until [ -f "$1" ]; do
    [ "$tries" -lt 20 ] && tr '\0' ' ' <"/proc/$2/cmdline" 2>/dev/null | grep -qF "$3" || exit 1
    tries=$((tries + 1))
    sleep 0.2 2>/dev/null || sleep 1
done
cat "$1" && rm -f "$1"
