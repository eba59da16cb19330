"""The copies of models on a host: in the cache of the Hugging Face hub, in directories, and single
GGUF files. One script lists the copies. Another script computes hashes of whole files, and stores
them on the host until the files change."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_key_value_pairs, shell_argv
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_copy import DIRECTORY, FILE, HUB, ModelCopy, ModelFile
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.hub_cache import hub_cache_and_home_values, hub_cache_script

LIST_TIMEOUT_S = 60.0  # a cache on a network file system is slow
HASHES_FILE = (
    "model-hashes"  # in the state directory: lines of sha256, size, time of modification, path
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
# of a file that is hashed whenever its model is looked at: index, configuration, tokenizer
_SMALL_FILE_KIB = 32 * 1024

_LIST_COPIES_SCRIPT = hub_cache_script(1) + read_script(__file__, "list_copies.sh")
_WHOLE_SIZE_SCRIPT = read_script(__file__, "whole_size.sh")
_HASH_FILES_SCRIPT = read_script(__file__, "hash_files.sh")


@dataclass(frozen=True, slots=True)
class SearchPlaces:
    """The places on a host that are searched for models: the hub's cache, by `env`, the environment
    of its servers, and `paths`, further directories or files."""

    env: Mapping[str, str]
    paths: tuple[str, ...] = ()


async def find_copies(host: Host, places: SearchPlaces, model: str = "") -> Sequence[ModelCopy]:
    """Return the copies of models on a host: all, or those of `model`, which is a hub id, a path,
    or the last part of either. Only with `model`, small files have their hash, and links that lead
    out of a copy are listed. Raises HostError if the host cannot list them."""
    hub = hub_cache_and_home_values(places.env)
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
    for key, value in (*parse_key_value_pairs(output), ("copy", "")):
        if key == "copy":
            if block:
                yield _parse_copy(block, host)
            block = []
        block.append((key, value))


def _parse_copy(block: Sequence[tuple[str, str]], host: str) -> ModelCopy:
    one = dict(reversed(block))
    values = defaultdict[str, list[str]](list)
    for key, value in block:
        values[key].append(value)
    shas, blobs = dict[str, str](), dict[str, str]()
    for value in values["sha"]:
        digest, _, name = value.partition(" ")
        shas[name.lstrip(" *")] = digest
    for value in values["blob"]:
        target, _, name = value.partition(" ")
        blobs[name] = target.rpartition("/")[2]
    links = dict(zip(values["link"], values["real"], strict=False))
    files = []
    for value in values["file"]:
        row = value.split(" ", 2)
        if len(row) < 3:
            continue
        size, modified, name = row
        bytes_, changed = parse_whole_number(size), parse_whole_number(modified, 11)
        if bytes_ is not None and changed is not None:
            real = links.get(_remove_dot_slash(name))
            files.append(
                ModelFile(
                    _remove_dot_slash(name),
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
        refs=tuple(values["ref"]),
        listed=tuple(values["listed"]),
        broken=tuple(map(_remove_dot_slash, values["broken"])),
        outside=tuple(map(_remove_dot_slash, values["outside"])),
        control_characters=tuple(map(_remove_dot_slash, values["control"])),
        unfinished_bytes=sum(filter(None, map(parse_whole_number, values["unfinished"]))),
        expected_bytes=parse_whole_number(total),
    )


def _remove_dot_slash(name: str) -> str:
    return name.removeprefix("./")


def file_path_on_host(copy: ModelCopy, file: ModelFile) -> str:
    directory = copy.path.rpartition("/")[0] if copy.kind == FILE else copy.path
    return f"{directory}/{file.name}"


async def add_full_file_sizes(host: Host, copy: ModelCopy) -> ModelCopy:
    """Return the copy with the size that each safetensors file has by its header: a truncated file
    is smaller. Raises HostError if the host cannot be queried."""
    tensor_files = (file for file in copy.files if file.name.endswith(".safetensors"))
    paths = [file_path_on_host(copy, file) for file in tensor_files]
    if not paths:
        return copy
    done = await host.run(
        shell_argv(_WHOLE_SIZE_SCRIPT, *paths), timeout_s=LIST_TIMEOUT_S, check=True
    )
    values: dict[str, Mapping[str, object]] = {}
    for line in done.out.splitlines():
        key, _, value = line.partition("=")
        size, _, path = value.partition(" ")
        whole_bytes = parse_whole_number(size)
        if key == "whole" and whole_bytes is not None:
            values[path] = {"whole_bytes": whole_bytes}
    return _with_file_values(copy, values)


async def add_hashes(
    host: Host, copy: ModelCopy, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> ModelCopy:
    """Return the copy with the SHA-256 of every file, which the host computes, and stores until the
    size or the modification time of the file changes. `on_progress` receives the bytes hashed so
    far and all bytes. Raises HostError if a file cannot be read."""
    sizes = {file_path_on_host(copy, file): file.size_bytes for file in copy.files}
    hashes = await hash_files(host, sizes, copy.path, on_progress)
    return _with_file_values(copy, {path: {"sha256": digest} for path, digest in hashes.items()})


async def hash_files(
    host: Host,
    sizes: Mapping[str, int],
    root: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, str]:
    """Return the SHA-256 of files on the host by path, computed as by `add_hashes`. `sizes` has the
    size of each file in bytes by path, and `root` names all of them in messages. Raises HostError
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


def _with_file_values(copy: ModelCopy, values: Mapping[str, Mapping[str, object]]) -> ModelCopy:
    """Return the copy with new `values` of its files: by path on the host, then by field."""
    files = []
    for file in copy.files:
        changes = values.get(file_path_on_host(copy, file), {})
        files.append(replace(file, **changes))  # type: ignore[arg-type]
    return replace(copy, files=tuple(files))
