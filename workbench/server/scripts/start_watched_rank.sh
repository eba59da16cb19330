# $1 run directory, $2 watch_rank.sh, then the server's command, which becomes this process. The
# watch is no child of it.

dir=$1 watch=$2
shift 2
if command -v python3 >/dev/null 2>&1; then
    (sh -c "$watch" sh "$dir" $$ &)
else
    echo "workbench: python3 is missing on this node: if a rank ends while no Workbench is open, the others keep" \
        "running"
fi
exec "$@"
