"""The POSIX shell code that finds the image of a container on its host, and pulls it with progress.
It is a part of the scripts in container_scripts.py."""

from __future__ import annotations

# An answer of docker or podman which says that an image is not here, as an extended regular
# expression.
NO_IMAGE_PATTERN = "no such (image|object)|image not known|unable to find|failed to find image"

# Where podman keeps what it pulls until the layers are unpacked; $1 of a script is the run id.
PULL_DIRECTORY_SCRIPT = r"""
wb_tmp=${TMPDIR:-/var/tmp}/workbench-pull-$1
"""

# Prints how much of an image is here. $1 KiB in the directory of a pull, then the files `layers`
# ("BYTES DIGEST" lines) and `pull` (the output of docker or podman, which without a terminal name
# layers, but no bytes).
PROGRESS_SCRIPT = r"""
function unit(bytes) { return sprintf(total >= 1e9 || bytes >= 1e9 ? "%.1f" : "%.0f", bytes / scale()) }
function scale() { return total >= 1e9 || done >= 1e9 ? 1e9 : 1e6 }
function name() { return scale() == 1e9 ? "GB" : "MB" }
FILENAME == ARGV[1] {
    id = substr($2, 8, 12)
    if (!(id in size)) { size[id] = $1; total += $1 }
    next
}
/^Digest:|config/ { next }
{
    for (i = 1; i <= NF; i++) {
        word = $i
        sub(/^sha256:/, "", word)
        sub(/:$/, "", word)
        if (length(word) < 12 || word ~ /[^0-9a-f]/) continue
        id = substr(word, 1, 12)
        if (!(id in seen)) { seen[id] = 1; layers++ }
        if ($0 ~ /(Download|Pull) complete|exists/ && !(id in here)) { here[id] = 1; count++; done += size[id] }
    }
}
END {
    if (kib > 8) done += kib * 1024
    if (total && done >= total) printf "unpacking %s %s", unit(total), name()
    else if (total) printf "pulling %s of %s %s", unit(done), unit(total), name()
    else if (done) printf "pulling, %s %s so far", unit(done), name()
    else if (layers) printf "pulling, %d of %d layers", count, layers
    else printf "pulling the image"
}
"""

PULL_SCRIPT = (
    r"""
# podman 4 refuses the manifest of a single image, and quotes it in its error.
manifest() {
    $wb_timeout "$wb_program" manifest inspect "$1" >"$wb_dir/manifest" 2>&1 &
    echo $! >"$wb_dir/asking"
    wait $!
    tr -d ' \t\r\n\\' <"$wb_dir/manifest"
}

# Ends `layers`, which may wait for a registry that does not answer.
forget() {
    kill "$wb_sizes"
    { read -r wb_asking <"$wb_dir/asking" && kill "$wb_asking"; }
    rm -f "$wb_dir/asking" "$wb_dir/manifest"
} 2>/dev/null

# Prints "BYTES DIGEST" for each layer of the image that this machine pulls.
layers() {
    wb_timeout=
    command -v timeout >/dev/null && wb_timeout='timeout 30'
    wb_found=$(manifest "$wb_source")
    case $wb_found in
        *'"manifests":['*)
            wb_own=$(printf '%s' "$wb_found" | grep -oE '"digest":"[a-z0-9:]+"|"architecture":"[a-z0-9]+"' |
                WB_WANT="\"architecture\":\"$wb_machine\"" awk '
                    /digest/ { digest = substr($0, 11, length($0) - 11) }
                    $0 == ENVIRON["WB_WANT"] { print digest; exit }')
            wb_repository=${wb_source%@*}
            case ${wb_repository##*/} in *:*) wb_repository=${wb_repository%:*} ;; esac
            wb_found=$(manifest "$wb_repository@$wb_own")
            ;;
    esac
    printf '%s' "$wb_found" | tr '{' '\n' | awk '{
        digest = bytes = ""
        if (match($0, /"digest":"sha256:[0-9a-f]+/)) digest = substr($0, RSTART + 10, RLENGTH - 10)
        if (match($0, /"size":[0-9]+/)) bytes = substr($0, RSTART + 7, RLENGTH - 7)
        if (digest != "" && bytes != "") print bytes, digest
    }'
}

progress() {
    wb_kib=$(du -sk "$wb_tmp" 2>/dev/null | { read -r wb_kib wb_rest && echo "$wb_kib"; })
    awk -v kib="${wb_kib:-0}" "$wb_progress" "$wb_dir/layers" "$wb_dir/pull"
}

pull() {
    wb_state='pulling the image' wb_child= wb_sizes=
    report
    : >"$wb_dir/layers"
    trap 'kill $wb_child 2>/dev/null; forget; rm -rf "$wb_tmp"; exit 143' TERM INT HUP
    mkdir -m 700 "$wb_tmp" 2>/dev/null || wb_tmp=
    TMPDIR=$wb_tmp "$wb_program" pull ${wb_platform:+--platform "$wb_platform"} "$wb_source" >"$wb_dir/pull" 2>&1 &
    wb_child=$!
    { layers >"$wb_dir/layers.new" && mv -f "$wb_dir/layers.new" "$wb_dir/layers"; } 2>/dev/null &
    wb_sizes=$!
    while kill -0 "$wb_child" 2>/dev/null; do
        wb_state=$(progress)
        report
        sleep 1
    done
    wait "$wb_child"
    wb_code=$?
    forget
    trap - TERM INT HUP
    cat "$wb_dir/pull"
    [ -z "$wb_tmp" ] || rm -rf "$wb_tmp"
    rm -f "$wb_dir/pull" "$wb_dir/layers" "$wb_dir/layers.new"
    return "$wb_code"
}
"""
    f"wb_progress='{PROGRESS_SCRIPT}'\n"
)

FIND_IMAGE_SCRIPT = (
    f"wb_no_image='{NO_IMAGE_PATTERN}'\n"
    + r"""
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
"""
)
