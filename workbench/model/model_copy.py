"""Copies of a model's files on a host: where they are, whether they are complete, and how two
copies differ."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass

HUB, DIRECTORY, FILE = "hub cache", "directory", "file"
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_SPLIT_GGUF = re.compile(r"-\d{5}-of-(?!0{5})(\d{5})\.gguf$")  # as llama.cpp reads them
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
        if not self.sha256 or not self.blob:
            return False
        return len(self.blob) == len(self.sha256) and self.blob != self.sha256

    @property
    def is_cut_off(self) -> bool:
        """Whether the file is shorter than its own header says."""
        return self.size_bytes < (self.whole_bytes or 0)


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
        object.__setattr__(self, "problems", tuple(_list_copy_problems(self)))

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def weights(self) -> list[ModelFile]:
        return [file for file in self.files if file.is_weights]

    @property
    def files_by_name(self) -> dict[str, ModelFile]:
        return {file.name: file for file in self.files}

    @property
    def id_or_path(self) -> str:
        """What names this copy on its host, for example in a command: the model's id if the copy is
        in the cache of the Hugging Face hub, otherwise the path."""
        return self.model if self.kind == HUB else self.path

    @property
    def is_complete(self) -> bool:
        return not self.problems

    @property
    def digest_without_weights(self) -> str | None:
        """A digest of all hashed files of a model copy that are not weights, such as the
        config.json. None if no such file was hashed."""
        lines = []
        for file in self.files:
            if file.sha256 and not file.is_weights:
                lines.append(f"{file.name} {file.sha256}")
        if not lines:
            return None
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """A copy of a model as one line: model, size, number of files, whether it is complete, and
        where it is."""
        size = f"{size_text(self.size_bytes)}, {count_of(len(self.files), 'file')}"
        parts = [self.model, size, "complete"]
        if self.problems:
            parts[-1] = f"PARTIAL: {'; '.join(self.problems)}"
        if self.revision:
            parts.append(f"commit {self.revision[:12]}")
        if self.digest_without_weights:
            parts.append(f"index and small files {self.digest_without_weights}")
        return "  ".join((*parts, self.path))

    def as_json(self) -> dict[str, Any]:
        files = [{name: getattr(file, name) for name in ModelFile.__slots__} for file in self.files]
        own = {name: getattr(self, name) for name in ModelCopy.__slots__ if name != "files"}
        more = {
            "complete": self.is_complete,
            "size_bytes": self.size_bytes,
            "small_digest": self.digest_without_weights,
        }
        return {**own, **more, "files": files}


def _list_copy_problems(copy: ModelCopy) -> Sequence[str]:
    """Return why the copy is not complete, as texts; [] if it is complete."""
    there, weights = copy.files_by_name, copy.weights
    found = []
    if copy.unfinished_bytes:
        found.append(f"a download is unfinished ({size_text(copy.unfinished_bytes)} so far)")
    if absent := [name for name in copy.listed if name not in there]:
        found.append(
            f"{len(absent)} of {count_of(len(copy.listed), 'weight file')} missing: "
            f"{format_first_names(absent)}"
        )
    if broken := [name for name in copy.broken if name not in absent]:
        found.append(f"links that lead nowhere: {format_first_names(broken)}")
    if not weights and not absent:
        found.append("no weight files")
    splits = filter(None, (_SPLIT_GGUF.search(file.name) for file in weights))
    parts = Counter(int(split[1]) for split in splits)
    for total, count in parts.items():
        if count % total:
            found.append(f"{count % total} of {total} parts of a GGUF file")
    if cut := [file.name for file in copy.files if file.is_cut_off]:
        found.append(f"cut off: {format_first_names(cut)}")
    have = sum(file.size_bytes for file in weights if file.name in copy.listed)
    expected = copy.expected_bytes or 0
    if not absent and have < expected:
        found.append(
            f"the weights have {size_text(have)} of the {size_text(expected)} that the index names"
        )
    if "config.json" not in there and any(name.endswith(".safetensors") for name in there):
        found.append("no config.json")
    if damaged := [file.name for file in copy.files if file.is_damaged]:
        found.append(f"damaged, because the hash is not the hub's: {format_first_names(damaged)}")
    return found


def list_copy_differences(a: ModelCopy, b: ModelCopy) -> Sequence[str]:
    """Return how copy `b` differs from copy `a`, as texts. Hashes are compared if both copies have
    them."""
    ours, theirs = a.files_by_name, b.files_by_name
    absent, sizes, contents = [], [], []
    for name, our in ours.items():
        their = theirs.get(name)
        if their is None:
            absent.append(name)
        elif our.size_bytes != their.size_bytes:
            sizes.append(name)
        elif our.sha256 and their.sha256 and our.sha256 != their.sha256:
            contents.append(name)
    kinds = {
        f"not on {b.host}": absent,
        f"only on {b.host}": [name for name in theirs if name not in ours],
        f"another size on {b.host}": sizes,
        f"other bytes on {b.host}": contents,
    }
    return [f"{kind}: {format_first_names(names)}" for kind, names in kinds.items() if names]


def shared_files_without_hashes(a: ModelCopy, b: ModelCopy) -> Sequence[str]:
    """Return the names of the files in both copies whose bytes cannot be compared, because one of
    the copies has no hash."""
    theirs = b.files_by_name
    return [
        our.name
        for our in a.files
        if our.name in theirs and not (our.sha256 and theirs[our.name].sha256)
    ]


def format_first_names(names: Sequence[str]) -> str:
    """Return the first names, separated by commas, and how many more there are."""
    text = ", ".join(names[:_NAMED])
    if len(names) > _NAMED:
        text += f" and {len(names) - _NAMED} more"
    return text


def size_text(size_bytes: float) -> str:
    """Return a size with a decimal unit, as the Hugging Face hub shows it: "1.2 GB", "15 MB", "800
    B"."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            digits = ".3g" if size_bytes < 999.5 * factor else ".0f"
            return f"{size_bytes / factor:{digits}} {unit}"
    return f"{size_bytes:.0f} B"
