# $1 HF_HUB_CACHE, $2 HF_HOME (may be ""), $3 the only model to show ("" for all, without hashes),
# $4 KiB of a small file; the others are directories with models, directories of models, or GGUF
# files. Prints key=value lines; "copy=" begins a copy.

only=$3 small=$4
shift 4
files() { find -L . -name '.?*' -prune -o "$@"; }
# $1: a directory; the others are files. Prints those whose bytes are outside of it, and those that are links inside.
outside='root=$1
shift
for file do
    real=$(realpath "$file")
    name=${file#./}
    [ "$name" != "$file" ] || name=${file##*/}
    case $real in
        "$root/$name") ;;
        "$root"/*) printf "real=%s\nlink=%s\n" "${real#"$root"/}" "$name" ;;
        *) printf "outside=%s\n" "$file" ;;
    esac
done'
# Prints the names that are its arguments, with "?" in place of each control character.
control='for name do
    printf "control=%s\n" "$(printf %s "$name" | tr "[:cntrl:]" "?")"
done'
show() {
    [ -z "$only" ] || [ "$2" = "$only" ] || [ "$4" = "$only" ] || [ "${4##*/}" = "${only##*/}" ] || return 0
    printf 'copy=%s\nmodel=%s\nrevision=%s\npath=%s\n' "$1" "$2" "$3" "$4"
    if [ -f "$4" ]; then
        case $4 in
            *-00001-of-*.gguf) set -- "${4%-00001-of-*}"-*-of-"${4##*-of-}" ;;
            *) set -- "$4" ;;
        esac
        for file do printf 'file=%s %s\n' "$(stat -L -c '%s %Y' -- "$file")" "${file##*/}"; done
        [ -z "$only" ] || sh -c "$outside" sh "$(cd -- "${1%/*}" && pwd -P)" "$@"
        return
    fi
    (
        cd -- "$4" || exit
        files -type f -exec stat -L -c 'file=%s %Y %n' {} +
        files -type l -print | sed 's/^/broken=/'
        files -name '*[[:cntrl:]]*' -exec sh -c "$control" sh {} +
        for index in *.safetensors.index.json; do
            [ -f "$index" ] || continue
            head -c 33554432 -- "$index" | grep -o '"[^"/]*\.safetensors"' | tr -d '"' | sort -u | sed 's/^/listed=/'
            head -c 65536 -- "$index" | tr -d ' \n' | sed -n 's/.*"total_size":\([0-9]*\).*/total=\1/p'
            echo
        done
        [ -n "$only" ] || exit
        files -type f -size "-$((small + 1))k" -exec sha256sum {} + | sed 's/^/sha=/'
        root=$(pwd -P)
        [ "$1" != 'hub cache' ] || root=${root%/snapshots/*}
        files -type f -exec sh -c "$outside" sh "${root%/}" {} +
        [ "$1" = 'hub cache' ] || exit
        find . -type l -exec sh -c 'for l do printf "blob=%s %s\n" "$(readlink "$l")" "$l"; done' sh {} +
    )
}
look() {
    if [ -f "$1" ]; then
        case $1 in
            *-00001-of-*.gguf) show file "$2" '' "$1" ;;
            *-[0-9][0-9][0-9][0-9][0-9]-of-*.gguf) ;;
            *.gguf) show file "$2" '' "$1" ;;
        esac
        return
    fi
    for weights in "$1"/config.json "$1"/*.safetensors; do
        [ -f "$weights" ] && { show directory "${2:-${1##*/}}" '' "$1"; return; }
    done
    for weights in "$1"/*.gguf; do [ -f "$weights" ] && look "$weights" "${2:+$2/}${weights##*/}"; done
    [ "$3" -gt 0 ] || return
    for inner in "$1"/*/; do
        inner=${inner%/}
        [ -d "$inner" ] && look "$inner" "${2:+$2/}${inner##*/}" "$(($3 - 1))"
    done
}
for folder in "$hub"/models--*/; do
    [ -d "$folder" ] || continue
    model=${folder#"$hub"/models--}
    model=$(printf %s "${model%/}" | sed 's,--,/,g')
    for snapshot in "$folder"snapshots/*/; do
        snapshot=${snapshot%/}
        [ -d "$snapshot" ] || continue
        shown=$(show 'hub cache' "$model" "${snapshot##*/}" "$snapshot")
        [ -n "$shown" ] || continue
        printf '%s\n' "$shown"
        for ref in "$folder"refs/*; do
            [ -f "$ref" ] && [ "$(cat -- "$ref")" = "${snapshot##*/}" ] && echo "ref=${ref##*/}"
        done
        for part in "$folder"blobs/*.incomplete; do
            [ -f "$part" ] && echo "unfinished=$(stat -c %s -- "$part")"
        done
    done
done
for place do
    case $place in "~"/*) place=$HOME/${place#"~"/} ;; esac
    place=${place%/}
    name=
    [ -f "$place" ] && name=${place##*/}
    look "$place" "$name" 2
done
exit 0
