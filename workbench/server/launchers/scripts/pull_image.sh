# Defines the functions that pull an image and report how much of it is here.
# @PROGRESS_SCRIPT@: the awk program pull_progress.awk.

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
wb_progress='@PROGRESS_SCRIPT@'
