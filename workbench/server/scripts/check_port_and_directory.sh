# $1 executable, $2 working directory, $3 model path, $4 port, $5 PATH (each but $1 and $4 may be
# empty). Prints key=value lines. Reads /proc/net/tcp, since `ss` is not installed everywhere. State
# 0A is LISTEN.

[ -n "$5" ] && PATH=$5
if [ -n "$2" ]; then cd -- "$2" 2>/dev/null || { echo "workdir=missing"; cd /; }; fi
found=$(command -v -- "$1" 2>/dev/null)
case $found in */*) [ -x "$found" ] && [ ! -d "$found" ] && echo "executable=$found" ;; esac
[ -e "$1" ] && echo "exists=$1"
echo "PATH=$PATH"
[ -n "$3" ] && [ ! -e "$3" ] && echo "model=missing"
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" { print "listens=" substr($2, length($2) - 3) }'
hex=$(printf ':%04X' "$4")
inode=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk -v port="$hex" '$4 == "0A" && substr($2, length($2) - 4) == port { print $10; exit }')
if [ -n "$inode" ]; then
    holder=
    # one program for all files: a host can have ten thousand. A second directory makes ls print names
    pid=$(ls -ln /proc/[0-9]*/fd /proc/self/fd 2>/dev/null | awk -v socket="socket:[$inode]" '
        /^\/proc\// { split($0, part, "/") }
        $NF == socket { print part[3]; exit }')
    if [ -n "$pid" ]; then
        holder="$pid $(tr '\0' ' ' < "/proc/$pid/cmdline" | head -c 200)"
    fi
    # a process whose files are hidden belongs to another user; one that has just ended is gone
    if [ -n "$holder" ] || cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v inode="$inode" '$10 == inode { found = 1 } END { exit !found }'; then
        echo "taken=$inode"
        [ -z "$holder" ] || echo "holder=$holder"
    fi
fi
exit 0
