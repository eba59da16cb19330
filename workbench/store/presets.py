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
from workbench.model.untrusted_text import as_table
from workbench.store import paths, preset_documents, preset_list_cache
from workbench.store.preset_file import parse_preset_text, read_preset_text
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
        error = self.error and self.error.as_json()
        return {**asdict(self), "error": error}


class PresetLibrary:
    """Presets of several directories. The first directory is the user's own and the only one in
    which presets are saved."""

    def __init__(self, dirs: Sequence[Path] | None = None) -> None:
        if dirs is None:
            dirs = (paths.own_presets_dir(), paths.shipped_presets_dir())
        self.dirs: tuple[Path, ...] = tuple(dirs)
        self._entries: dict[Path, tuple[Stamp, ListedPreset]] = {}
        self._checked: dict[Path, tuple[Stamp, Checked]] = {}
        self._given: dict[str, Path] = {}  # files outside the library, by the id of their preset
        self._has_read_cache = False  # the list on disk

    @property
    def own_dir(self) -> Path:
        return self.dirs[0]

    def list(self) -> tuple[ListedPreset, ...]:
        """Return the presets sorted by id, then the invalid ones. Of presets with the same id, the
        user's own is listed. Only files that changed since the last call are read."""
        good: dict[str, ListedPreset] = {}
        broken: list[ListedPreset] = []
        for path, entry in self._read_entries().items():
            first = good.get(entry.id)
            if entry.error is not None:
                broken.append(entry)
            elif first is None:
                good[entry.id] = entry
            elif Path(first.path).parent == path.parent:
                other = Path(first.path).name
                text = f'id: {other} in the same directory has the id "{entry.id}" too'
                code = "preset.duplicate-id"
                finding = Finding(Level.ERROR, code, text, file=str(path), field="id")
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
                found.append(_missing_baseline_finding(entry.baseline, ids, entry.path))
        return tuple(found)

    def path(self, preset_id: str) -> Path:
        """Return the path of the file with this preset, also of one that was given by its path. An
        invalid file has its file name without suffix as its id. Raises PresetError if there is no
        such preset."""
        ids = []
        for entry in self.list():
            if entry.id == preset_id:
                return Path(entry.path)
            ids.append(entry.id)
        if preset_id in self._given:
            return self._given[preset_id]
        hint = "list the presets with `workbench presets list`"
        if close := _close_names(preset_id, ids):
            hint = f"did you mean {', '.join(close)}?"
        raise PresetError(f'there is no preset "{preset_id}"', next_step=hint)

    def get(self, preset_id: str) -> Preset:
        """Return the preset with this id after checking its file. Raises PresetError with the
        findings if the file is invalid."""
        return self.load_checked(self.path(preset_id))

    def load_preset_file(self, path: Path) -> Preset:
        """Return the preset in the file `path`, as `load_checked` does. From then on, its id stands
        for this file, unless a preset of the library has that id."""
        preset = self.load_checked(path)
        self._given[preset.id] = path
        return preset

    def register_preset_file(self, preset_id: str, path: Path) -> None:
        """Let an id stand for a preset file outside the library, which is not read now. Do nothing
        if the id stands for such a file already."""
        self._given.setdefault(preset_id, path)

    def registered_preset_path(self, preset_id: str | None) -> Path | None:
        """Return the preset file outside the library for which this id stands. None if there is
        none, if a preset of the library has the id, and for None."""
        if preset_id not in self._given:
            return None
        path = self._given[preset_id]
        return path if self.path(preset_id) == path else None

    def load_checked(self, path: Path) -> Preset:
        """Return the preset in the file `path` after checking the file, with the claims of its
        source documents (write-ups). Raises PresetError with the findings if the file is invalid.
        """
        checked = self.read_and_check(path)
        if checked.preset is not None:
            return preset_documents.add_document_claims(checked.preset)
        errors = checked.errors
        first = errors[0]
        text = f"{first.file_and_line_text or path}: {first.text}"
        if len(errors) > 1:
            text += f" (and {len(errors) - 1} more)"
        step = f"correct the file, then check it with `workbench presets check {path}`"
        raise PresetError(text, next_step=first.fix or step, findings=checked.findings)

    def check(self, path: Path) -> tuple[Finding, ...]:
        """Return all findings about the preset file at `path`."""
        return self.read_and_check(path).findings

    def read_and_check(self, path: Path) -> Checked:
        """Return the checked preset file `path`. It is read again only if it has changed."""

        from workbench.store.preset_check import check_file

        stamp = _file_stamp(path)
        if stamp is None:
            return check_file(path)
        known = self._checked.get(path)
        if known is None or known[0] != stamp:
            known = self._checked[path] = (stamp, check_file(path))
        return known[1]

    def read_document(self, preset_id: str) -> dict[str, Any]:
        """Return the parsed TOML of the file with this preset, without the checks of `get`. Raises
        PresetError if there is no such file, or it is no TOML."""
        document = _read_document(self.path(preset_id))
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

    def _list_files(self) -> Sequence[Path]:
        found: list[Path] = []
        for directory in filter(Path.is_dir, self.dirs):
            files = (p for p in directory.iterdir() if p.suffix == ".toml")
            found += sorted(p for p in files if not p.name.startswith("."))
        return found

    def _read_entries(self) -> dict[Path, ListedPreset]:
        """Return the list entry of each preset file by its path. Only files that changed since they
        were last listed are read again."""
        files = self._list_files()
        if len(files) < _MANY:
            return {path: self._read_if_changed(path) for path in files}
        if not self._has_read_cache:
            self._has_read_cache = True
            self._read_cached_entries()
        before = list(map(self._entries.get, files))
        found = {path: self._read_if_changed(path) for path in files}
        now = list(map(self._entries.get, files))
        if any(new is not old for new, old in zip(now, before, strict=True)):
            self._write_cached_entries(files)
        return found

    def _read_cached_entries(self) -> None:
        cached = preset_list_cache.read_list_cache(paths.preset_list_file())
        for name, (stamp, fields) in cached.items():
            path = Path(name)
            with suppress(TypeError):  # fields that no entry has
                self._entries[path] = (
                    stamp,
                    ListedPreset(**{**fields, **self._path_and_origin_fields(path)}),
                )

    def _write_cached_entries(self, files: Sequence[Path]) -> None:
        good = {}
        for path in files:
            if path not in self._entries:
                continue
            stamp, entry = self._entries[path]
            if entry.error is None:
                good[str(path)] = (stamp, _cached_fields(entry))
        preset_list_cache.write_list_cache(paths.preset_list_file(), good)

    def _read_if_changed(self, path: Path) -> ListedPreset:
        stamp = _file_stamp(path)
        known_stamp, known = self._entries.get(path, (None, None))
        if known is not None and known_stamp == stamp:
            return known
        entry = _read_list_entry(**self._path_and_origin_fields(path))
        if stamp is not None:
            self._entries[path] = (stamp, entry)
        return entry

    def is_shipped(self, path: Path) -> bool:
        """Return whether the preset file belongs to Workbench. The user must trust any other preset
        before it may run programs."""
        return path.resolve().parent == paths.shipped_presets_dir().resolve()

    def _path_and_origin_fields(self, path: Path) -> dict[str, str]:
        """Return the fields "path" and "origin" of a list entry, which follow from the path of the
        preset file."""
        is_own = path.absolute().parent == self.own_dir.absolute()
        return {"path": str(path), "origin": "own" if is_own else "shipped"}


def _missing_baseline_finding(baseline: str, ids: Iterable[str], file: str) -> Finding:
    """Return the finding about a preset in `file` whose baseline is not among the presets `ids`."""
    close, fix = _close_names(baseline, ids), None
    if close:
        fix = f'did you mean "{close[0]}"?'
    text = f'baseline: there is no preset "{baseline}"'
    return Finding(Level.WARN, "preset.baseline", text, file=file, field="baseline", fix=fix)


def _read_document(path: Path, file: str | None = None) -> dict[str, Any] | Finding:
    """Return the TOML of a preset file; a finding if it cannot be read. `file` is its name in
    messages."""
    text = read_preset_text(path)
    if isinstance(text, Finding):
        return text
    return parse_preset_text(text, file)


def _close_names(name: str, names: Iterable[str]) -> Sequence[str]:
    from difflib import get_close_matches

    return get_close_matches(name, list(names), n=3, cutoff=0.5)


def _cached_fields(entry: ListedPreset) -> dict[str, Any]:
    fields = {}
    for name in ListedPreset.__slots__:
        value = getattr(entry, name)
        if value is not None:
            fields[name] = value
    return fields


def _file_stamp(path: Path) -> Stamp | None:
    """Return the file's modification time, change time, size and inode, which tell whether the file
    has changed. None if they cannot be read. A program can set the modification time back, but not
    the change time."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _read_list_entry(path: str, origin: str) -> ListedPreset:
    document = _read_document(Path(path), path)
    if isinstance(document, Finding):
        return ListedPreset(Path(path).stem, path, origin, error=document)
    for field in (("id",), ("title",), ("engine", "name")):
        if _field_of_type(document, str, *field) is None:
            name = ".".join(field)
            text = f"{name}: missing; expected text"
            error = Finding(Level.ERROR, "preset.missing-field", text, file=path, field=name)
            return ListedPreset(Path(path).stem, path, origin, error=error)
    listed: list[Any] = _field_or_default(document, [], "hardware", "gpu_names")
    gpu_names = tuple(name for name in listed if isinstance(name, str))
    gpu_count = _field_or_default(document, 1, "hardware", "count") or 1
    platform = _field_of_type(document, str, "hardware", "platform")
    return ListedPreset(
        id=document["id"],
        path=path,
        origin=origin,
        title=document["title"],
        summary=_field_or_default(document, "", "summary"),
        engine=document["engine"]["name"],
        model=_listed_model_name(document),
        quantization=_field_of_type(document, str, "model", "quantization"),
        hardware=hardware_line(gpu_names, gpu_count, platform),
        gpu_names=gpu_names,
        gpu_count=gpu_count,
        nodes=max(1, len(_field_or_default(document, [], "nodes"))),
        status=_field_or_default(document, "", "provenance", "status"),
        document=_field_or_default(document, "", "provenance", "document"),
        baseline=_field_of_type(document, str, "baseline"),
        caveats=len(_field_or_default(document, [], "caveats")),
    )


def _field_of_type(document: Mapping[str, Any], kind: type[T], *path: str) -> T | None:
    found: Any = document
    for key in path:
        found = as_table(found).get(key)
    return found if isinstance(found, kind) else None


def _field_or_default(document: Mapping[str, Any], default: T, *path: str) -> T:
    """Return the value of a field of the document; `default` if it is missing, or of another
    type."""
    found = _field_of_type(document, type(default), *path)
    return default if found is None else found


def hardware_line(gpu_names: Sequence[str], count: int, platform: str | None) -> str:
    """Return a short text about a preset's hardware, such as "2x GB10, dgx spark" or "4x any GPU".
    It has the first of `gpu_names`, and the platform if there is one."""
    line = next(iter(gpu_names), "any GPU").removeprefix("NVIDIA ").removeprefix("GeForce ")
    if count > 1:
        line = f"{count}x {line}"
    if platform:
        line += f", {platform}"
    return line


def _listed_model_name(document: Mapping[str, Any]) -> str:
    """Return the model's name for a list. A variable in the name is replaced by its default, or by
    the last part of its example."""

    def value_of_variable(match: re.Match[str]) -> str:
        default = _field_or_default(document, "", "variables", match[1], "default")
        example = _field_or_default(document, "", "variables", match[1], "example") or match[0]
        return default or example.rstrip("/").rsplit("/", 1)[-1]

    return re.sub(r"\$\{(\w+)\}", value_of_variable, _field_or_default(document, "", "model", "id"))
