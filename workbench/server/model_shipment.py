"""The files to send when a model is copied to another host, and which of them the other host has
already.

The bytes go to a staging directory next to their final place. A complete file is moved to its final
place, and replaces a different file only if the user asks for it. An interrupted copy can therefore
be continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_values_by_key, shell_argv
from workbench.model.errors import HostError, InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_copy import FILE, HUB, ModelCopy, format_first_names, size_text
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.hub_cache import hub_cache_and_home_values, hub_cache_script
from workbench.server.model_inventory import SearchPlaces, hash_files

STAGING_DIRECTORY = ".workbench-copy"  # in the root of a shipment
LOOK_TIMEOUT_S = 60.0
_QUICK_HASH_TIMEOUT_S = 300.0  # reads 128 KiB of each file, from slow disks too
_RESERVED_BYTES = 2**30  # bytes that a copy leaves free

_RESOLVE_PATH_SCRIPT = hub_cache_script(2) + read_script(__file__, "resolve_path.sh")
_LIST_TARGET_SCRIPT = read_script(__file__, "list_target_files.sh")
_QUICK_HASH_SCRIPT = read_script(__file__, "quick_hash.sh")
_PLACE_FILES_SCRIPT = read_script(__file__, "place_files.sh")


@dataclass(frozen=True, slots=True)
class Shipment:
    """What is copied to another host. The files below the directory `source`, with their `sizes` in
    bytes, get the same names below `target`. `links` are symbolic links to create below `target`,
    as {name: link target}. `refs` are small text files to write below `target`, as {name: text}. If
    a symbolic link has replaced a source file since its size was taken, the copy reads the file
    through that link only with `follow_links`."""

    source: str
    target: str
    sizes: Mapping[str, int]
    links: Mapping[str, str] = field(default_factory=dict)
    refs: Mapping[str, str] = field(default_factory=dict)
    follow_links: bool = False

    @property
    def staging_path(self) -> str:
        return f"{self.target}/{STAGING_DIRECTORY}"


@dataclass(frozen=True, slots=True)
class RemainingFiles:
    """The files of a model that must still be sent to another host. `names` are these files in the
    order of sending. `staged` has, by file, the number of bytes that the staging directory there
    already contains."""

    names: tuple[str, ...]
    staged: Mapping[str, int]
    present: tuple[str, ...]  # files that are at their place already


def plan_shipment(copy: ModelCopy, target: str, *, follow_links: bool = False) -> Shipment:
    """Return what is sent to copy the model `copy`. `target` is the hub's cache or the directory
    that receives it. Raises InputError for a file name that leads out of `target` or has a control
    character, and without `follow_links` for a symbolic link that leads out of the copy: such a
    copy could reach any file of the user."""
    if copy.outside and not follow_links:
        raise InputError(
            f"{copy.path} has symbolic links that lead out of it: {format_first_names(copy.outside)}; "
            "nothing was copied",
            host=copy.host,
            next_step="check where the links lead; --follow-links copies the files there as files "
            "of the model",
        )
    if copy.control_characters:
        raise InputError(
            f"{copy.path} has names with control characters, such as a newline: "
            f"{format_first_names(copy.control_characters)}; nothing was copied",
            host=copy.host,
            next_step=f"rename or remove these files on {copy.host}, then copy again",
        )
    shipment = replace(_make_shipment(copy, target), follow_links=follow_links)
    names = (shipment.target.rpartition("/")[2], *shipment.sizes, *shipment.links, *shipment.refs)
    outside = [name for name in names if not name or {"", ".", ".."}.intersection(name.split("/"))]
    if outside:
        raise InputError(
            f"{copy.path} has names that lead out of the model's directory: {format_first_names(outside)}; "
            "nothing was copied",
            host=copy.host,
            next_step=f"check the files of the model on {copy.host}: their names must not contain "
            "`..`",
        )
    return shipment


def _make_shipment(copy: ModelCopy, target: str) -> Shipment:
    if copy.kind == FILE:
        return Shipment(copy.path.rpartition("/")[0], target, *_file_sizes_and_link_targets(copy))
    if copy.kind != HUB:
        return Shipment(
            copy.path,
            f"{target}/{copy.path.rpartition('/')[2]}",
            *_file_sizes_and_link_targets(copy),
        )
    folder, _, snapshot = copy.path.partition("/snapshots/")
    refs = {f"refs/{ref}": snapshot for ref in copy.refs}
    sizes, links = _file_sizes_and_link_targets(copy, f"snapshots/{snapshot}/")
    return Shipment(folder, f"{target}/{folder.rpartition('/')[2]}", sizes, links, refs)


def _file_sizes_and_link_targets(
    copy: ModelCopy, path_prefix: str = ""
) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """Return ({file: size in bytes}, {link: link target}) of a copy of a model: in the hub's cache,
    the names of its files are links to the files that have the bytes. `path_prefix` leads from the
    root of the shipment to the copy, with a slash at its end, or is ""."""
    sizes, links = {}, {}
    for file in copy.files:
        name = f"{path_prefix}{file.name}"
        real = file.real or (f"blobs/{file.blob}" if file.blob is not None else name)
        if real == name or file.name in copy.outside:
            sizes[name] = file.size_bytes
            continue
        sizes[real] = file.size_bytes
        links[name] = "../" * name.count("/") + real
    return sizes, links


async def resolve_absolute_path(host: Host, places: SearchPlaces, path: str) -> str:
    """Return `path` as an absolute path on the host, with the home directory there for a leading ~.
    For "", return the directory of the host's Hugging Face cache. Raises HostError."""
    hub = hub_cache_and_home_values(places.env)
    done = await host.run(
        shell_argv(_RESOLVE_PATH_SCRIPT, path, *hub), timeout_s=LOOK_TIMEOUT_S, check=True
    )
    return done.out.strip().rstrip("/")


async def find_remaining_files(
    source: Host, target: Host, shipment: Shipment, may_replace: bool
) -> RemainingFiles:
    """Return which files of `shipment` must still be sent. Raises InputError if the target host has
    a different file under one of the names and `may_replace` is False, and HostError if the target
    directory cannot be written or has too little free space."""
    argv = shell_argv(_LIST_TARGET_SCRIPT, shipment.target, shipment.staging_path, *shipment.sizes)
    done = await target.run(argv, timeout_s=LOOK_TIMEOUT_S, check=True)
    found = parse_values_by_key(done.out.splitlines())
    closed = found["closed"]
    if closed:
        raise HostError(
            f"you may not write into {closed[0]} on {target.name}",
            host=target.name,
            next_step="use another directory: --to-dir DIR",
        )
    have, staged = _parse_sizes(found["have"]), _parse_sizes(found["staged"])
    candidates = [name for name, size in have.items() if size == shipment.sizes[name]]
    same = set(await _find_equal_files(source, target, shipment, candidates))
    different = [name for name in have if name not in same]
    if different and not may_replace:
        raise InputError(
            f"{target.name} has different files at {shipment.target}: {format_first_names(different)}; "
            "nothing was copied",
            host=target.name,
            next_step="use --replace to replace these files, or copy to another directory with "
            "--to-dir DIR",
        )
    names = tuple(name for name in shipment.sizes if name not in same)
    usable: dict[str, int] = {}
    for name in staged.keys() & set(names):
        if staged[name] <= shipment.sizes[name]:
            usable[name] = staged[name]
    free_kib = next(map(parse_whole_number, found["free"]), None)
    free = 1024 * (free_kib or 0)
    needed = sum(shipment.sizes[name] - usable.get(name, 0) for name in names)
    if needed and needed + _RESERVED_BYTES > free:
        raise HostError(
            f"too little space: the copy needs {size_text(needed)} more at {shipment.target}, and "
            "1 GB must stay free; "
            f"the disk has {size_text(free)} free",
            host=target.name,
            next_step=f"free some space on {target.name}, or copy to another disk with --to-dir "
            "DIR",
        )
    return RemainingFiles(names, usable, tuple(sorted(same)))


def _parse_sizes(texts: Iterable[str]) -> Mapping[str, int]:
    """Return the size in bytes of each file by name, from texts such as "12 NAME"; -1 for a size
    that is no number."""
    sizes = {}
    for text in texts:
        size, _, name = text.partition(" ")
        known = parse_whole_number(size)
        sizes[name] = -1 if known is None else known
    return sizes


async def _find_equal_files(
    source: Host, target: Host, shipment: Shipment, names: Sequence[str]
) -> Sequence[str]:
    """Return those of the files `names` of `shipment` that have the same content on both hosts. A
    file is read as a whole only if its first and last 64 KiB are equal. Raises HostError."""
    if not names:
        return ()
    digests = []
    for host, root in ((source, shipment.source), (target, shipment.target)):
        done = await host.run(
            shell_argv(_QUICK_HASH_SCRIPT, root, *names),
            timeout_s=_QUICK_HASH_TIMEOUT_S,
            check=True,
        )
        rows = (line.partition(" ") for line in done.out.splitlines())
        digests.append({name: digest for digest, _, name in rows})
    alike = [name for name in names if digests[0].get(name) == digests[1].get(name) is not None]
    if not alike:
        return ()
    sizes = {name: shipment.sizes[name] for name in alike}
    there, here = await asyncio.gather(
        _hash_files_below(source, shipment.source, sizes),
        _hash_files_below(target, shipment.target, sizes),
    )
    return [name for name in alike if there[name] == here[name]]


async def _hash_files_below(host: Host, root: str, sizes: Mapping[str, int]) -> Mapping[str, str]:
    """Return the SHA-256 of files, by their names below the directory `root`."""
    paths = {f"{root}/{name}": size for name, size in sizes.items()}
    hashes = await hash_files(host, paths, root)
    return {path.removeprefix(f"{root}/"): digest for path, digest in hashes.items()}


async def put_files_in_place(
    target: Host, shipment: Shipment, names: Sequence[str], may_replace: bool
) -> None:
    """Move the files `names` from the staging directory to their final places, and create the
    symbolic links and the refs of the shipment. Raises HostError if a staged file is incomplete, or
    if there is a file at a final place and `may_replace` is False."""
    done = await target.run(
        shell_argv(_LIST_TARGET_SCRIPT, shipment.target, shipment.staging_path, *names),
        timeout_s=LOOK_TIMEOUT_S,
        check=True,
    )
    staged = _parse_sizes(parse_values_by_key(done.out.splitlines())["staged"])
    if short := [name for name in names if staged.get(name) != shipment.sizes[name]]:
        raise HostError(
            f"{format_first_names(short)} arrived incomplete",
            host=target.name,
            next_step="run the same copy command again",
        )
    links = chain.from_iterable(shipment.links.items())
    order = [
        shipment.target,
        shipment.staging_path,
        "replace" if may_replace else "",
        *names,
        "--",
        *links,
    ]
    await target.run(shell_argv(_PLACE_FILES_SCRIPT, *order), timeout_s=LOOK_TIMEOUT_S, check=True)
    for name, text in shipment.refs.items():
        await target.write_file(f"{shipment.target}/{name}", text.encode(), mode=0o644)
