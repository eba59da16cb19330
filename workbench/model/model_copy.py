"""Copies of a model's files on a host: where they are, whether they are complete, and how two
copies differ."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass

HUB, DIRECTORY, FILE = "hub cache", "directory", "file"
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_SPLIT_GGUF = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_NAMED = 3  # files that a message names


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model. `name` is its path below the model's directory."""

    name: str
    size_bytes: int
    modified_unix_s: int = 0
    sha256: str | None = None  # computed from its bytes; None: not computed
    blob: str | None = None  # the name of the file's bytes in the hub's cache
    whole_bytes: int | None = None  # the size that its own header says; None: not looked up
    real: str | None = (
        # where its bytes are, if links lead to another place in the model's directory or repository
        None
    )

    @property
    def is_weights(self) -> bool:
        return self.name.endswith(WEIGHTS)

    @property
    def is_damaged(self) -> bool:
        """Whether the file's bytes differ from the file on the Hugging Face hub, which names a
        large file by its SHA-256. False if the bytes were not hashed."""
        return bool(
            self.sha256
            and self.blob
            and len(self.blob) == len(self.sha256)
            and self.blob != self.sha256
        )


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """One copy of a model on a host. `kind` is HUB (in the cache of the Hugging Face hub),
    DIRECTORY, or FILE (a GGUF file with all its parts).

    `listed` are the weight files that the model's index names, `broken` the symbolic links without
    a target, and `outside` the files whose bytes lie outside the model's directory or, in the hub's
    cache, outside its repository.
    """

    host: str
    model: str
    kind: str
    path: str
    files: tuple[ModelFile, ...] = ()
    revision: str | None = None  # commit
    refs: tuple[str, ...] = ()  # names of the commit, such as "main"
    listed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()  # looked up for one model only
    # names with a newline or another control character, each shown as "?"
    control_characters: tuple[str, ...] = ()
    unfinished_bytes: int = 0  # of a download that has not ended
    expected_bytes: int | None = None  # of all weights, by the index
    problems: tuple[str, ...] = field(init=False)  # why the copy is not complete

    def __post_init__(self) -> None:
        object.__setattr__(self, "problems", tuple(_copy_problems(self)))

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def reference(self) -> str:
        """The name of this copy of a model on its host: the model's id if the copy is in the cache
        of the Hugging Face hub, otherwise the path."""
        return self.model if self.kind == HUB else self.path

    @property
    def is_complete(self) -> bool:
        return not self.problems

    @property
    def small_digest(self) -> str | None:
        """A digest of all hashed files of a model copy that are not weights, such as the
        config.json. None if no such file was hashed."""
        lines = sorted(
            f"{file.name} {file.sha256}"
            for file in self.files
            if file.sha256 and not file.is_weights
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else None

    @property
    def text(self) -> str:
        """A copy of a model as one line: model, size, number of files, whether it is complete, and
        where it is."""
        state = "complete" if self.is_complete else f"PARTIAL: {'; '.join(self.problems)}"
        revision = f"  commit {self.revision[:12]}" if self.revision else ""
        digest = f"  index and small files {self.small_digest}" if self.small_digest else ""
        files = count_of(len(self.files), "file")
        return (
            f"{self.model}  {size_text(self.size_bytes)}, {files}  {state}{revision}{digest}  "
            f"{self.path}"
        )

    def as_json(self) -> dict[str, Any]:
        files = [{name: getattr(file, name) for name in ModelFile.__slots__} for file in self.files]
        own = {name: getattr(self, name) for name in ModelCopy.__slots__ if name != "files"}
        more = {
            "complete": self.is_complete,
            "size_bytes": self.size_bytes,
            "small_digest": self.small_digest,
        }
        return {**own, **more, "files": files}


def _copy_problems(copy: ModelCopy) -> Sequence[str]:
    there = {file.name for file in copy.files}
    weights = [file for file in copy.files if file.is_weights]
    found = []
    if copy.unfinished_bytes:
        found.append(f"a download is unfinished ({size_text(copy.unfinished_bytes)} so far)")
    if absent := [name for name in copy.listed if name not in there]:
        found.append(
            f"{len(absent)} of {count_of(len(copy.listed), 'weight file')} missing: "
            f"{list_some_names(absent)}"
        )
    if broken := [name for name in copy.broken if name not in absent]:
        found.append(f"links that lead nowhere: {list_some_names(broken)}")
    if not weights and not absent:
        found.append("no weight files")
    splits = filter(None, (_SPLIT_GGUF.search(file.name) for file in weights))
    for total in {int(split[1]) for split in splits}:
        parts = sum(file.name.endswith(f"-of-{total:05}.gguf") for file in weights)
        if parts % total:
            found.append(f"{parts % total} of {total} parts of a GGUF file")
    if cut := [
        file.name
        for file in copy.files
        if file.whole_bytes is not None and file.size_bytes < file.whole_bytes
    ]:
        found.append(f"cut off: {list_some_names(cut)}")
    have = sum(file.size_bytes for file in weights if file.name in copy.listed)
    if copy.expected_bytes is not None and not absent and have < copy.expected_bytes:
        found.append(
            f"the weights have {size_text(have)} of the {size_text(copy.expected_bytes)} "
            "that the index names"
        )
    if any(file.name.endswith(".safetensors") for file in weights) and "config.json" not in there:
        found.append("no config.json")
    if damaged := [file.name for file in copy.files if file.is_damaged]:
        found.append(f"damaged, because the hash is not the hub's: {list_some_names(damaged)}")
    return found


def copy_differences(a: ModelCopy, b: ModelCopy) -> Sequence[str]:
    """Return how copy `b` differs from copy `a`, as texts. Hashes are compared if both copies have
    them."""
    ours, theirs = ({file.name: file for file in copy.files} for copy in (a, b))
    found = []
    if absent := [name for name in ours if name not in theirs]:
        found.append(f"not on {b.host}: {list_some_names(absent)}")
    if more := [name for name in theirs if name not in ours]:
        found.append(f"only on {b.host}: {list_some_names(more)}")
    both = [(file, theirs[name]) for name, file in ours.items() if name in theirs]
    if sizes := [x.name for x, y in both if x.size_bytes != y.size_bytes]:
        found.append(f"another size on {b.host}: {list_some_names(sizes)}")
    same_size = [(x, y) for x, y in both if x.size_bytes == y.size_bytes]
    if contents := [x.name for x, y in same_size if x.sha256 and y.sha256 and x.sha256 != y.sha256]:
        found.append(f"other bytes on {b.host}: {list_some_names(contents)}")
    return found


def files_without_hashes(a: ModelCopy, b: ModelCopy) -> Sequence[str]:
    """Return the names of the files in both copies whose bytes cannot be compared, because one of
    the copies has no hash."""
    theirs: Mapping[str, ModelFile] = {file.name: file for file in b.files}
    return [
        f.name for f in a.files if f.name in theirs and not (f.sha256 and theirs[f.name].sha256)
    ]


def list_some_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def size_text(size_bytes: float) -> str:
    """Return a size with a decimal unit, as the Hugging Face hub shows it: "1.2 GB", "15 MB", "800
    B"."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            digits = ".3g" if size_bytes < 999.5 * factor else ".0f"
            return f"{size_bytes / factor:{digits}} {unit}"
    return f"{size_bytes:.0f} B"
