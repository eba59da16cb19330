"""presets, flags: documented server setups, and the launch flags of an engine."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.open_session import local_session
from workbench.cli.output import emit, emit_or_say, finding_line, note, say
from workbench.cli.registry import command, option
from workbench.model.counts import count_of
from workbench.model.settings import label_of, text_of

if TYPE_CHECKING:
    from workbench.model.preset import DocumentClaim, GpuSettingsEntry, HostSetting, Preset, Variable


@command(
    "presets list",
    "list all presets, shipped and your own",
    examples=("workbench presets list", "workbench presets list --json"),
)
def list_presets(arguments: argparse.Namespace) -> int:
    from workbench.store.presets import PresetLibrary

    library = PresetLibrary()
    entries, findings = library.list(), library.findings()
    if arguments.json:
        return emit({"presets": [e.as_json() for e in entries], "findings": [f.as_json() for f in findings]})
    width = max((len(e.id) for e in entries), default=0)
    for entry in entries:
        if entry.error:
            say(f"{entry.id:<{width}}  ! {entry.error.text} ({entry.path})")
        else:
            say(f"{entry.id:<{width}}  {entry.engine:<9} {entry.status:<12} {entry.hardware}  {entry.title}")
    for finding in findings:
        note(finding_line(finding))
    return 0


@command(
    "presets show",
    "show one preset with its settings, claims and caveats",
    option("id", "id of a preset; `workbench presets list` lists them"),
    examples=("workbench presets show vllm-any",),
)
def show_preset(arguments: argparse.Namespace) -> int:
    preset = local_session().presets.get(arguments.id)
    return emit_or_say(arguments.json, preset.model_dump(mode="json", by_alias=True), _preset_lines(preset))


def _preset_lines(preset: Preset) -> Iterator[str]:
    hardware, benchmark, source = preset.hardware, preset.benchmark, preset.provenance
    yield f"{preset.id}: {preset.title}\n\n{preset.summary}\n"
    yield f"engine    {preset.engine.name} {preset.engine.versions or ''}"
    if preset.engine.executable:
        yield f"program   {shlex.join(map(preset.filled, preset.engine.executable))}"
    if preset.engine.workdir:
        yield f"in        {preset.filled(preset.engine.workdir)}"
    yield f"model     {preset.filled(preset.model.id)} {preset.model.quantization or ''}"
    yield f"hardware  {hardware.count} x {', '.join(hardware.gpu_names) or 'any NVIDIA GPU'}"
    yield f"platform  {hardware.platform or 'any'}"
    yield f"baseline  {preset.baseline or 'none'}"
    requests = count_of(benchmark.requests, "request")
    yield f"benchmark {benchmark.profile}, {requests}, concurrency {benchmark.concurrency}"
    yield f"from      {source.document} ({source.status}) {source.note or ''}"
    yield from _setting_lines(preset.flags, preset.env)
    for node in preset.nodes:
        yield f"node {node.rank}: {node.name}"
        yield from _setting_lines(node.flags, node.env)
    for title, lines in (
        ("Variables", [f"{n}: {v.description}{_default(v)}" for n, v in preset.variables.items()]),
        ("GPU settings (loading the preset does not apply them)", [_gpu_settings(g) for g in preset.gpu_settings]),
        (
            "Host settings (Workbench never applies them)",
            [_with_reason(f"{h.name} = {h.value}", h) for h in preset.host_settings],
        ),
        ("Caveats", preset.caveats),
        ("Claims", [_claim(c) for c in preset.claims]),
        (
            "Results",
            [f"{r.metric} {r.value:g} {r.unit}: {r.conditions} ({r.status}; {r.source})" for r in preset.references],
        ),
    ):
        if lines:
            yield f"\n{title}:"
            yield from (f"  {line}" for line in lines)


def _setting_lines(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    for name, value in flags.items():
        text = "" if value is True else f" {value if isinstance(value, str) else json.dumps(value)}"
        yield f"  --{name}{text}"
    for name, value in env.items():
        yield f"  {name}={value}"


def _default(variable: Variable) -> str:
    if variable.default is not None:
        return f" (default {variable.default})"
    return f" (e.g. {variable.example})" if variable.example else ""


def _gpu_settings(entry: GpuSettingsEntry) -> str:
    named = ", ".join(f"{label_of(key)} {text_of(key, value)}" for key, value in entry.settings.items())
    return _with_reason(f"GPU {entry.gpu}: {named}", entry)


def _with_reason(text: str, entry: GpuSettingsEntry | HostSetting) -> str:
    return f"{text} ({entry.reason})" if entry.reason else text


def _claim(claim: DocumentClaim) -> str:
    lines = f"; lines {claim.lines}" if claim.lines else ""
    return f"[{claim.verdict}] {claim.text} -> {claim.correct} ({claim.basis}{lines})"


@command(
    "presets check",
    "check preset files for errors, without running anything in them",
    option("files FILE", "preset file (TOML)", nargs="+"),
    examples=("workbench presets check my-preset.toml",),
)
def check_presets(arguments: argparse.Namespace) -> int:
    """Check preset files. Exit with 2 if one has an error."""
    from workbench.model.findings import Level
    from workbench.store.presets import PresetLibrary

    library = PresetLibrary()
    checked: list[dict[str, Any]] = []
    for file in arguments.files:
        findings = library.check(Path(file))
        ok = not any(f.level is Level.ERROR for f in findings)
        checked.append({"file": file, "ok": ok, "findings": [f.as_json() for f in findings]})
        if not arguments.json:
            say(f"{file}: {'ok' if not findings else ''}")
            for finding in findings:
                note(f"  {finding_line(finding)}")
    if arguments.json:
        emit({"files": checked})
    return 0 if all(each["ok"] for each in checked) else 2


@command("presets path", "print the directories of presets", examples=("workbench presets path",))
def presets_path(arguments: argparse.Namespace) -> int:
    from workbench.store import paths

    own, shipped = str(paths.own_presets_dir()), str(paths.shipped_presets_dir())
    return emit_or_say(arguments.json, {"own": own, "shipped": shipped}, f"own      {own}\nshipped  {shipped}")


@command(
    "flags",
    "list the launch flags of an engine, with types, defaults and help",
    option("engine ENGINE", "vllm, sglang, tabbyapi or llamacpp"),
    option("--version V", "version of the engine (default: the newest known)", dest="engine_version"),
    option("--search TEXT", "list only flags that match this text"),
    examples=("workbench flags vllm --search cache", "workbench flags sglang --json"),
)
def flags(arguments: argparse.Namespace) -> int:
    from workbench import engines

    engine = engines.get(arguments.engine)
    catalog = engine.catalog(arguments.engine_version)
    found = engines.search(catalog, arguments.search) if arguments.search else list(catalog.flags.values())
    if arguments.json:
        return emit({"engine": engine.name, "version": catalog.version, "flags": [asdict(f) for f in found]})
    note(f"{engine.title} {catalog.version}: {len(found)} of {len(catalog.flags)} flags")
    for flag in found:
        values = "|".join(flag.choices[:6]) if flag.choices else str(flag.kind)
        default = "" if flag.default is None else f" = {engines.format_value(flag.default)}"
        say(f"--{flag.name} {values}{default}  {flag.help}")
    return 0
