# $1 run directory, $2 process id of the server. A watch that was killed is started again.

dir=$1 server=$2
trap '' TERM INT HUP
while python3 -I -S "$dir/rank_watch.py" "$dir" "$server"; [ "$?" -gt 128 ] && kill -0 "$server" 2>/dev/null; do
    sleep 1
done
