"""Writing presets: making a document from a plan, and saving a document without losing the comments
of an older file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from workbench.model.errors import PresetError
from workbench.model.flags import FlagSetting, Origin
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import PROCESS
from workbench.store.preset_check import check_text
from workbench.store.preset_file import parse_preset_text, read_preset_text
from workbench.store.text_files import write_atomic
from workbench.store.toml_edit import drop_none_values, merge_into_table

_ID = re.compile(r"[a-z0-9][a-z0-9.-]{1,63}")
_ABOUT_THE_PARENT = ("references", "claims")


def save_preset(
    document: Mapping[str, Any], preset_id: str, directory: Path, *, replace_existing: bool = False
) -> Path:
    """Check a preset document and write it atomically to `<directory>/<id>.toml`. Return the path.
    Raises PresetError, and writes nothing, if the document is invalid or the file exists and
    `replace_existing` is False."""
    if not _ID.fullmatch(preset_id):
        raise PresetError(
            f'"{preset_id}" is not a valid preset id',
            next_step="use 2 to 64 characters: a-z, 0-9, dots and dashes",
        )
    path = directory / f"{preset_id}.toml"
    if path.exists() and not replace_existing:
        raise PresetError(
            f"the preset file {path} exists already",
            next_step="choose another preset id, or remove the file first",
        )
    text = _merged_file_text({**document, "id": preset_id}, path)
    checked = check_text(text, file=str(path))
    if checked.preset is None:
        first = checked.errors[0]
        raise PresetError(
            f"the preset was not saved: {first.text}",
            next_step=first.fix,
            findings=checked.findings,
        )
    write_atomic(path, text)
    return path


def _merged_file_text(document: Mapping[str, Any], path: Path) -> str:
    old = read_preset_text(path) if path.exists() else None
    if isinstance(old, str) and isinstance(parse_preset_text(old), dict):
        target = tomlkit.parse(old)
        merge_into_table(target, document)
        return tomlkit.dumps(target)
    return tomlkit.dumps(_sort_tables_last(document))


def _sort_tables_last(document: Mapping[str, Any]) -> tomlkit.TOMLDocument:
    """Return a TOML document with plain values before tables, because a key after a table's header
    would belong to that table."""
    result = tomlkit.document()
    clean = drop_none_values(document)
    for key, value in sorted(clean.items(), key=lambda item: _is_table(item[1])):
        result[key] = value
    return result


def _is_table(value: Any) -> bool:
    if isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, dict)


def document_from_plan(
    plan: LaunchPlan,
    parent: Mapping[str, Any],
    *,
    preset_id: str,
    title: str,
    summary: str | None = None,
) -> dict[str, Any]:
    """Return the document of a new preset: its `parent` (a preset document) with the settings of
    `plan`. A field of the parent that contains variables, such as "${name}", stays as it is if
    filling in the plan's variables gives the plan's value. The new preset names the parent as its
    baseline, with which it is compared. Other fields are copied, except those that describe only
    the parent, such as its title. Without `summary`, the summary says what was changed."""
    known = dict(plan.variables)
    engine = parent["engine"]
    own_engine = engine if plan.engine == engine.get("name") else {}
    flags = _settings_table(plan.flags, parent.get("flags", {}), known)
    changes = _changed_flags_text(flags, parent.get("flags", {}))
    document = {
        **{name: value for name, value in parent.items() if name not in _ABOUT_THE_PARENT},
        "schema": 1,
        "id": preset_id,
        "title": title,
        "summary": summary or f"From {parent['id']}. {changes}".strip(),
        "baseline": parent["id"],
        "engine": {
            **own_engine,
            "name": plan.engine,
            "executable": _argv_or_template(plan.executable, engine.get("executable"), known),
            "workdir": _template_or_value(plan.workdir, engine.get("workdir"), known),
        },
        "launch": _launch_table(plan, parent.get("launch", {}), known),
        "model": _model_table(plan, parent["model"], known),
        "flags": flags,
        "env": _settings_table(plan.env, parent.get("env", {}), known),
        "nodes": parent.get("nodes") if plan.nodes else None,
        "provenance": {
            "document": parent["id"],
            **parent.get("provenance", {}),
            "status": "untested",
            "note": f"Made from {parent['id']}. {changes}".strip(),
        },
    }
    variables = document.pop("variables", {})
    used = set(re.findall(r"\$\{(\w+)\}", repr(document)))
    document["variables"] = {name: variable for name, variable in variables.items() if name in used}
    required = ("hardware",)  # also without a field
    return {name: value for name, value in document.items() if value or name in required}


def _settings_table(
    settings: Sequence[FlagSetting], parent: Mapping[str, Any], known: Mapping[str, str]
) -> dict[str, Any]:
    elsewhere = (Origin.DEFAULT, Origin.HOST, Origin.INHERITED)  # where the values stand already
    return {
        s.name: _template_or_value(s.value, parent.get(s.name), known)
        for s in settings
        if s.origin not in elsewhere
    }


def _template_or_value(value: Any, template: Any, known: Mapping[str, str]) -> Any:
    """Return `template`, a field with variables, if filling in the variables in `known` gives
    `value`. Otherwise return `value`."""
    if template is not None and _fill_in_template(template, known) == value:
        return template
    return value


def _fill_in_template(template: Any, known: Mapping[str, str]) -> Any:
    if isinstance(template, str):
        return re.sub(r"\$\{(\w+)\}", lambda m: known.get(m[1], m[0]), template)
    if isinstance(template, list):
        return [_fill_in_template(t, known) for t in template]
    if isinstance(template, dict):
        return {k: _fill_in_template(v, known) for k, v in template.items()}
    return template


def _launch_table(
    plan: LaunchPlan, parent: Mapping[str, Any], known: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the preset's table "launch", with the launcher (the program that runs the server, such
    as systemd) and its options. None if Workbench itself starts the server."""
    if plan.run_as == PROCESS:
        return None
    before, options = parent.get("run_options", {}), {}
    for name, text in plan.run_options.items():
        value = text.split("\n") if "\n" in text else text
        options[name] = _template_or_value(value, before.get(name), known)
    return {"run_as": plan.run_as, "run_options": options}


def _argv_or_template(
    argv: Sequence[str], template: Any, known: Mapping[str, str]
) -> list[str] | None:
    return _template_or_value(list(argv), template, known) if argv else None


def _model_table(
    plan: LaunchPlan, parent: Mapping[str, Any], known: Mapping[str, str]
) -> dict[str, Any]:
    """Return the preset's table "model". It is the parent's table if the plan has the same model,
    otherwise a table with only the model's id."""
    if _fill_in_template(parent.get("id"), known) == plan.model:
        return dict(parent)
    return {"id": plan.model}


def _changed_flags_text(flags: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    changed = []
    for name, value in flags.items():
        if name not in before and value is not None:
            changed.append(f"{name} {value}")
        elif before.get(name) != value:
            changed.append(f"{name} {before[name]} → {value}")
    changed += [f"without {name}" for name in before if name not in flags]
    if not changed:
        return ""
    return f"Changed: {', '.join(changed)}."
