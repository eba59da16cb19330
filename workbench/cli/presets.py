"""The commands `presets` and `flags`, which show documented server setups and the launch flags of
an engine."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.open_session import connect_session, create_local_session
from workbench.cli.output import (
    format_finding_line,
    items_as_json,
    print_json,
    print_json_or_lines,
    print_line,
    print_message,
)
from workbench.cli.registry import command, option
from workbench.cli.shared_options import EXECUTABLE_HELP
from workbench.model.errors import HostError, InputError

if TYPE_CHECKING:
    from workbench.model.findings import Finding
    from workbench.model.preset import Preset
    from workbench.store.presets import ListedPreset


@command(
    "presets list",
    "list presets, shipped and your own",
    option("words WORD", "only presets with all words in id, title, engine or hardware", nargs="*"),
    examples=("workbench presets list", "workbench presets list spark 70b"),
)
def list_presets(arguments: argparse.Namespace) -> int:
    from workbench.store.presets import PresetLibrary

    library = PresetLibrary()
    words = [word.lower() for word in arguments.words]
    entries = [entry for entry in library.list() if _contains_all_words(entry, words)]
    findings = library.findings()
    if arguments.json:
        return print_json({"presets": items_as_json(entries), "findings": items_as_json(findings)})
    width = max((len(e.id) for e in entries), default=0)
    for entry in entries:
        if entry.error:
            print_line(f"{entry.id:<{width}}  ! {entry.error.text} ({entry.path})")
        else:
            print_line(
                f"{entry.id:<{width}}  {entry.engine:<9} {entry.status:<12} {entry.hardware}  "
                f"{entry.title}"
            )
    for finding in findings:
        print_message(format_finding_line(finding))
    return 0


def _contains_all_words(entry: ListedPreset, words: Sequence[str]) -> bool:
    fields = (entry.id, entry.title, entry.engine, entry.hardware, *entry.gpu_names)
    text = " ".join(filter(None, fields)).lower()
    return all(word in text for word in words)


@command(
    "presets show",
    "show one preset with its settings, claims and caveats",
    option("id", "id of a preset; `workbench presets list` lists them"),
    examples=("workbench presets show vllm-any",),
)
def show_preset(arguments: argparse.Namespace) -> int:
    preset = create_local_session().presets.get(arguments.id)
    return print_json_or_lines(
        arguments.json, preset.model_dump(mode="json", by_alias=True), _preset_lines(preset)
    )


def _preset_lines(preset: Preset) -> Iterator[str]:
    yield f"{preset.id}: {preset.title}\n\n{preset.summary}\n"
    yield from preset_section_lines(preset)


def preset_section_lines(preset: Preset, left_out: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of the sections of a preset, without those whose label is in `left_out`."""
    from workbench.store.preset_text import preset_sections

    for section in preset_sections(preset):
        if section.title:
            yield f"\n{section.title}:"
        for line in section.lines:
            if line.label not in left_out:
                yield f"{line.label:<10}{line.text}" if line.label else f"  {line.text}"


@command(
    "presets check",
    "check preset files for errors, without running anything in them",
    option("files FILE", "preset file (TOML)", nargs="+"),
    examples=("workbench presets check my-preset.toml",),
)
def check_presets(arguments: argparse.Namespace) -> int:
    """Check preset files and print the findings. Return the exit code: 2 if a file has an error,
    otherwise 0."""
    from workbench.model.findings import Level
    from workbench.store.presets import PresetLibrary

    library = PresetLibrary()
    checked: list[dict[str, Any]] = []
    for file in arguments.files:
        read = library.read_and_check(Path(file))
        findings = [*read.findings]
        if read.preset is not None:
            findings += _wrong_flag_findings(read.preset, Path(file))
        ok = not any(f.level is Level.ERROR for f in findings)
        checked.append({"file": file, "ok": ok, "findings": items_as_json(findings)})
        if not arguments.json:
            print_line(f"{file}: {'ok' if ok else 'not valid'}")
            for finding in findings:
                print_message(f"  {format_finding_line(finding)}")
    if arguments.json:
        print_json({"files": checked})
    return 0 if all(each["ok"] for each in checked) else 2


def _wrong_flag_findings(preset: Preset, path: Path) -> list[Finding]:
    """Return the errors in the values of the flags of `preset`, which is in the file `path`, with
    the default or example of each variable. [] if a variable has neither, because the flags are
    then unknown."""
    from workbench import engines
    from workbench.model.findings import Level
    from workbench.store.preset_file import read_preset_text
    from workbench.store.toml_lines import LineIndex

    examples = {name: one.default or one.example for name, one in preset.variables.items()}
    values = {name: value for name, value in examples.items() if value is not None}
    if len(values) < len(examples):
        return []
    plan = engines.plan_from_preset(preset, values)
    found = engines.validate_plan(plan, engines.get_engine(plan.engine).catalog())
    text = read_preset_text(path)
    lines = LineIndex(text if isinstance(text, str) else "")
    return [
        replace(finding, file=str(path), line=lines.line_of_field(("flags", finding.flag)))
        for finding in found
        if finding.flag and finding.level is Level.ERROR
    ]


@command("presets path", "print the directories of presets", examples=("workbench presets path",))
def print_preset_directories(arguments: argparse.Namespace) -> int:
    from workbench.store import paths

    own, shipped = str(paths.own_presets_dir()), str(paths.shipped_presets_dir())
    return print_json_or_lines(
        arguments.json, {"own": own, "shipped": shipped}, f"own      {own}\nshipped  {shipped}"
    )


@command(
    "flags",
    "list the launch flags of an engine, with types, defaults and help",
    option("engine ENGINE", "name of the engine, as `workbench presets list` shows it"),
    option(
        "--version V", "version of the engine (default: the newest known)", dest="engine_version"
    ),
    option("--search TEXT", "list only flags that match this text"),
    option(
        "--probe",
        "ask the engine that is installed on the host for its own flags; its answer is kept",
    ),
    option("--executable PATH", EXECUTABLE_HELP, default=""),
    examples=(
        "workbench flags vllm --search cache",
        "workbench flags vllm --probe --executable /opt/vllm/bin/vllm",
        "workbench flags sglang --json",
    ),
)
async def list_flags(arguments: argparse.Namespace) -> int:
    from workbench import engines

    engine = engines.get_engine(arguments.engine)
    if arguments.executable and not arguments.probe:
        raise InputError(
            "--executable has an effect only together with --probe", next_step="add --probe"
        )
    if arguments.probe:
        async with connect_session(arguments) as session:
            found = await session.plans.engine_flags.find_installed_engine(
                engine, arguments.executable
            )
            if found.problem:
                raise HostError(
                    found.problem,
                    host=session.host.name,
                    next_step="name the program with --executable",
                )
            catalog = await session.plans.engine_flags.query_engine_flags(engine, found, again=True)
        source = f"as {catalog.asked} on {session.host.name} lists them"
    else:
        catalog, source = engine.catalog(arguments.engine_version), "from the shipped list"
    shown = sorted(catalog.flags.values(), key=engines.sort_key_of_flag)
    if arguments.search:
        shown = engines.search_flags(catalog, arguments.search)
    if arguments.json:
        about = {"engine": engine.name, "version": catalog.version, "asked": catalog.asked}
        return print_json({**about, "flags": list(map(asdict, shown))})
    print_message(
        f"{engine.title} {catalog.version}: {len(shown)} of {len(catalog.flags)} flags, {source}"
    )
    for flag in shown:
        values = "|".join(flag.choices[:6]) or str(flag.kind)
        if flag.default is not None:
            values += f" = {engines.format_flag_value(flag.default)}"
        print_line(f"--{flag.name} {values}  {flag.help} ({flag.area})")
    return 0
