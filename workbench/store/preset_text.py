"""A preset as text: the sections that `presets show` and the screen's page print."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workbench.model.counts import count_of
from workbench.model.settings import label_of, text_of

if TYPE_CHECKING:
    from workbench.model.preset import DocumentClaim, GpuSettingsEntry, HostSetting, Preset, ReferenceResult, Variable

Sign = Literal["", "good", "warn", "unproven", "bad"]
_SIGNS: Mapping[str, Sign] = {"true": "good", "partly": "warn", "unproven": "unproven", "false": "bad"}  # of a verdict


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a section. Only the lines of the first section have a label. `sign` is the line's severity."""

    text: str
    label: str = ""
    sign: Sign = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str  # "" of the first section
    lines: tuple[Line, ...]


def preset_sections(preset: Preset) -> list[Section]:
    """Return all that is known of a preset but its id, title and summary. Sections without lines are left out."""
    nodes = (
        (f"Settings of node {node.rank}: {node.name}", _plain(_settings(node.flags, node.env))) for node in preset.nodes
    )
    sections = (
        ("", _facts(preset)),
        ("Settings", _plain(_settings(preset.flags, preset.env))),
        *nodes,
        ("Variables", _plain(_variable(name, variable) for name, variable in preset.variables.items())),
        ("GPU settings (loading the preset does not apply them)", _plain(map(_gpu_settings, preset.gpu_settings))),
        ("Host settings (Workbench never applies them)", _plain(map(_host_setting, preset.host_settings))),
        ("Caveats", [Line(caveat, sign="warn") for caveat in preset.caveats]),
        ("Claims of the document", map(_claim, preset.claims)),
        ("Reference results", _plain(map(_reference, preset.references))),
    )
    made = (Section(title, tuple(lines)) for title, lines in sections)
    return [section for section in made if section.lines]


def about_flag(preset: Preset, name: str, aliases: Iterable[str] = ()) -> list[str]:
    """Return what a preset says about the flag `name`: its value in the preset, then the caveats and claims that
    mention one of its spellings."""
    value = preset.flags.get(name)
    texts = [f"preset: {preset.filled(line)}" for line in _settings({name: value}, {})] if value is not None else []
    spellings = [f"--{name}", *(alias for alias in aliases if alias.startswith("--"))]
    spellings += [name, name.replace("-", "_")] if "-" in name else []
    mentions = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, spellings))})(?![\w-])")
    texts += [f"caveat: {caveat}" for caveat in preset.caveats if mentions.search(caveat)]
    return texts + [
        f"document: {_claim(claim).text}" for claim in preset.claims if mentions.search(f"{claim.text} {claim.correct}")
    ]


def _facts(preset: Preset) -> list[Line]:
    engine, hardware, benchmark, source = preset.engine, preset.hardware, preset.benchmark, preset.provenance
    requests = count_of(benchmark.requests, "request")
    facts = (
        ("engine", f"{engine.name} {engine.versions or ''}"),
        ("program", shlex.join(map(preset.filled, engine.executable or ()))),
        ("directory", preset.filled(engine.workdir or "")),
        ("model", f"{preset.filled(preset.model.id)} {preset.model.quantization or ''}"),
        ("hardware", f"{hardware.count} x {' or '.join(hardware.gpu_names) or 'any NVIDIA GPU'}"),
        ("platform", hardware.platform or "any"),
        ("baseline", preset.baseline or "none"),
        ("benchmark", f"{benchmark.profile}, {requests}, concurrency {', '.join(map(str, benchmark.concurrency))}"),
        ("source", f"{source.document} ({', '.join(filter(None, (source.status, source.date)))}) {source.note or ''}"),
    )
    return [Line(text.strip(), label) for label, text in facts if text.strip()]


def _plain(texts: Iterable[str]) -> list[Line]:
    return [Line(text) for text in texts]


def _settings(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    for name, value in flags.items():
        text = "" if value is True else f" {value if isinstance(value, str) else json.dumps(value)}"
        yield f"--{name}{text}"
    for name, value in env.items():
        yield f"{name}={value}"


def _variable(name: str, variable: Variable) -> str:
    if variable.default is not None:
        return f"{name}: {variable.description} (default {variable.default})"
    return f"{name}: {variable.description}" + (f" (e.g. {variable.example})" if variable.example else "")


def _gpu_settings(entry: GpuSettingsEntry) -> str:
    named = ", ".join(f"{label_of(key)} {text_of(key, value)}" for key, value in entry.settings.items())
    return _with_reason(f"GPU {entry.gpu}: {named}", entry.reason)


def _host_setting(entry: HostSetting) -> str:
    return _with_reason(f"{entry.name} = {entry.value}", entry.reason)


def _with_reason(text: str, reason: str | None) -> str:
    return f"{text} ({reason})" if reason else text


def _claim(claim: DocumentClaim) -> Line:
    lines = f"; lines {claim.lines}" if claim.lines else ""
    text = f"{claim.verdict}: {claim.text} -> {claim.correct} ({claim.basis}{lines})"
    return Line(text, sign=_SIGNS[claim.verdict])


def _reference(result: ReferenceResult) -> str:
    return f"{result.metric} {result.value:,g} {result.unit}: {result.conditions} ({result.status}; {result.source})"
