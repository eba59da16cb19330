# $1 folder of the model in the hub's cache ("" if it needs none), $2 HF_HUB_CACHE, $3 HF_HOME (each
# may be ""). Prints key=value lines. The directory that exists above the cache tells the file system.
# `timeout` guards a file system over the network.

limit=$(command -v timeout) && limit="$limit -s KILL 1"
echo "hub=$hub"
if [ -n "$1" ] && [ -d "$hub/$1/snapshots" ]; then
    set -- "$1" "$hub/$1/blobs"/*.incomplete
    [ -e "$2" ] || echo cached=yes
fi
while [ ! -d "$hub" ] && [ "${hub#/*/}" != "$hub" ]; do hub=${hub%/*}; done
echo "free=$($limit df -Pk "$hub" 2>/dev/null | head -c 65536 | awk 'NR == 2 { print $4 }')"
