# Defines `find_image` and the functions that tell whether an image is on the host. $wb_no_image: the
# answers which say that it is not, as an extended regular expression.

# Asks for the image $1. Returns 1 if it is not here, 2 if the program does not say so: wb_why has what it says then.
known() {
    wb_form='{{.Id}} {{.Os}}/{{.Architecture}}{{range .RepoDigests}} {{.}}{{end}}'
    [ "$wb_program" != podman ] || wb_form='{{.Id}} {{.Os}}/{{.Architecture}} {{.Digest}}'
    wb_found=$("$wb_program" image inspect --format "$wb_form" "$1" 2>"$wb_dir/answer") && return
    wb_why="exit code $?"
    grep -qiE "$wb_no_image" "$wb_dir/answer" && return 1
    [ "${wb_why#exit code }" -le 128 ] || wb_why="it was ended by signal $((${wb_why#exit code } - 128))"
    wb_said=$(grep . "$wb_dir/answer" | tail -n 1)
    [ -z "$wb_said" ] || wb_why="$wb_why: $wb_said"
    return 2
}

# Asks for the image under each of the names, up to three times. Returns 1 if it is not here.
ask_image() {
    for wb_try in 1 2 3; do
        for wb_name; do
            known "$wb_name"
            wb_known=$?
            [ "$wb_known" -eq 1 ] || break
        done
        [ "$wb_known" -eq 2 ] || return "$wb_known"
        [ "$wb_try" -eq 3 ] || sleep 1
    done
    fail "$wb_program image inspect does not say whether $wb_named is on this host ($wb_why), so nothing was pulled"
}

# Finds or pulls the image, and pins it: wb_id is what runs, wb_image its name with its digest.
pin() {
    wb_found=
    if [ "$wb_pull" = always ] || ! ask_image "$wb_named" "$wb_source"; then
        [ "$wb_pull" != never ] ||
            fail "the image $wb_named is not on this host, and the option pull=never does not allow to pull it"
        pull || fail "the image $wb_source could not be pulled"
        ask_image "$wb_source" || fail "$wb_program has no image $wb_source after it has pulled it"
    fi
    set -- $wb_found
    wb_id=$1 wb_digest=${3:-$1}
    wb_digest=sha256:${wb_digest##*sha256:}
    case $wb_named in *@*) wb_digest=${wb_named##*@} ;; esac
    if [ -z "$wb_platform" ] && [ -n "$wb_machine" ] && [ "${2#*/}" != "$wb_machine" ]; then
        fail "the image $wb_named is for $2, and this host is linux/$wb_machine"
    fi
    wb_image=${wb_named%%@*}@$wb_digest
    wb_before=$(cat "$wb_dir"/../*/launched 2>/dev/null | WB_START="image ${wb_named%%@*}@" awk '
        index($0, ENVIRON["WB_START"]) == 1 { last = substr($0, length(ENVIRON["WB_START"]) + 1) }
        END { print last }')
    if [ -n "$wb_before" ] && [ "$wb_before" != "$wb_digest" ]; then
        say "the image ${wb_named%%@*} has changed: it is $wb_digest, and was $wb_before at its last start here"
    fi
    report
}
