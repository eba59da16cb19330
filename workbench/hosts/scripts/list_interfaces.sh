# Prints "net NAME STATE MTU SPEED KIND" and "rdma DEVICE INTERFACE STATE LINK_LAYER RATE…" with "-" for
# a value that the kernel does not report, then the JSON of `ip`.

word() { value=-; { IFS= read -r value <"$1"; } 2>/dev/null; [ -n "$value" ] || value=-; }
for dir in /sys/class/net/*; do
    [ -e "$dir/operstate" ] || continue
    word "$dir/operstate"; state=$value
    word "$dir/mtu"; mtu=$value
    word "$dir/speed"; speed=$value
    kind=-
    if [ -d "$dir/bridge" ]; then
        kind=inside
        for port in "$dir"/brif/*; do
            port=/sys/class/net/${port##*/}
            for real in "$port"/device "$port"/bonding "$port"/lower_*; do
                [ -e "$real" ] && kind=-
            done
        done
    fi
    echo "net ${dir##*/} $state $mtu $speed $kind"
done
for dir in /sys/class/infiniband/*/ports/*; do
    [ -e "$dir/state" ] || continue
    device=${dir%/ports/*}
    word "$dir/state"; state=$value
    word "$dir/rate"; rate=$value
    word "$dir/link_layer"; layer=$value
    word "$dir/gid_attrs/ndevs/0"; ndev=$value
    [ "$ndev" != - ] || for net in "$device"/device/net/*; do [ -e "$net" ] && ndev=${net##*/}; done
    echo "rdma ${device##*/} $ndev ${state##*: } $layer $rate"
done
ip -j addr
