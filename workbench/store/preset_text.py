"""A preset as text: the sections that `presets show` and the screen's page print."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.model.run_options import PROCESS
from workbench.model.settings import label_of, value_text_of

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
_PARALLEL = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
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
    nodes = (
        (
            f"Settings of node {node.rank}: {node.name}",
            _plain_lines(map(preset.fill_in_defaults, _setting_texts(node.flags, node.env))),
        )
        for node in preset.nodes
    )
    sections = (
        ("", _fact_lines(preset)),
        (
            "Settings",
            _plain_lines(map(preset.fill_in_defaults, _setting_texts(preset.flags, preset.env))),
        ),
        *nodes,
        (
            "Variables",
            _plain_lines(
                _variable_text(name, variable) for name, variable in preset.variables.items()
            ),
        ),
        (
            "GPU settings (applied by `presets apply` and by A on the screen, not by loading the "
            "preset)",
            _plain_lines(map(_gpu_settings_text, preset.gpu_settings)),
        ),
        (
            "Host settings (Workbench never applies them)",
            _plain_lines(
                preset.fill_in_defaults(_host_setting_text(entry)) for entry in preset.host_settings
            ),
        ),
        ("Reference results", _plain_lines(map(_reference_text, preset.references))),
        ("Caveats", [Line(caveat, sign="warn") for caveat in preset.caveats]),
        *_claims_by_document(preset),
    )
    made = (Section(title, tuple(lines)) for title, lines in sections)
    return [section for section in made if section.lines]


def _claims_by_document(preset: Preset) -> Iterator[tuple[str, list[Line]]]:
    found: dict[str, list[Line]] = {}
    for claim in preset.claims:
        found.setdefault(claim.document or preset.provenance.document, []).append(
            _claim_line(claim)
        )
    for document, lines in found.items():
        yield f"Claims of {document}", lines


def about_flag(preset: Preset, name: str, aliases: Iterable[str] = ()) -> list[str]:
    """Return what a preset says about the flag `name`, as one text each: its value in the preset,
    then each known problem (caveat) and each statement of a write-up (claim) that mentions the
    flag. `aliases` are other spellings of the flag."""
    value = preset.flags.get(name)
    texts: list[str] = []
    if value is not None:
        lines = _setting_texts({name: value}, {})
        texts = [f"preset: {preset.fill_in_defaults(line)}" for line in lines]
    spellings = [f"--{name}", *(alias for alias in aliases if alias.startswith("--"))]
    spellings += [name, name.replace("-", "_")] if "-" in name or "_" in name else []
    mentions = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, spellings))})(?![\w-])")
    texts += [f"caveat: {caveat}" for caveat in preset.caveats if mentions.search(caveat)]
    return texts + [
        f"document: {_claim_line(claim).text}"
        for claim in preset.claims
        if mentions.search(f"{claim.text} {claim.correct}")
    ]


def _fact_lines(preset: Preset) -> list[Line]:
    engine, source = preset.engine, preset.provenance
    facts = (
        ("engine", f"{engine.name} {engine.versions or ''}"),
        ("program", shlex.join(map(preset.fill_in_defaults, engine.executable or ()))),
        ("directory", preset.fill_in_defaults(engine.workdir or "")),
        ("image", engine.image or ""),
        ("runs as", _run_as(preset)),
        ("files", f"at least {engine.open_files:,} open" if engine.open_files else ""),
        ("model", f"{preset.fill_in_defaults(preset.model.id)} {preset.model.quantization or ''}"),
        ("weights", _weights_text(preset)),
        ("limit", _speed_limit_text(preset)),
        ("hardware", _hardware_text(preset)),
        ("platform", preset.hardware.platform or "any"),
        ("baseline", preset.baseline or "none"),
        ("benchmark", _benchmark_text(preset)),
        (
            "endpoint",
            f"{preset.endpoint.name} in {preset.endpoint.file}" if preset.endpoint else "",
        ),
        ("warm-up", _warm_up_text(preset)),
        (
            "source",
            f"{source.document} ({', '.join(filter(None, (source.status, source.date)))}) "
            f"{source.note or ''}",
        ),
    )
    return [Line(text.strip(), label) for label, text in facts if text.strip()]


def _run_as(preset: Preset) -> str:
    """Return the launcher (the program that runs the server, such as systemd) with its options. ""
    if Workbench itself starts the server."""
    if preset.launch.run_as == PROCESS:
        return ""
    words = [preset.launch.run_as]
    for name, value in preset.launch.run_options.items():
        values = (value,) if isinstance(value, str) else value
        words += (f"{name}={each}" for each in values)
    return " ".join(words)


def _weights_text(preset: Preset) -> str:
    """Return the sizes of the model's weights that the preset states, with their source; "" if it
    states none."""
    model = preset.model
    sizes = (
        (model.bytes_per_token_gb, "{:g} GB read per token"),
        (model.weight_gb, "{:g} GB in memory"),
        (model.layers, "{} layers"),
        (
            model.kv_bytes_per_token and model.kv_bytes_per_token / 1024,
            "{:g} KiB of KV cache per token",
        ),
    )
    named = ", ".join(text.format(size) for size, text in sizes if size)
    return _with_reason(named, model.source) if named else ""


def _speed_limit_text(preset: Preset) -> str:
    """Return the highest possible tokens per second of one stream on the GPUs of the preset, as
    text; "" if unknown."""
    from workbench.engines.plans import plan_from_preset
    from workbench.engines.roofline import speed_limits

    names = preset.hardware.gpu_names[:1] * preset.hardware.count
    plan = plan_from_preset(
        preset, {n: v.default or v.example or "" for n, v in preset.variables.items()}
    )
    sizes = {
        short: plan.parallel_size(f"{name}-parallel-size") for short, name in _PARALLEL.items()
    }
    limit = speed_limits(plan.model_facts, names, tp=sizes["tp"], pp=sizes["pp"], dp=sizes["dp"])
    if not names or limit.tok_s_per_stream is None:
        return ""
    text = (
        f"{limit.tok_s_per_stream:.4g} tok/s for one stream ({limit.label}, by "
        f"{limit.gb_per_token:g} GB per token)"
    )
    if limit.all_reduce_ms:
        text += f"; {limit.with_all_reduces_tok_s:.4g} with {limit.all_reduce_basis}"
    return text


def _hardware_text(preset: Preset) -> str:
    hardware = preset.hardware
    names = " or ".join(hardware.gpu_names) or "any NVIDIA GPU"
    each = " each" if hardware.count > 1 else ""
    memory = f"{hardware.memory_gib:g} GiB{each}" if hardware.memory_gib else ""
    shared = "memory shared with the CPU" if hardware.unified_memory else ""
    return ", ".join(
        filter(None, (f"{hardware.count} x {names}", memory, shared, hardware.interconnect))
    )


def _benchmark_text(preset: Preset) -> str:
    bench = preset.benchmark
    streams = ", ".join(map(str, bench.concurrency))
    embeds = bench.endpoint == "embeddings"
    sizes = f"{bench.input_tokens} tokens in, {'embeddings' if embeds else bench.max_tokens} out"
    return f"{bench.profile}, {count_of(bench.requests, 'request')}, {sizes}, concurrency {streams}"


def _warm_up_text(preset: Preset) -> str:
    """Return a text about the warm-up requests that `presets apply` sends; "" if the preset has
    none."""
    if (warm := preset.warm_up) is None:
        return ""
    low, high = warm.input_tokens
    return f"{count_of(warm.requests, 'request')}, {low} to {high} tokens in, {warm.max_tokens} out"


def _plain_lines(texts: Iterable[str]) -> list[Line]:
    return [Line(text) for text in texts]


def _setting_texts(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        yield f"--{name} {text}"
    for name, value in env.items():
        yield f"{name}={value}"


def _variable_text(name: str, variable: Variable) -> str:
    text = f"{name}: {variable.description}"
    if variable.default is not None:
        return f"{text} (default {variable.default})"
    return f"{text} (e.g. {variable.example})" if variable.example else text


def _gpu_settings_text(entry: GpuSettingsEntry) -> str:
    named = ", ".join(
        f"{label_of(key)} {value_text_of(key, value)}" for key, value in entry.settings.items()
    )
    return _with_reason(f"GPU {entry.gpu}: {named}", entry.reason)


def _host_setting_text(entry: HostSetting) -> str:
    return _with_reason(f"{entry.name} = {entry.value}", entry.reason)


def _with_reason(text: str, reason: str | None) -> str:
    return f"{text} ({reason})" if reason else text


def _claim_line(claim: DocumentClaim) -> Line:
    lines = f"; lines {claim.lines}" if claim.lines else ""
    impact = f"; {claim.impact} impact" if claim.impact else ""
    text = f"{claim.verdict}: {claim.text} -> {claim.correct} ({claim.basis}{lines}{impact})"
    return Line(text, sign=_SIGNS[claim.verdict])


def _reference_text(result: ReferenceResult) -> str:
    figure = f"{result.metric} {result.value:,g} {result.unit}"
    if result.ceiling:
        figure += f", {100 * result.value / result.ceiling:.0f} % of the limit {result.ceiling:g}"
    return f"{figure}: {result.conditions} ({result.status}; {result.source})"
