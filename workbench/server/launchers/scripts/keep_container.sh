# The main part of the keeper of a container: starts or finds it, follows it, and records its end.

if [ "$wb_mode" = start ]; then
    wb_named=$1 wb_source=$2 wb_pull=$3 wb_platform=$4 wb_hub=$5 wb_left=$6
    shift 6
    pin
    wb_rest=$(($# - wb_left - 1))
    while [ "$wb_left" -gt 0 ]; do # the words are turned in a circle: each goes to the end
        if [ -e "$1" ]; then
            case $1 in
                *:*) set -- "$@" --mount "type=bind,source=$1,target=$1,readonly" ;;
                *) set -- "$@" --volume "$1:$1:ro" ;;
            esac
        fi
        shift
        wb_left=$((wb_left - 1))
    done
    wb_left=$1
    shift
    wb_rest=$((wb_rest - wb_left))
    while [ "$wb_left" -gt 0 ]; do
        set -- "$@" "$1"
        shift
        wb_left=$((wb_left - 1))
    done
    if [ -n "$wb_hub" ]; then
        wb_cache=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
        mkdir -p "$wb_cache"
        set -- "$@" --volume "$wb_cache:$wb_hub"
    fi
    set -- "$@" "$wb_id"
    while [ "$wb_rest" -gt 0 ]; do
        set -- "$@" "$1"
        shift
        wb_rest=$((wb_rest - 1))
    done
    wb_state='starting the container'
    report
    "$wb_program" run --cidfile "$wb_dir/container" "$@" >/dev/null 2>"$wb_dir/answer"
    wb_code=$?
    cat "$wb_dir/answer"
    if [ "$wb_code" -ne 0 ]; then
        identify && discard
        sweep
        wb_why=$(grep -i -m 1 error "$wb_dir/answer") || wb_why="exit code $wb_code"
        fail "$wb_program run: $wb_why" "$wb_code"
    fi
elif [ -r "$wb_dir/launched" ]; then
    while read -r wb_key wb_value; do
        case $wb_key in
            image) wb_image=$wb_value ;;
            pid) wb_pid=$wb_value ;;
            start) wb_start=$wb_value ;;
            began_unix_s) wb_began_unix_s=$wb_value ;;
        esac
    done <"$wb_dir/launched"
    [ -n "$wb_start" ] || wb_pid=
fi
rm -rf "$wb_tmp"
keep
