"""The copies of models on a host: in the cache of the Hugging Face hub, in directories, and single
GGUF files. One script lists the copies. Another script computes hashes of whole files, and stores
them on the host until the files change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from workbench.hosts.base import Host
from workbench.hosts.shell_scripts import key_value_pairs, shell_argv
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_copy import DIRECTORY, FILE, HUB, ModelCopy, ModelFile
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.hub_cache import find_hub, hub_variables

LIST_TIMEOUT_S = 60.0  # a cache on a network file system is slow
HASHES_FILE = (
    "model-hashes"  # in the state directory: lines of sha256, size, time of modification, path
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
# of a file that is hashed whenever its model is looked at: index, configuration, tokenizer
_SMALL_FILE_KIB = 32 * 1024

# $1 HF_HUB_CACHE, $2 HF_HOME (may be ""), $3 the only model to show ("" for all, without hashes),
# $4 KiB of a small file; the others are directories with models, directories of models, or GGUF
# files. Prints key=value lines; "copy=" begins a copy.
_LIST_COPIES_SCRIPT = (
    find_hub(1)
    + r"""
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
"""
)
# $@: safetensors files. Prints the size that each header says: its own length, and the end of its
# last tensor.
_WHOLE_SIZE_SCRIPT = r"""
for file do
    length=$(od -An -v -tu8 -N8 -- "$file" | tr -d ' ')
    case $length in ''|*[!0-9]*|?????????*) printf 'whole=0 %s\n' "$file"; continue ;; esac
    end=$(tail -c +9 -- "$file" | head -c "$length" | tr -d ' \n' | grep -ao '"data_offsets":\[[0-9]*,[0-9]*' |
        sed 's/.*,//' | sort -n | tail -n 1)
    printf 'whole=%s %s\n' $((8 + length + ${end:-0})) "$file"
done
exit 0
"""
# $1: the file with known hashes; the others are files. Prints a line for each file as soon as its
# hash is known.
_HASH_FILES_SCRIPT = r"""
known=$1
shift
for file do
    about=$(stat -L -c '%s %Y' -- "$file") || { printf 'failed %s\n' "$file"; continue; }
    sum=$(WB_LINE="$about $file" awk 'substr($0, 66) == ENVIRON["WB_LINE"] { print $1; exit }' "$known" 2>/dev/null)
    if [ -z "$sum" ]; then
        sum=$(sha256sum <"$file") || { printf 'failed %s\n' "$file"; continue; }
        sum=${sum%% *}
        [ "$(stat -L -c '%s %Y' -- "$file")" = "$about" ] && printf '%s %s %s\n' "$sum" "$about" "$file" >>"$known"
    fi
    printf '%s %s\n' "$sum" "$file"
done
"""


@dataclass(frozen=True, slots=True)
class SearchPlaces:
    """The places to search for models on a host. `env` is the environment of its servers, which
    names the hub's cache. `paths` are further directories or files."""

    env: Mapping[str, str]
    paths: tuple[str, ...] = ()


async def find_copies(host: Host, places: SearchPlaces, model: str = "") -> Sequence[ModelCopy]:
    """Return the model copies on a host: all, or those of `model`, which is a hub id, a path, or
    the last part of either. If `model` is given, the small files are hashed and symbolic links to
    files outside the copy are listed. Raises HostError if the host cannot list them."""
    hub = hub_variables(places.env)
    paths = dict.fromkeys((*places.paths, *([model] if model.startswith(("/", "~/")) else [])))
    done = await host.run(
        shell_argv(_LIST_COPIES_SCRIPT, *hub, model, str(_SMALL_FILE_KIB), *paths),
        timeout_s=LIST_TIMEOUT_S,
        check=True,
    )
    found = {copy.path: copy for copy in _parse_copies(done.out, host.name)}
    return tuple(found.values())


def _parse_copies(output: str, host: str) -> Iterable[ModelCopy]:
    block: list[tuple[str, str]] = []
    for key, value in (*key_value_pairs(output), ("copy", "")):
        if key == "copy":
            if block:
                yield _parse_copy(block, host)
            block = []
        block.append((key, value))


def _parse_copy(block: Sequence[tuple[str, str]], host: str) -> ModelCopy:
    def all_of(key: str) -> list[str]:
        return [value for name, value in block if name == key]

    one = dict(reversed(block))
    shas = {
        name.lstrip(" *"): digest
        for digest, _, name in (value.partition(" ") for value in all_of("sha"))
    }
    blobs = {
        name: target.rpartition("/")[2]
        for target, _, name in (value.partition(" ") for value in all_of("blob"))
    }
    links = dict(zip(all_of("link"), all_of("real"), strict=False))
    files = []
    rows = [value.split(" ", 2) for value in all_of("file")]
    for size, modified, name in (row for row in rows if len(row) == 3):
        bytes_, changed = parse_whole_number(size), parse_whole_number(modified, 11)
        if bytes_ is not None and changed is not None:
            real = links.get(_name_without_quotes(name))
            files.append(
                ModelFile(
                    _name_without_quotes(name),
                    bytes_,
                    changed,
                    shas.get(name),
                    blobs.get(name),
                    real=real,
                )
            )
    total = one.get("total", "")
    return ModelCopy(
        host=host,
        model=one.get("model", ""),
        kind={HUB: HUB, DIRECTORY: DIRECTORY}.get(one["copy"], FILE),
        path=one.get("path", ""),
        files=tuple(sorted(files, key=lambda file: file.name)),
        revision=one.get("revision") or None,
        refs=tuple(all_of("ref")),
        listed=tuple(all_of("listed")),
        broken=tuple(map(_name_without_quotes, all_of("broken"))),
        outside=tuple(map(_name_without_quotes, all_of("outside"))),
        control_characters=tuple(map(_name_without_quotes, all_of("control"))),
        unfinished_bytes=sum(parse_whole_number(value) or 0 for value in all_of("unfinished")),
        expected_bytes=parse_whole_number(total),
    )


def _name_without_quotes(name: str) -> str:
    return name.removeprefix("./")


def path_of_file(copy: ModelCopy, file: ModelFile) -> str:
    directory = copy.path.rpartition("/")[0] if copy.kind == FILE else copy.path
    return f"{directory}/{file.name}"


async def add_whole_sizes(host: Host, copy: ModelCopy) -> ModelCopy:
    """Return the copy with the full size of each safetensors file, computed from the file's header.
    A truncated file is smaller than that. Raises HostError if the host cannot be queried."""
    paths = {
        path_of_file(copy, file): file for file in copy.files if file.name.endswith(".safetensors")
    }
    if not paths:
        return copy
    done = await host.run(
        shell_argv(_WHOLE_SIZE_SCRIPT, *paths), timeout_s=LIST_TIMEOUT_S, check=True
    )
    rows = (
        line.removeprefix("whole=").partition(" ")
        for line in done.out.splitlines()
        if line.startswith("whole=")
    )
    sizes = ((path, parse_whole_number(size)) for size, _, path in rows)
    whole = {path: size for path, size in sizes if size is not None and path in paths}
    return _copy_with_values(copy, {path: {"whole_bytes": size} for path, size in whole.items()})


async def add_hashes(
    host: Host, copy: ModelCopy, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> ModelCopy:
    """Return the copy with the SHA-256 of every file, computed on the host. The host stores each
    hash, and reuses it while size and modification time of the file are unchanged. `on_progress`
    receives the number of bytes hashed so far and the total. Raises HostError if a file cannot be
    read."""
    sizes = {path_of_file(copy, file): file.size_bytes for file in copy.files}
    hashes = await hash_files(host, sizes, copy.path, on_progress)
    return _copy_with_values(copy, {path: {"sha256": digest} for path, digest in hashes.items()})


async def hash_files(
    host: Host,
    sizes: Mapping[str, int],
    root: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, str]:
    """Return {path: SHA-256} of files on the host, computed there like those of `add_hashes`.
    `sizes` has the size of each file in bytes, and `root` names them in messages. Raises HostError
    if a file cannot be read."""
    known = f"{await host.state_dir()}/{HASHES_FILE}"
    hashes: dict[str, str] = {}
    done, total = 0, sum(sizes.values())
    stream = await host.stream(shell_argv(_HASH_FILES_SCRIPT, known, *sizes))
    try:
        async for line in stream.lines():
            digest, _, path = line.decode("utf-8", "replace").partition(" ")
            if path not in sizes:
                continue
            if not _SHA256.fullmatch(digest):
                raise HostError(
                    f"{path} has no hash, because the file could not be read", host=host.name
                )
            hashes[path] = digest
            done += sizes[path]
            on_progress(done, total)
    finally:
        await stream.close()
    if len(hashes) < len(sizes):
        raise HostError(
            f"the hashing of {root} stopped early: {len(sizes) - len(hashes)} of {len(sizes)} "
            "files have no hash",
            host=host.name,
        )
    return hashes


def _copy_with_values(copy: ModelCopy, values: Mapping[str, Mapping[str, object]]) -> ModelCopy:
    files = tuple(replace(file, **values.get(path_of_file(copy, file), {})) for file in copy.files)  # type: ignore[arg-type]
    return replace(copy, files=files)
