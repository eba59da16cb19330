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
from pydantic.fields import FieldInfo

from workbench.engines import memory_locks, registry
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.preset import Preset
from workbench.model.run_options import OPTIONS, PROCESS, launcher_option
from workbench.model.run_options.option import RunOption
from workbench.model.settings import MEMORY_CLOCKS
from workbench.model.untrusted_text import as_list, as_table, clean_text
from workbench.store import paths, preset_documents
from workbench.store.preset_file import parse_preset_text, read_preset_text
from workbench.store.preset_safety import (
    LOOK,
    escape_and_shorten,
    safety_findings,
    variables_used_in,
    walk_launch_parts,
    walk_values,
)
from workbench.store.toml_lines import FieldPath, LineIndex

MAX_FINDINGS = 100  # of one file, errors first
_WRONG_CHOICE = "literal_error"
_WRONG_TYPES = ("_type", "_parsing", "_from_float", _WRONG_CHOICE)  # ends of pydantic's errors


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a preset file. `preset` is None if one of the findings is an error.
    `document` is None if the file is not valid TOML."""

    findings: tuple[Finding, ...]
    document: Mapping[str, Any] | None = None
    preset: Preset | None = None

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_error]


def check_file(path: Path) -> Checked:
    """Check the preset file at `path`. Return the findings, sorted by line, with its document and
    preset. A file that cannot be read is a finding too."""
    text = read_preset_text(path)
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
    """Check the text of a preset. Return the findings, sorted by line, with its document and
    preset. `file` is the file name for messages; without its suffix, it should equal the preset's
    id."""
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
    found.sort(key=lambda item: item[1].level is not Level.ERROR)
    if found and found[0][1].level is Level.ERROR:
        preset = None
    shown_file = file and clean_text(file)
    findings = [
        _finding_with_file_and_line(f, p, shown_file, lines) for p, f in found[:MAX_FINDINGS]
    ]
    findings.sort(key=lambda f: f.line or 0)
    return Checked(tuple(findings), document, preset)


def _finding_with_file_and_line(
    finding: Finding, path: FieldPath, file: str | None, lines: LineIndex
) -> Finding:
    placed = replace(finding, file=file, line=lines.line_of_field(path))
    field = dotted_path(path)
    if not field:
        return replace(placed, field=None)
    return replace(placed, text=f"{field}: {finding.text}", field=field)


def dotted_path(path: Sequence[str | int]) -> str:
    """Return a field's path as text: "claims[2].text" for ("claims", 2, "text")."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{escape_and_shorten(part)}"
    return text.removeprefix(".")


# Findings of the schema


def _validate_document(
    document: Mapping[str, Any],
) -> tuple[Preset | None, list[tuple[FieldPath, Finding]]]:
    found = {(path, finding.code): finding for path, finding in _unknown_engine_findings(document)}
    preset = None
    try:
        preset = Preset.model_validate(document)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False)[:MAX_FINDINGS]:
            path = _existing_field_path(detail["loc"], document, detail["type"])
            finding = _schema_finding(path, detail["type"], detail["msg"], document, Preset)
            found.setdefault((path, finding.code), finding)
    return preset, [(path, finding) for (path, _), finding in found.items()]


def _unknown_engine_findings(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    name = as_table(document.get("engine")).get("name")
    if name is not None and name not in registry.engine_names():
        known = ", ".join(f'"{known}"' for known in registry.engine_names())
        text = f"expected one of {known}, found {_found_value_text(name)}"
        fix = _did_you_mean(str(name), registry.engine_names())
        yield ("engine", "name"), Finding(Level.ERROR, "preset.wrong-type", text, fix=fix)


def _existing_field_path(location: Sequence[str | int], document: Any, kind: str) -> FieldPath:
    """Return the path in `document` of the field to which pydantic's error location refers. The
    path ends before the first name that is not in the document, such as that of a union member; the
    name of a missing field is its last part. `kind` is pydantic's error type."""
    path: list[str | int] = []
    value = document
    for part in location:
        if not _has_part(value, part):
            if kind == "missing":
                path.append(part)
            break
        path.append(part)
        value = value[part]
    return tuple(path)


def _has_part(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _schema_finding(
    path: FieldPath, kind: str, message: str, document: Any, schema: type
) -> Finding:
    annotation = _annotation_at(path, schema)
    if kind == "extra_forbidden":
        siblings = list(_fields_by_name(_annotation_at(path[:-1], schema)))
        return Finding(
            Level.ERROR,
            "preset.unknown-field",
            f"unknown field; expected one of {', '.join(siblings)}",
            fix=_did_you_mean(str(path[-1]), siblings),
        )
    if kind == "missing":
        text = f"missing; expected {_expected_type_text(annotation)}"
        return Finding(Level.ERROR, "preset.missing-field", text)
    value = _value_at(document, path)
    if annotation is not None and kind.endswith(_WRONG_TYPES):
        text = f"expected {_expected_type_text(annotation)}, found {_found_value_text(value)}"
        choices: Sequence[str] = ()
        if kind == _WRONG_CHOICE:
            choices = [str(c) for c in get_args(_annotation_without_optional(annotation))]
        fix = _did_you_mean(str(value), choices)
        return Finding(Level.ERROR, "preset.wrong-type", text, fix=fix)
    text = message.removeprefix("Value error, ")
    if not text[:2].isupper():  # a sentence, and no abbreviation such as SLO
        text = text[:1].lower() + text[1:]
    return Finding(Level.ERROR, "preset.wrong-value", f"{text}, found {_found_value_text(value)}")


def _annotation_at(path: FieldPath, schema: Any) -> Any:
    """Return the type that the schema declares at `path`. None if the schema allows any value
    there."""
    here: Any = schema
    for part in path:
        here = _annotation_without_optional(here)
        if isinstance(part, int) and get_origin(here) in (list, tuple):
            here = get_args(here)[0]
        elif get_origin(here) is dict:
            here = get_args(here)[1]
        else:
            fields = getattr(here, "model_fields", {})
            types = (f.annotation for n, f in fields.items() if part in (n, f.alias))
            here = next(types, None)
    return here


def _annotation_without_optional(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not NoneType]
        if len(inner) == 1:
            return _annotation_without_optional(inner[0])
    return annotation


def _expected_type_text(annotation: Any) -> str:
    bare = _annotation_without_optional(annotation)
    origin, inner = get_origin(bare), get_args(bare)
    simple = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if bare in simple:
        return simple[bare]
    if origin is Literal:
        return f"one of {', '.join(map(_choice_text, inner))}"
    if origin in (Union, UnionType):
        return " or ".join(map(_expected_type_text, inner))
    if origin in (list, tuple):
        return f"a list ({_expected_type_text(inner[0])})"
    if origin is dict:
        return "a table"
    if not hasattr(bare, "model_fields"):
        return "a value"
    required = [name for name, field in _fields_by_name(bare).items() if field.is_required()]
    if not required:
        return "a table"
    return f"a table with {', '.join(required)}"


def _choice_text(choice: Any) -> str:
    return f'"{choice}"' if isinstance(choice, str) else str(choice)


def _found_value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{escape_and_shorten(value)}"'
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return str(value)[:60]


def _value_at(document: Any, path: FieldPath) -> Any:
    for part in path:
        document = document[part]
    return document


def _fields_by_name(schema: Any) -> dict[str, FieldInfo]:
    """Return the fields of a table of the schema by the names that they have in a file; {} if the
    schema has no table."""
    fields = getattr(_annotation_without_optional(schema), "model_fields", {})
    return {field.alias or name: field for name, field in fields.items()}


def _did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    close = get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    if not close:
        return None
    return f'did you mean "{close[0]}"?'


# Findings that the schema cannot express


def _variable_findings(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    defined = list(as_table(document.get("variables")))
    used: set[str] = set()
    for path, name in _variable_uses(document):
        used.add(name)
        if path[0] == "variables":
            text = f"a default cannot use a variable: ${{{name}}}"
            yield path, Finding(Level.ERROR, "preset.variable-undefined", text)
        elif name not in defined:
            own = f"add a table [variables.{name}] with a description"
            fix = _did_you_mean(name, defined) or own
            text = f"uses ${{{name}}}, which is not defined under variables"
            yield path, Finding(Level.ERROR, "preset.variable-undefined", text, fix=fix)
    for name in defined:
        if name not in used:
            text = "no value of the preset uses this variable"
            yield ("variables", name), Finding(Level.WARN, "preset.variable-unused", text)


def _variable_uses(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, str]]:
    """Yield (path, name of the variable) for each ${name} in the values of a preset."""
    # never applied, but may name variables
    shown = [(("host_settings",), document.get("host_settings", []))]
    for part_path, part in [*walk_launch_parts(document), *shown]:
        for path, value in walk_values(part, part_path):
            if isinstance(value, str):
                for name in variables_used_in(value):
                    yield path, name


def _memory_lock_findings(preset: Preset | None) -> Iterator[tuple[FieldPath, Finding]]:
    """Yield a finding for each lock of the memory clock of a GPU on which such a lock is known to
    cost throughput."""
    if preset is None:
        return
    found = memory_locks.warn_of_memory_locks(preset.hardware.gpu_names)
    if found is None:
        return
    for index, entry in enumerate(preset.gpu_settings):
        if MEMORY_CLOCKS.key in entry.settings:
            yield ("gpu_settings", index, MEMORY_CLOCKS.preset_field), found


def _run_findings(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    """Yield a finding for an unknown launcher (the program that runs the server, such as systemd),
    and for each run option that is invalid for the launcher."""
    launch = as_table(document.get("launch"))
    word, options = launch.get("run_as", PROCESS), as_table(launch.get("run_options"))
    if not isinstance(word, str):
        return  # a finding of the schema
    if word not in OPTIONS:
        text = f"expected one of {', '.join(OPTIONS)}, found {_found_value_text(word)}"
        yield (
            ("launch", "run_as"),
            Finding(Level.ERROR, "preset.run-as", text, fix=_did_you_mean(word, OPTIONS)),
        )
        return
    for name, value in options.items():
        try:
            _check_run_option(launcher_option(word, name), value)
        except InputError as error:
            yield (
                ("launch", "run_options", name),
                Finding(Level.ERROR, "preset.run-option", error.message, fix=error.next_step),
            )


def _check_run_option(option: RunOption, value: Any) -> None:
    """Raise InputError if `value` cannot be the value, or the list of values, of a run option."""
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if isinstance(text, str) and not variables_used_in(text):
            option.parse(text)
    if len(texts) > 1 and not option.repeatable:
        raise InputError(f"the run option {option.name} can have only one value")


def _identity_findings(
    document: Mapping[str, Any], file: str | None
) -> Iterator[tuple[FieldPath, Finding]]:
    own_id, baseline = document.get("id"), document.get("baseline")
    known = preset_documents.source_document_names()
    for index, name in enumerate(as_list(document.get("documents"))):
        if isinstance(name, str) and name not in known:
            text = f'there is no write-up "{escape_and_shorten(name)}"; Workbench has {", ".join(known)}'
            own = "name the source under provenance, and its claims in [[claims]]"
            fix = _did_you_mean(name, known) or own
            found = Finding(Level.ERROR, "preset.unknown-document", text, fix=fix)
            yield ("documents", index), found
    if not isinstance(own_id, str):
        return
    if own_id == baseline:
        text = "a preset cannot be its own baseline"
        yield ("baseline",), Finding(Level.ERROR, "preset.baseline", text)
    if file and Path(file).stem != own_id:
        text = f'the id differs from the file name "{escape_and_shorten(Path(file).name)}"'
        fix = f'rename the file to "{escape_and_shorten(own_id)}.toml"'
        yield ("id",), Finding(Level.WARN, "preset.file-name", text, fix=fix)
