"""Checks of preset files. Each finding names the field, the problem and the expected value.

No function here raises an error, whatever the file contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from workbench.engines import memory_locks, registry
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.preset import Preset
from workbench.model.run_options import OPTIONS, PROCESS, option_of
from workbench.model.settings import MEMORY_CLOCKS
from workbench.model.untrusted_text import clean_text
from workbench.store import paths, preset_documents
from workbench.store.preset_file import parse_preset_text, read_text
from workbench.store.preset_safety import (
    LOOK,
    launch_parts,
    safety_findings,
    variables_used_in,
    walk_values,
)
from workbench.store.toml_lines import FieldPath, LineIndex

MAX_FINDINGS = 100  # of one file, errors first


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a preset file. `preset` is None if one of the findings is an error.
    `document` is None if the file is not valid TOML."""

    findings: tuple[Finding, ...]
    document: Mapping[str, Any] | None = None
    preset: Preset | None = None


def check_file(path: Path) -> Checked:
    """Return the findings about the preset file at `path`, sorted by line, with its document and
    preset."""
    text = read_text(path)
    if isinstance(text, Finding):
        return Checked((text,))
    checked = check_text(text, file=str(path))
    # Users need not look at the programs of Workbench's own presets, which repeat a write-up. The
    # plan of such a preset warns of its memory lock.
    if path.resolve().parent != paths.shipped_presets_dir().resolve():
        return checked
    others = (f for f in checked.findings if f.fix != LOOK and f.code != "gpu.memory-lock")
    return replace(checked, findings=tuple(others))


def check_text(text: str, *, file: str | None = None) -> Checked:
    """Return the findings about the text of a preset, with its document and preset. `file` is the
    file name for messages; without its suffix, it should equal the preset's id."""
    document = parse_preset_text(text, file)
    if isinstance(document, Finding):
        return Checked((document,))
    lines = LineIndex(text)
    preset, schema = _validate_document(document)
    found = [
        *schema,
        *safety_findings(document),
        *_variable_findings(document),
        *_identity_findings(document, file),
    ]
    found += _run_findings(document)
    found += _memory_lock_findings(preset)
    broken = any(f.level is Level.ERROR for _, f in found)
    shown = sorted(found, key=lambda item: item[1].level is not Level.ERROR)[:MAX_FINDINGS]
    findings = sorted(
        (_finding_with_place(f, p, file and clean_text(file), lines) for p, f in shown),
        key=lambda f: f.line or 0,
    )
    return Checked(tuple(findings), document, None if broken else preset)


def _finding_with_place(
    finding: Finding, path: FieldPath, file: str | None, lines: LineIndex
) -> Finding:
    field = dotted_path(path)
    text = f"{field}: {finding.text}" if field else finding.text
    return replace(finding, text=text, file=file, line=lines.line(path), field=field or None)


def dotted_path(path: Sequence[str | int]) -> str:
    """Return a field's path as text: "claims[2].text" for ("claims", 2, "text")."""
    text = ""
    for part in path:
        shown = part if isinstance(part, int) else _escape_and_shorten(part)
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += f".{shown}"
        else:
            text = str(shown)
    return text


def _escape_and_shorten(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:60])


# Findings of the schema


def _validate_document(
    document: Mapping[str, Any],
) -> tuple[Preset | None, list[tuple[FieldPath, Finding]]]:
    found = {(path, finding.code): finding for path, finding in _unknown_engine(document)}
    preset = None
    try:
        preset = Preset.model_validate(document)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False)[:MAX_FINDINGS]:
            path = _existing_field_path(detail["loc"], document, detail["type"])
            finding = _schema_finding(path, detail["type"], detail["msg"], document, Preset)
            found.setdefault((path, finding.code), finding)
    return preset, [(path, finding) for (path, _), finding in found.items()]


def _unknown_engine(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    table = document.get("engine")
    name = table.get("name") if isinstance(table, Mapping) else None
    if name is not None and name not in registry.engine_names():
        known = ", ".join(f'"{known}"' for known in registry.engine_names())
        text = f"expected one of {known}, found {_found_text(name)}"
        fix = _did_you_mean(str(name), registry.engine_names())
        yield ("engine", "name"), Finding(Level.ERROR, "preset.wrong-type", text, fix=fix)


def _existing_field_path(location: Sequence[str | int], document: Any, kind: str) -> FieldPath:
    """Return the path in `document` of the field to which pydantic's error location refers. Names
    in the location that are not in the document, such as those of union members, are left out.
    `kind` is pydantic's error type."""
    path: list[str | int] = []
    value = document
    for part in location:
        known = (isinstance(value, Mapping) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        )
        if not known:
            return (*path, part) if kind == "missing" else tuple(path)
        path.append(part)
        value = value[part]
    return tuple(path)


def _schema_finding(
    path: FieldPath, kind: str, message: str, document: Any, schema: type
) -> Finding:
    name = str(path[-1]) if path else ""
    annotation = _annotation_at(path, schema)
    if kind == "extra_forbidden":
        siblings = _field_names(_annotation_at(path[:-1], schema))
        return Finding(
            Level.ERROR,
            "preset.unknown-field",
            f"unknown field; expected one of {', '.join(siblings)}",
            fix=_did_you_mean(name, siblings),
        )
    if kind == "missing":
        return Finding(
            Level.ERROR, "preset.missing-field", f"missing; expected {_expected_text(annotation)}"
        )
    value = _value_at(document, path)
    if annotation is not None and (
        kind.endswith(("_type", "_parsing", "_from_float")) or kind == "literal_error"
    ):
        text = f"expected {_expected_text(annotation)}, found {_found_text(value)}"
        choices = (
            [str(c) for c in get_args(_bare_annotation(annotation))]
            if kind == "literal_error"
            else []
        )
        return Finding(
            Level.ERROR, "preset.wrong-type", text, fix=_did_you_mean(str(value), choices)
        )
    text = message.removeprefix("Value error, ")
    if not text[:2].isupper():  # a sentence, and no abbreviation such as SLO
        text = text[:1].lower() + text[1:]
    return Finding(Level.ERROR, "preset.wrong-value", f"{text}, found {_found_text(value)}")


def _annotation_at(path: FieldPath, schema: Any) -> Any:
    """Return the type that the schema declares at `path`. None if the schema allows any value
    there."""
    here: Any = schema
    for part in path:
        here = _bare_annotation(here)
        if isinstance(part, int) and get_origin(here) in (list, tuple):
            here = get_args(here)[0]
        elif get_origin(here) is dict:
            here = get_args(here)[1]
        elif hasattr(here, "model_fields"):
            info = next((f for n, f in here.model_fields.items() if part in (n, f.alias)), None)
            here = info.annotation if info else None
        else:
            return None
    return here


def _bare_annotation(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not NoneType]
        if len(inner) == 1:
            return _bare_annotation(inner[0])
    return annotation


def _expected_text(annotation: Any) -> str:
    bare = _bare_annotation(annotation)
    origin = get_origin(bare)
    simple = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if bare in simple:
        return simple[bare]
    if origin is Literal:
        return "one of " + ", ".join(
            f'"{c}"' if isinstance(c, str) else str(c) for c in get_args(bare)
        )
    if origin in (Union, UnionType):
        return " or ".join(_expected_text(a) for a in get_args(bare))
    if origin in (list, tuple):
        return f"a list ({_expected_text(get_args(bare)[0])})"
    if hasattr(bare, "model_fields"):
        required = [f.alias or n for n, f in bare.model_fields.items() if f.is_required()]
        return "a table" + (f" with {', '.join(required)}" if required else "")
    return "a table" if origin is dict else "a value"


def _found_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_escape_and_shorten(value)}"'
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return str(value)[:60]


def _value_at(document: Any, path: FieldPath) -> Any:
    for part in path:
        document = document[part]
    return document


def _field_names(schema: Any) -> list[str]:
    fields = getattr(_bare_annotation(schema), "model_fields", {})
    return [f.alias or n for n, f in fields.items()]


def _did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    close = get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else None


# Findings that the schema cannot express


def _variable_findings(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    variables = document.get("variables")
    defined = list(variables) if isinstance(variables, Mapping) else []
    used: set[str] = set()
    # never applied, but may name variables
    shown = [(("host_settings",), document.get("host_settings", []))]
    for part_path, part in [*launch_parts(document), *shown]:
        for path, value in walk_values(part, part_path):
            for name in variables_used_in(value) if isinstance(value, str) else ():
                used.add(name)
                if path[0] == "variables":
                    text = f"a default cannot use a variable: ${{{name}}}"
                    yield path, Finding(Level.ERROR, "preset.variable-undefined", text)
                elif name not in defined:
                    fix = _did_you_mean(name, defined) or (
                        f"add a table [variables.{name}] with a description"
                    )
                    text = f"uses ${{{name}}}, which is not defined under variables"
                    yield path, Finding(Level.ERROR, "preset.variable-undefined", text, fix=fix)
    for name in defined:
        if name not in used:
            yield (
                ("variables", name),
                Finding(
                    Level.WARN,
                    "preset.variable-unused",
                    "no value of the preset uses this variable",
                ),
            )


def _memory_lock_findings(preset: Preset | None) -> Iterator[tuple[FieldPath, Finding]]:
    """Yield a finding for each lock of the memory clock of a GPU on which such a lock is known to
    cost throughput."""
    found = (
        memory_locks.memory_lock_warning(preset.hardware.gpu_names) if preset is not None else None
    )
    if preset is None or found is None:
        return
    for index, entry in enumerate(preset.gpu_settings):
        if MEMORY_CLOCKS.key in entry.settings:
            yield ("gpu_settings", index, MEMORY_CLOCKS.preset_field), found


def _run_findings(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    """Yield a finding for an unknown launcher (the program that runs the server, such as systemd),
    and for each run option that is invalid for the launcher."""
    table = document.get("launch")
    launch: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    word, options = launch.get("run_as", PROCESS), launch.get("run_options")
    if not isinstance(word, str):
        return  # a finding of the schema
    if word not in OPTIONS:
        text = f"expected one of {', '.join(OPTIONS)}, found {_found_text(word)}"
        yield (
            ("launch", "run_as"),
            Finding(Level.ERROR, "preset.run-as", text, fix=_did_you_mean(word, OPTIONS)),
        )
        return
    for name, value in options.items() if isinstance(options, Mapping) else ():
        texts = value if isinstance(value, list) else [value]
        try:
            option = option_of(word, name)
            for text in texts:
                if isinstance(text, str) and not variables_used_in(text):
                    option.parse(text)
            if len(texts) > 1 and not option.repeatable:
                raise InputError(f"the run option {name} can have only one value")
        except InputError as error:
            yield (
                ("launch", "run_options", name),
                Finding(Level.ERROR, "preset.run-option", error.message, fix=error.next_step),
            )


def _identity_findings(
    document: Mapping[str, Any], file: str | None
) -> Iterator[tuple[FieldPath, Finding]]:
    own_id, baseline = document.get("id"), document.get("baseline")
    known = preset_documents.source_document_names()
    listed = document.get("documents")
    for index, name in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(name, str) and name not in known:
            text = f'there is no write-up "{_escape_and_shorten(name)}"; Workbench has {", ".join(known)}'
            fix = _did_you_mean(name, known) or (
                "name the source under provenance, and its claims in [[claims]]"
            )
            yield (
                ("documents", index),
                Finding(Level.ERROR, "preset.unknown-document", text, fix=fix),
            )
    if isinstance(own_id, str) and own_id == baseline:
        yield (
            ("baseline",),
            Finding(Level.ERROR, "preset.baseline", "a preset cannot be its own baseline"),
        )
    if file and isinstance(own_id, str) and Path(file).stem != own_id:
        text = f'the id differs from the file name "{_escape_and_shorten(Path(file).name)}"'
        yield (
            ("id",),
            Finding(
                Level.WARN,
                "preset.file-name",
                text,
                fix=f'rename the file to "{_escape_and_shorten(own_id)}.toml"',
            ),
        )
