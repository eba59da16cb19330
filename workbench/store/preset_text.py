"""A preset as text: the sections that `presets show` and the screen's page print."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import PARALLEL_SIZES
from workbench.model.run_options import PROCESS
from workbench.model.settings import format_setting_value, label_of

if TYPE_CHECKING:
    from workbench.model.preset import (
        DocumentClaim,
        GpuSettingsEntry,
        HostSetting,
        Preset,
        ReferenceResult,
        Variable,
    )

Sign = Literal["", "good", "warn", "unproven", "bad"]

_GPU_SETTINGS_TITLE = (
    "GPU settings (applied by `presets apply` and by A on the screen, not by loading the preset)"
)
# of a verdict
_SIGNS: Mapping[str, Sign] = {
    "true": "good",
    "partly": "warn",
    "unproven": "unproven",
    "false": "bad",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a section in the text of a preset. Only the lines of the first section have a
    label. `sign` says whether the line is good or a problem ("warn", "unproven", "bad"); "" means
    neither."""

    text: str
    label: str = ""
    sign: Sign = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str  # "" of the first section
    lines: tuple[Line, ...]


def preset_sections(preset: Preset) -> list[Section]:
    """Return all contents of a preset except its id, title and summary, as titled sections of
    lines. Sections without lines are left out."""
    fill_in = preset.fill_in_variable_defaults
    sections = [
        Section("", tuple(_fact_lines(preset))),
        _plain_section("Settings", map(fill_in, _setting_texts(preset.flags, preset.env))),
    ]
    for node in preset.nodes:
        settings = map(fill_in, _setting_texts(node.flags, node.env))
        sections.append(_plain_section(f"Settings of node {node.rank}: {node.name}", settings))
    host_settings = map(fill_in, map(_host_setting_text, preset.host_settings))
    sections += [
        _plain_section("Variables", starmap(_variable_text, preset.variables.items())),
        _plain_section(_GPU_SETTINGS_TITLE, map(_gpu_settings_text, preset.gpu_settings)),
        _plain_section("Host settings (Workbench never applies them)", host_settings),
        _plain_section("Reference results", map(_reference_text, preset.references)),
        Section("Caveats", tuple(Line(caveat, sign="warn") for caveat in preset.caveats)),
        *_claim_sections(preset),
    ]
    return [section for section in sections if section.lines]


def _plain_section(title: str, texts: Iterable[str]) -> Section:
    return Section(title, tuple(map(Line, texts)))


def _claim_sections(preset: Preset) -> Iterator[Section]:
    found: dict[str, list[Line]] = {}
    for claim in preset.claims:
        document = claim.document or preset.provenance.document
        found.setdefault(document, []).append(_claim_line(claim))
    for document, lines in found.items():
        yield Section(f"Claims of {document}", tuple(lines))


def texts_about_flag(preset: Preset, name: str, aliases: Iterable[str] = ()) -> list[str]:
    """Return what a preset says about the flag `name`, as one text each: its value in the preset,
    then each known problem (caveat) and each statement of a write-up (claim) that mentions the
    flag. [] if there is nothing. `aliases` are other spellings of the flag."""
    value = preset.flags.get(name)
    texts: list[str] = []
    if value is not None:
        lines = _setting_texts({name: value}, {})
        texts = [f"preset: {preset.fill_in_variable_defaults(line)}" for line in lines]
    spellings = [f"--{name}", *(alias for alias in aliases if alias.startswith("--"))]
    if "-" in name or "_" in name:
        spellings += [name, name.replace("-", "_")]
    mentions = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, spellings))})(?![\w-])")
    texts += [f"caveat: {caveat}" for caveat in preset.caveats if mentions.search(caveat)]
    for claim in preset.claims:
        if mentions.search(f"{claim.text} {claim.correct}"):
            texts.append(f"document: {_claim_line(claim).text}")
    return texts


def _fact_lines(preset: Preset) -> list[Line]:
    engine, source = preset.engine, preset.provenance
    open_files = f"at least {engine.open_files:,} open" if engine.open_files else ""
    model = preset.fill_in_variable_defaults(preset.model.id)
    endpoint = ""
    if preset.endpoint:
        endpoint = f"{preset.endpoint.name} in {preset.endpoint.file}"
    status = ", ".join(filter(None, (source.status, source.date)))
    facts = (
        ("engine", _join_known(engine.name, engine.versions)),
        ("program", shlex.join(map(preset.fill_in_variable_defaults, engine.executable or ()))),
        ("directory", preset.fill_in_variable_defaults(engine.workdir or "")),
        ("image", _join_known(engine.image)),
        ("runs as", _launcher_text(preset)),
        ("files", open_files),
        ("model", _join_known(model, preset.model.quantization)),
        ("weights", _weights_text(preset)),
        ("limit", _speed_limit_text(preset)),
        ("hardware", _hardware_text(preset)),
        ("platform", preset.hardware.platform or "any"),
        ("baseline", preset.baseline or "none"),
        ("benchmark", _benchmark_text(preset)),
        ("endpoint", endpoint),
        ("warm-up", _warm_up_text(preset)),
        ("source", _join_known(f"{source.document} ({status})", source.note)),
    )
    return [Line(text.strip(), label) for label, text in facts if text.strip()]


def _join_known(*parts: str | None) -> str:
    """Return the parts that are known, separated by spaces."""
    return " ".join(filter(None, parts))


def _launcher_text(preset: Preset) -> str:
    """Return the launcher (the program that runs the server, such as systemd) with its options. ""
    if Workbench itself starts the server."""
    if preset.launch.run_as == PROCESS:
        return ""
    words = [preset.launch.run_as]
    for name, value in preset.launch.run_options.items():
        values = [value] if isinstance(value, str) else value
        words += [f"{name}={each}" for each in values]
    return " ".join(words)


def _weights_text(preset: Preset) -> str:
    """Return the sizes of the model's weights that the preset states, with their source; "" if it
    states none."""
    model = preset.model
    sizes = (
        (model.bytes_per_token_gb, "{:g} GB read per token"),
        (model.weight_gb, "{:g} GB in memory"),
        (model.layers, "{} layers"),
        ((model.kv_bytes_per_token or 0) / 1024, "{:g} KiB of KV cache per token"),
    )
    named = ", ".join(text.format(size) for size, text in sizes if size)
    if not named:
        return ""
    return _with_reason(named, model.source)


def _speed_limit_text(preset: Preset) -> str:
    """Return a text on the highest possible tokens per second of one stream on the GPUs of the
    preset; "" if the preset names no GPU or the sizes of the model are not known."""
    from workbench.engines.plans import plan_from_preset
    from workbench.engines.registry import get_engine
    from workbench.engines.roofline import compute_speed_limits

    names = preset.hardware.gpu_names[:1] * preset.hardware.count
    values = {name: v.default or v.example or "" for name, v in preset.variables.items()}
    plan = plan_from_preset(preset, values)
    tp, pp, dp = map(plan.parallel_size_of_flag, PARALLEL_SIZES)
    limit = compute_speed_limits(plan.model_facts, names, tp=tp, pp=pp, dp=dp)
    if not names or limit.tok_s_per_stream is None:
        return ""
    text = (
        f"{limit.tok_s_per_stream:.4g} tok/s for one stream ({limit.label}, by "
        f"{limit.gb_per_token:g} GB per token)"
    )
    if get_engine(plan.engine).drafted_tokens_per_step(plan.flag_values) != 0:
        text += "; the accepted drafts of speculation raise it"
    if limit.all_reduce_ms:
        text += f"; {limit.with_all_reduces_tok_s:.4g} with {limit.all_reduce_basis}"
    return text


def _hardware_text(preset: Preset) -> str:
    hardware = preset.hardware
    names = " or ".join(hardware.gpu_names) or "any NVIDIA GPU"
    parts = [f"{hardware.count} x {names}"]
    if hardware.memory_gib:
        each = " each" if hardware.count > 1 else ""
        parts.append(f"{hardware.memory_gib:g} GiB{each}")
    if hardware.unified_memory:
        parts.append("memory shared with the CPU")
    if hardware.interconnect:
        parts.append(hardware.interconnect)
    return ", ".join(parts)


def _benchmark_text(preset: Preset) -> str:
    bench = preset.benchmark
    streams = ", ".join(map(str, bench.concurrency))
    output = "embeddings" if bench.endpoint == "embeddings" else bench.max_tokens
    sizes = f"{bench.input_tokens} tokens in, {output} out"
    return f"{bench.profile}, {count_of(bench.requests, 'request')}, {sizes}, concurrency {streams}"


def _warm_up_text(preset: Preset) -> str:
    """Return a text about the warm-up requests that `presets apply` sends; "" if the preset has
    none."""
    if (warm := preset.warm_up) is None:
        return ""
    low, high = warm.input_tokens
    return f"{count_of(warm.requests, 'request')}, {low} to {high} tokens in, {warm.max_tokens} out"


def _setting_texts(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif isinstance(value, str):
            yield f"--{name} {value}"
        else:
            yield f"--{name} {json.dumps(value)}"
    for name, value in env.items():
        yield f"{name}={value}"


def _variable_text(name: str, variable: Variable) -> str:
    text = f"{name}: {variable.description}"
    if variable.default is not None:
        return f"{text} (default {variable.default})"
    if variable.example:
        return f"{text} (e.g. {variable.example})"
    return text


def _gpu_settings_text(entry: GpuSettingsEntry) -> str:
    named = ", ".join(
        f"{label_of(key)} {format_setting_value(key, value)}"
        for key, value in entry.settings.items()
    )
    return _with_reason(f"GPU {entry.gpu}: {named}", entry.reason)


def _host_setting_text(entry: HostSetting) -> str:
    return _with_reason(f"{entry.name} = {entry.value}", entry.reason)


def _with_reason(text: str, reason: str | None) -> str:
    return f"{text} ({reason})" if reason else text


def _claim_line(claim: DocumentClaim) -> Line:
    basis = claim.basis
    if claim.lines:
        basis += f"; lines {claim.lines}"
    if claim.impact:
        basis += f"; {claim.impact} impact"
    text = f"{claim.verdict}: {claim.text} -> {claim.correct} ({basis})"
    return Line(text, sign=_SIGNS[claim.verdict])


def _reference_text(result: ReferenceResult) -> str:
    figure = f"{result.metric} {result.value:,g} {result.unit}"
    if result.ceiling:
        figure += f", {100 * result.value / result.ceiling:.0f} % of the limit {result.ceiling:g}"
    return f"{figure}: {result.conditions} ({result.status}; {result.source})"
