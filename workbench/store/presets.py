"""The preset library: the user's own presets first, then those that Workbench ships.

To list presets, the library parses only files that changed, and does not check them against the
schema. `get` checks a whole file. An invalid file is listed with its error and never hides another
preset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.model.errors import PresetError
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.store import paths, preset_documents, preset_list_cache
from workbench.store.preset_file import parse_preset_text, read_text
from workbench.store.preset_list_cache import Stamp

if TYPE_CHECKING:
    from workbench.model.preset import Preset
    from workbench.store.preset_check import Checked

T = TypeVar("T")

_MANY = 50  # files from which the list is kept on disk; the shipped ones alone take 0.1 s


@dataclass(frozen=True, slots=True)
class ListedPreset:
    """A preset in the list of the library. `origin` is "own" (the user's directory) or "shipped".
    `hides` is the path of another preset with the same id, which this one replaces. `error` is the
    reason why the file is invalid, or None if it is valid."""

    id: str
    path: str
    origin: str
    title: str = ""
    summary: str = ""
    engine: str = ""
    model: str = ""
    quantization: str | None = None
    hardware: str = ""
    gpu_names: tuple[str, ...] = ()
    gpu_count: int = 1
    nodes: int = 1
    status: str = ""
    document: str = ""
    baseline: str | None = None
    caveats: int = 0
    hides: str | None = None
    error: Finding | None = None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error.as_json() if self.error else None}


class PresetLibrary:
    """Presets of several directories. The first directory is the user's own and the only one in
    which presets are saved."""

    def __init__(self, dirs: Sequence[Path] | None = None) -> None:
        default = (paths.own_presets_dir(), paths.shipped_presets_dir())
        self.dirs: tuple[Path, ...] = tuple(dirs) if dirs is not None else default
        self._entries: dict[Path, tuple[Stamp, ListedPreset]] = {}
        self._checked: dict[Path, tuple[Stamp, Checked]] = {}
        self._given: dict[str, Path] = {}  # files outside the library, by the id of their preset
        self._kept = False  # whether the list on disk was read

    @property
    def own_dir(self) -> Path:
        return self.dirs[0]

    def list(self) -> tuple[ListedPreset, ...]:
        """Return the presets sorted by id, the invalid ones last. Reads only files that changed
        since the last call."""
        good: dict[str, ListedPreset] = {}
        broken: list[ListedPreset] = []
        for path, entry in self._read_entries().items():
            first = good.get(entry.id)
            if entry.error is not None:
                broken.append(entry)
            elif first is None:
                good[entry.id] = entry
            elif Path(first.path).parent == path.parent:
                text = (
                    f'id: {Path(first.path).name} in the same directory has the id "{entry.id}" too'
                )
                finding = Finding(
                    Level.ERROR, "preset.duplicate-id", text, file=str(path), field="id"
                )
                broken.append(replace(entry, error=finding))
            elif first.hides is None:
                good[entry.id] = replace(first, hides=entry.path)
        return (*(good[i] for i in sorted(good)), *broken)

    def findings(self) -> tuple[Finding, ...]:
        """Return findings about the library as a whole: own presets that replace shipped ones, and
        presets whose baseline (the preset to compare with) does not exist. Errors of invalid files
        are in the entries of `list`."""
        entries = [entry for entry in self.list() if entry.error is None]
        ids = {entry.id for entry in entries}
        found: list[Finding] = []
        for entry in entries:
            if entry.hides:
                text = f'id: your own "{entry.id}" replaces {entry.hides}'
                found.append(
                    Finding(Level.INFO, "preset.duplicate-id", text, file=entry.path, field="id")
                )
            if entry.baseline and entry.baseline not in ids:
                close = _close_names(entry.baseline, ids)
                fix = f'did you mean "{close[0]}"?' if close else None
                text = f'baseline: there is no preset "{entry.baseline}"'
                found.append(
                    Finding(
                        Level.WARN,
                        "preset.baseline",
                        text,
                        file=entry.path,
                        field="baseline",
                        fix=fix,
                    )
                )
        return tuple(found)

    def path(self, preset_id: str) -> Path:
        """Return the path of the file with this preset, also of one that was given by its path. An
        invalid file has its file name without suffix as its id. Raises PresetError if there is no
        such preset."""
        entries = self.list()
        found = [e for e in entries if e.id == preset_id]
        if found:
            return Path(found[0].path)
        if preset_id in self._given:
            return self._given[preset_id]
        close = _close_names(preset_id, [e.id for e in entries])
        hint = (
            f"did you mean {', '.join(close)}?"
            if close
            else ("list the presets with `workbench presets list`")
        )
        raise PresetError(f'there is no preset "{preset_id}"', next_step=hint)

    def get(self, preset_id: str) -> Preset:
        """Return the preset with this id after checking its file. Raises PresetError with the
        findings if the file is invalid."""
        return self.load(self.path(preset_id))

    def given(self, path: Path) -> Preset:
        """Return the preset in the file `path`, as `load` does. From then on, its id stands for this
        file, unless a preset of the library has that id."""
        preset = self.load(path)
        self._given[preset.id] = path
        return preset

    def note_given(self, preset_id: str, path: Path) -> None:
        """Let an id stand for a file outside the library, without reading it, unless the id is known."""
        self._given.setdefault(preset_id, path)

    def given_path(self, preset_id: str) -> Path | None:
        """Return the file outside the library for which this id stands; None if there is none."""
        path = self._given.get(preset_id)
        return path if path is not None and self.path(preset_id) == path else None

    def load(self, path: Path) -> Preset:
        """Return the preset in the file `path` after checking the file, with the claims of its
        source documents (write-ups). Raises PresetError with the findings if the file is invalid.
        """
        checked = self.checked(path)
        if checked.preset is not None:
            return preset_documents.with_claims(checked.preset)
        errors = [f for f in checked.findings if f.level is Level.ERROR]
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise PresetError(
            f"{first.file_and_line or path}: {first.text}{more}",
            next_step=first.fix
            or f"correct the file, then check it with `workbench presets check {path}`",
            findings=checked.findings,
        )

    def check(self, path: Path) -> tuple[Finding, ...]:
        """Return all findings about the preset file at `path`."""
        return self.checked(path).findings

    def checked(self, path: Path) -> Checked:
        """Return the checked preset file `path`. It is read again only if it has changed."""

        from workbench.store.preset_check import check_file

        stamp = _file_stamp(path)
        known = self._checked.get(path)
        if known is None or stamp is None or known[0] != stamp:
            checked = check_file(path)
            if stamp is None:
                return checked
            known = self._checked[path] = (stamp, checked)
        return known[1]

    def document(self, preset_id: str) -> dict[str, Any]:
        """Return the parsed TOML of the file with this preset, without the checks of `get`. Raises
        PresetError if there is no such file, or it is no TOML."""
        text = read_text(self.path(preset_id))
        document = parse_preset_text(text) if isinstance(text, str) else text
        if isinstance(document, Finding):
            raise PresetError(document.text, findings=(document,))
        return document

    def save(
        self, document: Mapping[str, Any], preset_id: str, *, replace_existing: bool = False
    ) -> Path:
        """Write a preset to the user's own directory and return the path. Comments of a replaced
        file are kept. Raises PresetError if the document is invalid."""
        from workbench.store.preset_edit import save_preset

        return save_preset(document, preset_id, self.own_dir, replace_existing=replace_existing)

    def _files(self) -> Sequence[Path]:
        found: list[Path] = []
        for directory in self.dirs:
            if directory.is_dir():
                found.extend(
                    sorted(
                        p for p in directory.iterdir() if p.suffix == ".toml" and p.name[0] != "."
                    )
                )
        return found

    def _read_entries(self) -> dict[Path, ListedPreset]:
        """Return the list entry of each preset file by its path. Only files that changed since they
        were last listed are read again."""
        files = self._files()
        many = len(files) >= _MANY
        if many and not self._kept:
            self._kept = True
            for name, (stamp, fields) in preset_list_cache.read_cache(
                paths.preset_list_file()
            ).items():
                path = Path(name)
                with suppress(TypeError):  # fields that no entry has
                    self._entries[path] = stamp, ListedPreset(**{**fields, **self._place(path)})
        before = {path: self._entries.get(path) for path in files}
        found = {path: self._entry(path) for path in files}
        now = {path: self._entries.get(path) for path in files}
        if many and any(now[path] is not before[path] for path in files):
            good = {
                str(path): (e[0], _cached_fields(e[1]))
                for path, e in now.items()
                if e is not None and e[1].error is None
            }
            preset_list_cache.write_cache(paths.preset_list_file(), good)
        return found

    def _entry(self, path: Path) -> ListedPreset:
        stamp = _file_stamp(path)
        known = self._entries.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        entry = _read_entry(**self._place(path))
        if stamp is not None:
            self._entries[path] = (stamp, entry)
        return entry

    def is_shipped(self, path: Path) -> bool:
        """Return whether the preset file belongs to Workbench. The user must trust any other preset
        before it may run programs."""
        return path.resolve().parent == paths.shipped_presets_dir().resolve()

    def _place(self, path: Path) -> dict[str, str]:
        """Return the fields "path" and "origin" of a list entry, which follow from the path of the
        preset file."""
        own = path.absolute().parent == self.own_dir.absolute()
        return {"path": str(path), "origin": "own" if own else "shipped"}


def _close_names(name: str, names: Iterable[str]) -> Sequence[str]:
    from difflib import get_close_matches

    return get_close_matches(name, list(names), n=3, cutoff=0.5)


def _cached_fields(entry: ListedPreset) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in ListedPreset.__slots__}
    return {name: value for name, value in fields.items() if value is not None}


def _file_stamp(path: Path) -> Stamp | None:
    """Return the file's modification time, change time, size and inode, which tell whether the file
    has changed. None if they cannot be read. A program can set the modification time back, but not
    the change time."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _read_entry(path: str, origin: str) -> ListedPreset:
    text = read_text(Path(path))
    document = parse_preset_text(text, path) if isinstance(text, str) else text
    if isinstance(document, Finding):
        return ListedPreset(Path(path).stem, path, origin, error=document)
    for field in (("id",), ("title",), ("engine", "name")):
        if _value_of_kind(document, str, *field) is None:
            name = ".".join(field)
            text = f"{name}: missing; expected text"
            error = Finding(Level.ERROR, "preset.missing-field", text, file=path, field=name)
            return ListedPreset(Path(path).stem, path, origin, error=error)
    gpu_names = tuple(
        n
        for n in _value_of_kind(document, list, "hardware", "gpu_names") or ()
        if isinstance(n, str)
    )
    gpu_count = _value_of_kind(document, int, "hardware", "count") or 1
    return ListedPreset(
        id=document["id"],
        path=path,
        origin=origin,
        title=document["title"],
        summary=_value_of_kind(document, str, "summary") or "",
        engine=document["engine"]["name"],
        model=_listed_model_name(document),
        quantization=_value_of_kind(document, str, "model", "quantization"),
        hardware=hardware_line(
            gpu_names, gpu_count, _value_of_kind(document, str, "hardware", "platform")
        ),
        gpu_names=gpu_names,
        gpu_count=gpu_count,
        nodes=len(_value_of_kind(document, list, "nodes") or ()) or 1,
        status=_value_of_kind(document, str, "provenance", "status") or "",
        document=_value_of_kind(document, str, "provenance", "document") or "",
        baseline=_value_of_kind(document, str, "baseline"),
        caveats=len(_value_of_kind(document, list, "caveats") or ()),
    )


def _value_of_kind(document: Mapping[str, Any], kind: type[T], *path: str) -> T | None:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, kind) else None


def hardware_line(gpu_names: Sequence[str], count: int, platform: str | None) -> str:
    """Return a short text about a preset's hardware, such as "2x GB10, dgx spark" or "4x any GPU"."""
    name = gpu_names[0].removeprefix("NVIDIA ").removeprefix("GeForce ") if gpu_names else "any GPU"
    line = f"{count}x {name}" if count > 1 else name
    return f"{line}, {platform}" if platform else line


def _listed_model_name(document: Mapping[str, Any]) -> str:
    """Return the model's name for a list. A variable in the name is replaced by its default, or by
    the last part of its example."""

    def filled(match: re.Match[str]) -> str:
        example = _value_of_kind(document, str, "variables", match[1], "example") or match[0]
        return (
            _value_of_kind(document, str, "variables", match[1], "default")
            or example.rstrip("/").rsplit("/", 1)[-1]
        )

    return re.sub(r"\$\{(\w+)\}", filled, _value_of_kind(document, str, "model", "id") or "")
