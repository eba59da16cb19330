# Reads and locks the journal of GPU settings on a host that has no python3. $1 says what to do, and
# $2 is the journal. No guard runs there, so no process of the host itself owns the lock.

link=$2.lock

# Prints "held OWNER", the link's age in seconds and the host's uptime.
name_owner() {
    made=$(stat -c %Y "$link") || exit 0
    echo "held $owner"
    echo $(($(date +%s) - made))
    read -r up _ </proc/uptime && echo "${up%.*}"
}

case $1 in
read)
    # $3: number of bytes, $4: "" to leave out the log. Prints two lines first: the boot id, and the
    # load of the driver's kernel module (process_facts.py). Exit code 3: no journal; 4: not a file.
    # A link is no file: the program on other hosts does not follow it either.
    cat /proc/sys/kernel/random/boot_id || echo
    stat -c %i "${WORKBENCH_SIM_SYSFS:-/sys}/module/nvidia" 2>/dev/null || echo
    [ ! -L "$2" ] || exit 4
    [ -e "$2" ] || exit 3
    [ -f "$2" ] || exit 4
    head -c 1 <"$2" >/dev/null || exit 1
    head -c "$3" <"$2" | if [ -n "$4" ]; then cat; else sed '/^ "log": \[/,$d'; fi
    ;;
lock)
    # $3: owner. Prints "ok", or the present owner. A file in the link's place is not Workbench's
    # and is renamed.
    umask 077
    mkdir -p -- "$(dirname -- "$2")" || exit 1
    # -n: a link to a directory is a lock as well
    ln -sn "$3" "$link" 2>/dev/null && { echo ok; exit 0; }
    if [ -e "$link" ] && [ ! -L "$link" ]; then mv -f -- "$link" "$link.bad.$$"; fi
    owner=$(readlink "$link") || { ln -sn "$3" "$link" && echo ok; exit $?; }
    name_owner
    ;;
holder)
    owner=$(readlink "$link") && name_owner
    ;;
unlock)
    # $3: owner. Removes the link only if it names that owner.
    [ "$(readlink "$link")" != "$3" ] || rm -f -- "$link"
    ;;
esac
