# `own_container`: prints the id of the container of run $2; $1 program, $3 run directory. The file
# `container` there has the id, because others can make a container with the same name and label: a
# clone, or one that replaces it. Without the file, only a container that has never run counts:
# docker and podman write it before they start one. `foreign_container`: prints the id of another
# container that has the name of the run's.

noted() {
    wb_noted=
    read -r wb_noted <"$1/container" || :
} 2>/dev/null

own_container() {
    noted "$3"
    if [ -n "$wb_noted" ]; then
        set -- "$1" --filter "id=$wb_noted"
    else
        set -- "$1" --filter "label=workbench.run=$2" --filter "name=^workbench-$2\$" --filter status=created
    fi
    wb_ps=$1
    shift
    "$wb_ps" ps --all --no-trunc --quiet "$@"
}

foreign_container() {
    noted "$3"
    wb_named=$("$1" ps --all --no-trunc --quiet --filter "name=^workbench-$2\$")
    [ -z "$wb_named" ] || [ "$wb_named" = "$wb_noted" ] || printf '%s\n' "$wb_named"
}
