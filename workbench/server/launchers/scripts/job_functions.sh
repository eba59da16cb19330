# The parts of the keeper that all schedulers share. `say` replaces the file `launched` if its text
# has changed.

job= phase= state= host= left= limit= code= why= shown=
node= gpus= restarts= pid= began_unix_s= ends_unix_s= exit_code= ended=
say() {
    text="state $state"
    [ -z "$job" ] || text="handle $job
$text"
    for key in node gpus restarts pid began_unix_s ends_unix_s exit_code ended; do
        eval "value=\$$key"
        [ -z "$value" ] || text="$text
$key $value"
    done
    [ "$text" = "$shown" ] && return
    shown=$text
    (umask 077; printf '%s\n' "$text" >launched.new) && mv -f launched.new launched
}

# Prints $1 if it is a whole number of at most 11 digits, as times are: dash ends at longer ones in $(( )).
whole() {
    case $1 in '' | *[!0-9]* | ????????????*) ;; *) printf '%s\n' "$1" ;; esac
}

# Prints a duration such as 1-02:03:04 or 02:03 in seconds; nothing if $1 is none.
seconds() {
    printf '%s\n' "$1" | awk '/^([0-9]+-)?[0-9]+(:[0-9]+)*$/ {
        days = 0
        if (split($0, part, "-") == 2) { days = part[1]; $0 = part[2] }
        n = split($0, word, ":")
        sum = 0
        for (i = 1; i <= n; i++) sum = sum * 60 + word[i]
        if (n == 2 && days) sum *= 60
        sum += days * 86400
        if (sum < 10000000000) printf "%.0f\n", sum
    }'
}

# Prints a line that exports the variable $1 with its value, quoted for a shell.
exported() {
    eval "value=\$$1"
    printf "export %s='" "$1"
    printf '%s\n' "$value" | sed "s/'/'\\\\''/g; \$s/\$/'/"
}

# Reads what the job has written about its node, and computes when its time is over. Both `left` and the clock are in
# whole seconds, so an end that has moved by a few seconds is the same. The node may be this host.
learn() {
    if [ -r "$of/job.began" ]; then
        while read -r key value; do
            case $key in
                node | gpus) eval "its_$key=\$value" ;;
                pid | restarts | began) eval "its_$key=\$(whole \"\$value\")" ;;
            esac
        done <"$of/job.began"
    fi
    node= gpus= pid=
    [ "$phase" = running ] || { began_unix_s= ends_unix_s=; return; }
    gpus=${its_gpus-}
    [ "${its_restarts:-0}" = 0 ] || restarts=$its_restarts
    if [ "${its_node:-$host}" = "$(uname -n)" ]; then pid=${its_pid-}; else node=${host:-${its_node-}}; fi
    began_unix_s=${its_began:-${began_unix_s:-$(date +%s)}}
    over=
    if [ -n "$left" ]; then over=$(($(date +%s) + left))
    elif [ -n "$limit" ]; then over=$((began_unix_s + limit))
    fi
    if [ -z "$over" ] || [ -z "$ends_unix_s" ] ||
        [ "$((over - ends_unix_s))" -gt 5 ] || [ "$((ends_unix_s - over))" -gt 5 ]; then
        ends_unix_s=$over
    fi
}

# $1: the file for the output of the job, as the scheduler names it. A job of Workbench has its log beside it.
placed() {
    of=${1%/*} out=$1 log=${1%/*}/job.log
    [ "${1##*/}" = job.out ] || { of=$dir out= log=$1; }
}

# Copies what is new in the file $1, of which `at` bytes have been copied. The file is opened each time, because only
# that makes a client of NFS ask for its size.
copy() {
    [ -r "$1" ] || return 1
    size=$(wc -c <"$1") || return 1
    [ "$size" -ge "$at" ] || at=0
    [ "$size" -gt "$at" ] || return 1
    tail -c "+$((at + 1))" <"$1" | head -c "$((size - at))"
    at=$size
}
