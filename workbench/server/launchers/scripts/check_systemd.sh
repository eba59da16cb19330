# $1 scope, $2 unit. Prints user=NAME, version=N, problem=TEXT, active=yes if the unit runs,
# journal=TEXT and linger=yes|no, as far as they are known.

echo "user=$(id -un)"
command -v systemd-run >/dev/null 2>&1 && command -v journalctl >/dev/null 2>&1 || exit 0
echo "version=$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')"
if [ "$scope" = own ] && [ "$(id -u)" != 0 ]; then
    echo "problem=hosts.toml says sudo = false for this host"
    exit 0
fi
said=$($run systemctl "$mine" show --property=Version 2>&1) || { echo "problem=$(echo "$said" | tail -n 1)"; exit 0; }
$run systemctl "$mine" --quiet is-active -- "$unit" && echo active=yes
said=$(journalctl --quiet -n 0 2>&1) || { echo "journal=$(echo "$said" | tail -n 1)"; exit 0; }
if [ -e "/var/lib/systemd/linger/$(id -un)" ] || [ "$(id -u)" = 0 ]; then echo linger=yes; else echo linger=no; fi
