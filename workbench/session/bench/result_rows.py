"""Stored results as rows of a list. Each row has a label with the differences from the previous
result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.session.bench.row import BenchRow, CeilingView

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSpec, ResultId
    from workbench.model.declared_options import DeclaredOption

EXPERIMENT_TAG_PATTERN = re.compile(r"experiment (\d{1,9}) (A|B|discarded)")
_OTHER_ARM = {"A": "B", "B": "A"}


def rows_of_results(results: Sequence[BenchResult]) -> tuple[BenchRow, ...]:
    """Return one row for each of `results`, which are sorted from new to old. A row's label names
    the differences from the next older result of the same host, engine and model. The label of the
    oldest result names the values that the next newer result changes."""
    # of each host, engine and model
    families: dict[tuple[str, str | None, str], list[BenchResult]] = {}
    for result in reversed(results):
        family = (result.conditions.host, result.conditions.engine, result.conditions.model)
        families.setdefault(family, []).append(result)
    labels: dict[int, str] = {}
    changes: dict[int, tuple[str, ...]] = {}
    for relatives in families.values():
        before = None
        for result, after in zip(relatives, (*relatives[1:], None), strict=True):
            labels[result.id] = label_of_result(result, before, after)
            if before is not None:
                changes[result.id] = tuple(_change_texts_since(result, before))
            before = result
    for result_id, label in _experiment_labels_by_result_id(results).items():
        labels[result_id] = label
        changes.pop(result_id, None)
    return tuple(
        _row_of_result(result, labels[result.id], changes.get(result.id, ())) for result in results
    )


def experiment_id_and_arm(tags: Iterable[str]) -> tuple[int, str] | None:
    """Return (id of the experiment, arm) of a result with these tags; None if the result belongs to
    no experiment. The arm is "A", "B" or "discarded"."""
    for found in filter(None, map(EXPERIMENT_TAG_PATTERN.fullmatch, tags)):
        return int(found[1]), found[2]
    return None


def _experiment_labels_by_result_id(results: Sequence[BenchResult]) -> dict[int, str]:
    """Return a label for each result of an experiment, by result id. All results of an arm have the
    same label: what its first result differs in from the first one of the other arm."""
    first: dict[tuple[int, str], BenchResult] = {}
    arms = {result.id: experiment_id_and_arm(result.tags) for result in results}
    for result in reversed(results):
        arm = arms[result.id]
        if arm is not None:
            first.setdefault(arm, result)
    labels = {}
    for result_id, arm in arms.items():
        if arm is None:
            continue
        number, name = arm
        labels[result_id] = f"A/B {number} {name}"
        other = first.get((number, _OTHER_ARM.get(name, "")))
        if other is not None:
            labels[result_id] += f" {label_of_result(first[arm], other)}"
    return labels


def label_of_result(
    result: BenchResult, before: BenchResult | None, after: BenchResult | None = None
) -> str:
    """Return a label that names the differences of `result` from `before`, such as
    "max-num-seqs=512" or "power 500 W"; "again" if there is none. Without `before`, the label is
    the preset or the model, preceded by the load and the GPU settings in which the next newer
    result `after` differs."""
    if result.conditions.imported:
        return f"imported: {result.conditions.imported}"
    if before is None:
        name = result.conditions.preset_id or result.conditions.model.rsplit("/", 1)[-1]
        changes = _changed_setting_and_load_texts(after, result) if after else []
        return " ".join([*changes, name])
    return " ".join(_change_texts_since(result, before)) or "again"


def _change_texts_since(result: BenchResult, before: BenchResult) -> list[str]:
    """Return a text for each difference of `result` from `before`; [] for an imported result."""
    if result.conditions.imported:
        return []
    return [
        *_changed_assignment_texts(before.conditions.flags, result.conditions.flags),
        *_changed_assignment_texts(before.conditions.env, result.conditions.env),
        *_changed_setting_and_load_texts(before, result),
    ]


def _changed_setting_and_load_texts(before: BenchResult, result: BenchResult) -> list[str]:
    """Return one text for each difference of `result` from `before` in the GPU settings and in the
    shape of the load."""
    settings = _changed_setting_texts(
        before.conditions.gpu_settings, result.conditions.gpu_settings
    )
    return settings + _changed_load_option_texts(before.spec, result.spec)


def _changed_load_option_texts(before: BenchSpec, now: BenchSpec) -> list[str]:
    """Return a word for each difference of two loads, such as "c=8", "content=text" or
    "no-stream"."""
    from workbench.model.declared_options import Command, JsonObject, Switch
    from workbench.model.load_spec import OPTIONS

    parts = []
    for option in OPTIONS:
        old, value = getattr(before, option.field), getattr(now, option.field)
        if old == value or not _is_change_named_in_label(option, now):
            continue
        word = option.short or option.name.removeprefix("--")
        if isinstance(option.kind, Switch):
            parts.append(word if value else f"no-{word}")
        elif value in (None, "", (), {}):
            parts.append(f"-{word}")
        elif isinstance(option.kind, JsonObject | Command):
            parts.append(word)
        else:
            parts.append(
                f"{word}={_shorten_value_text(option.kind.text(value).partition(' (')[0])}"
            )
    return parts


def _is_change_named_in_label(option: DeclaredOption, load: BenchSpec) -> bool:
    """Return whether the label of a result with this load names a difference in the option."""
    from workbench.model.declared_options import LABEL, SIZE, STREAMS

    if not option.is_work or LABEL in option.left_out_of:
        return False
    if option.field == "requests" and load.seconds is not None:
        return False  # a limit that is never reached
    # a command of the user's own decides about its streams and their sizes itself
    return not (load.command and option.group in (STREAMS, SIZE))


def _changed_assignment_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in now.items():
        if name != "port" and before.get(name) != value:
            words.append(f"{name}={_shorten_value_text(value)}")
    for name in before:
        if name != "port" and name not in now:
            words.append(f"-{name}")
    return words


def _changed_setting_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    if before == now:
        return parts
    from workbench.model.setting_commands import is_clock_lock
    from workbench.model.settings import format_stored_value
    from workbench.model.settings import label_of as setting_label

    # A result whose GPUs were not read has none of the settings that a driver reports.
    was_read = [
        any(not is_clock_lock(name.partition(".")[2]) for name in settings)
        for settings in (before, now)
    ]
    if was_read[0] != was_read[1]:
        return parts
    # a server on fewer GPUs says nothing about the others
    known = [{name.partition(".")[0] for name in side} for side in (before, now) if side]
    in_both = set.intersection(*known)
    for name in {**now, **before}:
        gpu, _, setting = name.partition(".")
        value = now.get(name)
        if before.get(name) == value or gpu not in in_both:
            continue
        label = setting_label(setting)
        parts.append(
            f"no {label}" if value is None else f"{label} {format_stored_value(setting, value)}"
        )
    return list(dict.fromkeys(parts))


def _shorten_value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _row_of_result(result: BenchResult, label: str, changes: tuple[str, ...]) -> BenchRow:
    summary, conditions = result.summary, result.conditions
    return BenchRow(
        id=result.id,
        unix_s=result.unix_s,
        label=label,
        changes=changes,
        model=conditions.model,
        engine=conditions.engine or "",
        concurrency=result.spec.concurrency,
        output_tok_s=summary.output_tok_s,
        ttft_p50_ms=summary.latency_ms("ttft_ms", "p50"),
        ttft_p90_ms=summary.latency_ms("ttft_ms", "p90"),
        itl_mean_ms=summary.latency_ms("itl_ms", "mean"),
        power_w=summary.power_w,
        tok_per_joule=summary.tok_per_joule,
        requests_ok=summary.requests_ok,
        requests_failed=summary.requests_failed,
        simulated=conditions.simulated,
        preset_id=conditions.preset_id,
        note=result.note,
        tags=result.tags,
        refused=summary.refused,
        imported=bool(conditions.imported),
        ttft_unsure_ms=summary.unsure_ms.get("ttft_ms", 0.0),
        ttft_absent=_why_ttft_is_withheld(result),
        rate_error_pct=summary.rate_error_pct,
        power_absent="" if summary.refused else summary.absent.get("power_w", ""),
        ceiling=speed_ceiling_view(result),
    )


def _why_ttft_is_withheld(result: BenchResult) -> str:
    """Return why the TTFT of a valid result was withheld; "" if it was not."""
    return "" if result.summary.refused else result.summary.withheld_reason("ttft_ms")


def speed_ceiling_view(result: BenchResult) -> CeilingView | None:
    """Return the measured speed of a valid result together with the highest speed that the hardware
    allows. Both are of one stream, or of all streams together if there were several. None if the
    result is invalid or the highest speed is not known."""
    conditions, summary, streams = result.conditions, result.summary, result.spec.concurrency
    if summary.refused:
        return None
    basis = "memory bandwidth"
    if streams > 1:
        limit = conditions.ceiling_total_tok_s
        if not limit or result.spec.has_schedule:
            return None
        if conditions.ceiling_total_bound == "compute":
            basis = "computing"
        return CeilingView(limit, summary.output_tok_s, basis, result.id, streams)
    if not conditions.ceiling_tok_s:
        return None
    basis = conditions.ceiling_basis or basis
    return CeilingView(conditions.ceiling_tok_s, summary.per_stream_tok_s, basis, result.id)


def newest_valid_own_result_id(rows: Sequence[BenchRow]) -> ResultId | None:
    """Return the id of the newest valid result in `rows` that was not imported, or None. `rows` are
    sorted from new to old."""
    return next((row.id for row in rows if row.is_valid_own), None)
