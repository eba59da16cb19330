"""The comparison of run B with run A: first the differences of their conditions, then the change of
each metric.

Statistics use one value per run, because the requests of one run share the engine's state: treating
each request as independent gives false alarms in 14 to 100 % of experiments. A verdict "better" or
"worse" needs several runs of A and several of B. With one run of each, there is no interval and no
verdict. metric_changes.py computes the changes and their intervals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from workbench.bench.compared_texts import (
    load_content_caveat,
    summarize_text_of_arm,
    warn_of_different_texts,
    warn_of_text_problems,
)
from workbench.bench.metric_changes import (
    CONFIDENCE_LEVEL,
    NOT_MEASURED,
    WITHHELD,
    PickMetric,
    change_between_hosts,
    downgrade_verdicts_to_hints,
    find_metric,
    metric_changes,
    withheld_reason,
)
from workbench.engines.answer_settings import (
    collect_answer_settings,
    find_quality_comparison,
    list_changed_answer_settings,
)
from workbench.engines.result_limits import titles_and_speed_comparisons
from workbench.model.bench import (
    BUSY_CLIENT_PCT,
    BenchResult,
    BenchSpec,
    BenchSummary,
    Comparison,
    MetricChange,
)
from workbench.model.known_values import mean_or_none, values_if_all_known
from workbench.model.load_spec import OPTIONS
from workbench.model.quality import NOT_MEASURED as QUALITY_NOT_MEASURED
from workbench.model.quality import QualityResult

_CLOCK_DIFFERENCE_PCT = 2.0
_IDLE_POWER_DIFFERENCE_SHARE = (
    0.1  # difference of the idle power from which net tokens per joule mean little
)
_TEMPERATURE_DIFFERENCE_C = 5.0
_CACHED_DIFFERENCE_PCT = 1.0
_ABSENT = object()  # in place of a value that one side does not have
_WORK_DIFFERENCE_SHARE = 0.01  # of tokens per request, and of tokens per chunk
# fields of no option that follow from others, or belong to one run
_FIELDS_NOT_COMPARED = ("url", "salt", "trace_s", "trace_reuse", "passage_tokens")
_FIELDS_WITHOUT_WORK = frozenset(
    (*_FIELDS_NOT_COMPARED, *(one.field for one in OPTIONS if not one.is_work))
)
_WORKLOAD_FIELDS = tuple(
    one.name for one in fields(BenchSpec) if one.name not in _FIELDS_WITHOUT_WORK
)
DIFFERENCES_OF_ARM_KIND = {  # subject of a comparison -> kinds of differences that it is about
    "model": ("model", "model bytes"),
    "engine": ("engine", "engine_version", "image"),
    "host": ("host", "client", "driver_version", "gpus"),
    "driver": ("driver_version",),
}
_PLACE_CONDITIONS = (
    "host",
    "client",
    "driver_version",
    "cuda_version",
    "engine_version",
    "workbench_version",
)
_DIFFERENCES_OF_TWINS = frozenset(
    {"host", "client"}
)  # kinds of differences between two hosts that are alike
_MISMATCH_TEXTS = {
    "model": "different models",
    "model bytes": "the same name, but different model files",
    "engine": "different engines",
    "engine_version": "different engine versions",
    "image": "different container images",
    "driver_version": "different drivers",
    "host": "different hosts",
    "client": "the load came from different places",
    "gpus": "different GPUs",
    "workload": "different workloads",
}


def compare(
    a: BenchResult | Sequence[BenchResult],
    b: BenchResult | Sequence[BenchResult],
    *,
    paired: bool = False,
    chosen_metric: str | None = None,
    level: float = CONFIDENCE_LEVEL,
    arms: Collection[str] = (),
    swapped: Sequence[bool] = (),
    quality: Sequence[QualityResult] = (),
    own_quality_id: int | None = None,
) -> Comparison:
    """Return the comparison of the runs of A (`a`) with those of B (`b`). Each side is one result,
    or several runs of the same configuration.

    `paired` says that run i of A and run i of B were made in succession with the same seed.
    `chosen_metric` is the metric that was named before the runs; the p-values of all other metrics
    are corrected for the number of metrics. `level` is the confidence level of the intervals.
    `arms` lists the kinds of differences that the comparison is about ("model", "host"), which then
    cause no warning. For an experiment on two hosts, `swapped` says for each pair whether A ran on
    the second host and B on the first. It is empty for one host. `quality` has measured comparisons
    of answers, the newest first; the one of these two configurations is used, or the one with the
    id `own_quality_id`, which was made beside these runs.

    Raises ValueError if a side has no run, or if paired sides have unequal numbers of runs.
    """
    left, right = _as_run_list(a), _as_run_list(b)
    if not left or not right or (paired and len(left) != len(right)):
        raise ValueError(
            "a comparison needs a result on each side, and pairs need equal numbers of A and B"
        )
    on_twins = _DIFFERENCES_OF_TWINS if swapped else frozenset()
    differences = tuple(
        d for d in _condition_differences(left[0], right[0]) if d["kind"] not in on_twins
    )
    kinds = {d["kind"] for d in differences}
    text_a, text_b = summarize_text_of_arm(left), summarize_text_of_arm(right)
    own_tokenizers = not kinds.isdisjoint(("model", "engine"))
    found = [
        *warn_of_text_problems(text_a, text_b, own_tokenizers),
        *warn_of_different_texts(left, right),
        *_mismatch_sentences(differences, arms),
        *_warn_of_incomparable_runs(left, right, paired, on_twins),
    ]
    notes: list[str] = []
    for difference in _warn_of_token_count_difference(left, right, "prompt"):
        # Models count a prompt's tokens differently and put their own template around it. An answer
        # that ends earlier is less work in any case.
        if "model" in arms and not kinds.isdisjoint(("model", "engine", "server")):
            notes.append(
                f"{difference}: the arms count tokens differently or use other chat templates"
            )
        else:
            found.append(difference)
    found += _warn_of_token_count_difference(left, right, "output")
    warnings = tuple(dict.fromkeys(found))
    content = load_content_caveat(left[0].spec, differences)
    if content:
        notes.append(content)
    changed, measured = _changed_answer_settings_and_quality(left[0], right[0], quality)
    measured = _own_or_fallback_quality_result(measured, quality, own_quality_id)
    metrics = metric_changes(
        left, right, paired=paired, chosen_metric=chosen_metric, level=level, swapped=swapped
    )
    if any(m.change_pct is not None for m in metrics if m.metric.startswith("itl_ms")):
        for difference in _warn_of_tokens_per_chunk(left, right):
            notes.append(difference)
            metrics = downgrade_verdicts_to_hints(metrics, of_latency="itl_ms")
    notes += _notes_on_comparison(left, right, paired)
    notes += _why_metrics_are_unmeasured(metrics, (*left, *right))
    notes += _describe_idle_power_difference(left, right)
    if paired:
        notes += _describe_cache_clock_temperature_differences(left, right)
    comparison = Comparison(
        a=left[0].id,
        b=right[0].id,
        differences=differences,
        metrics=downgrade_verdicts_to_hints(metrics) if warnings else metrics,
        warnings=warnings,
        like_for_like=not warnings,
        simulated=any(r.conditions.simulated for r in (*left, *right)),
        runs_a=len(left),
        runs_b=len(right),
        notes=tuple(notes),
        machine=change_between_hosts(find_metric(metrics[0].metric), left, right, swapped, level),
        text_a=text_a,
        text_b=text_b,
        content=content,
        answer_changes=changed,
        quality=_answer_quality_text(changed, measured),
    )
    if measured is None:
        return comparison
    return replace(comparison, quality_verdict=measured.verdict, quality_id=measured.id)


def _as_run_list(runs: BenchResult | Sequence[BenchResult]) -> Sequence[BenchResult]:
    return [runs] if isinstance(runs, BenchResult) else runs


def _answer_quality_text(changed: Sequence[str], measured: QualityResult | None) -> str:
    if measured is not None:
        return measured.summary
    return QUALITY_NOT_MEASURED if changed else ""


def _own_or_fallback_quality_result(
    fallback: QualityResult | None, known: Sequence[QualityResult], own_id: int | None
) -> QualityResult | None:
    """Return the comparison of answers with the id `own_id`, which was made beside the runs. If
    there is none, or if it measured nothing, return `fallback`. One that measured nothing is still
    better than no comparison at all."""
    own = next((one for one in known if one.id == own_id), fallback)
    if own is not None and own.verdict == QUALITY_NOT_MEASURED:
        return fallback or own
    return own


def _changed_answer_settings_and_quality(
    a: BenchResult, b: BenchResult, known: Sequence[QualityResult]
) -> tuple[tuple[str, ...], QualityResult | None]:
    """Return the settings that differ and change what a model answers, and the measured comparison
    of the answers; None if there is none. Embeddings have no answers: () and None."""
    if a.spec.endpoint == "embeddings":
        return (), None
    x, y = collect_answer_settings(a.conditions), collect_answer_settings(b.conditions)
    return list_changed_answer_settings(x, y), find_quality_comparison(
        x, y, known, simulated=a.conditions.simulated
    )


# -- configuration ---------------------------------------------------------------------------------


def _condition_differences(a: BenchResult, b: BenchResult) -> Iterable[dict[str, Any]]:
    """Yield each difference between the conditions of two runs as {"kind", "name", "a", "b"}, with
    the values of run `a` and of run `b`. First come the settings that the user chose, then the
    properties of the host and the server, then the workload."""
    x, y = a.conditions, b.conditions
    for name in ("engine", "model", "preset_id"):
        yield from _difference_if_unequal(name, name, getattr(x, name), getattr(y, name))
    if x.model_digest and y.model_digest and x.model == y.model:
        yield from _difference_if_unequal(
            "model bytes", "model files", x.model_digest, y.model_digest
        )
    # The same engine as a process, a unit, a job and in a container can be compared.
    if x.run_as and y.run_as:
        yield from _difference_if_unequal("run as", "run as", x.run_as, y.run_as)
    yield from _difference_if_unequal(
        "image" if x.image and y.image else "container", "image", x.image, y.image
    )
    yield from _difference_if_unequal(
        "measured by", "measured by", x.imported or "Workbench", y.imported or "Workbench"
    )
    yield from _difference_if_unequal(
        "server", "address", _external_server_address(a), _external_server_address(b)
    )
    if x.flags or y.flags:
        if x.engine == y.engine and x.argv and y.argv:
            yield from _difference_if_unequal("executable", "executable", x.argv[0], y.argv[0])
        yield from _differences_between_mappings("flag", x.flags, y.flags)
    else:
        yield from _difference_if_unequal("command", "argv", list(x.argv), list(y.argv))
    yield from _differences_between_mappings("env", x.env, y.env)
    yield from _differences_between_mappings("gpu setting", x.gpu_settings, y.gpu_settings)
    yield from _difference_if_unequal("gpus", "gpus", _gpu_names(x.gpus), _gpu_names(y.gpus))
    kinds = {}
    if _differ_only_by_build(x.engine_version, y.engine_version):
        kinds["engine_version"] = "engine build"
    for name in _PLACE_CONDITIONS:
        kind = kinds.get(name, name)
        yield from _difference_if_unequal(kind, name, getattr(x, name), getattr(y, name))
    yield from _difference_if_unequal("simulated", "simulated", x.simulated, y.simulated)
    for name in _WORKLOAD_FIELDS:
        u, v = getattr(a.spec, name), getattr(b.spec, name)
        if name == "prompt_words" and None in (u, v):
            continue
        if u != v and x.knows_workload_field(name) and y.knows_workload_field(name):
            yield {
                "kind": "workload",
                "name": name,
                "a": _dict_if_mapping(u),
                "b": _dict_if_mapping(v),
            }


def _differ_only_by_build(a: str | None, b: str | None) -> bool:
    """Return whether two versions can be the same release: both are equal up to "+", and only one
    has a build after "+". False if one is unknown. An engine's log gives the release ("0.32.0"),
    the installed package also the build ("0.32.0+cpu")."""
    if a is None or b is None:
        return False
    x, _, its_build = a.partition("+")
    y, _, other_build = b.partition("+")
    return x == y and bool(its_build) != bool(other_build)


def _external_server_address(result: BenchResult) -> str | None:
    """Return the address of the measured server if Workbench did not start it; otherwise None. A
    server that Workbench started or reached through SSH gets another port each time, so its address
    is not compared."""
    made = result.conditions
    if made.run_id or made.imported:
        return None
    address = made.address
    if not address and made.client == "local":
        address = result.spec.url
    return address or None


def _difference_if_unequal(kind: str, name: str, a: Any, b: Any) -> Iterable[dict[str, Any]]:
    if a != b:
        yield {"kind": kind, "name": name, "a": a, "b": b}


def _differences_between_mappings(
    kind: str, a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    for name in dict.fromkeys([*b, *a]):
        if a.get(name, _ABSENT) != b.get(name, _ABSENT):
            yield {"kind": kind, "name": name, "a": a.get(name), "b": b.get(name)}


def _dict_if_mapping(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _gpu_names(gpus: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [g.get("name") for g in gpus]


# -- like for like ---------------------------------------------------------------------------------


def _mismatch_sentences(
    differences: Sequence[Mapping[str, Any]], arms: Collection[str]
) -> Iterable[str]:
    values: dict[str, list[str]] = {}
    for d in differences:
        both = f"{_value_or_unknown_text(d['a'])} and {_value_or_unknown_text(d['b'])}"
        if d["kind"] == "workload":
            both = f"{d['name']} {both}"
        values.setdefault(d["kind"], []).append(both)
    for kind, text in _MISMATCH_TEXTS.items():
        if kind in values and kind not in arms:
            yield f"{text}: {', '.join(values[kind])}"
    if "simulated" in values:
        yield "one result is simulated and the other is real: they cannot be compared"


def _value_or_unknown_text(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _warn_of_incomparable_runs(
    runs_of_a: Sequence[BenchResult],
    runs_of_b: Sequence[BenchResult],
    paired: bool,
    expected: Collection[str] = (),
) -> Iterable[str]:
    """Yield one sentence for each reason why the runs of A (`runs_of_a`) and of B (`runs_of_b`)
    cannot be compared. Runs of the same side may differ in the kinds of conditions in `expected`,
    such as "host"."""
    windows = {}
    for side, runs in (("A", runs_of_a), ("B", runs_of_b)):
        for run in runs:
            yield from _warn_of_single_run(side, run)
        names: dict[str, None] = {}
        for other in runs[1:]:
            found = _differences_between_runs_of_side(runs[0], other, paired)
            names.update((d["name"], None) for d in found if d["kind"] not in expected)
        if names:
            yield f"the runs of {side} differ among themselves in configuration: {', '.join(names)}"
        windows[side] = {run.summary.window for run in runs}
    if len(windows["A"] | windows["B"]) > 1:
        over = ", ".join(f"{side} {' and '.join(sorted(names))}" for side, names in windows.items())
        yield f"rates cover different parts of the runs ({over}): use more --requests or --seconds"
    if not paired:
        yield from _describe_cache_clock_temperature_differences(runs_of_a, runs_of_b)
    elif any(a.spec.seed != b.spec.seed for a, b in zip(runs_of_a, runs_of_b, strict=True)):
        yield "the runs of a pair had different seeds, so lengths or arrivals differed"


def _differences_between_runs_of_side(
    a: BenchResult, b: BenchResult, paired: bool
) -> list[dict[str, Any]]:
    """Return the differences between the conditions of two runs of A, or of two runs of B. Each is
    a dict with "kind", "name", "a" and "b". The name of the preset is ignored, and so is the seed
    of paired runs, because each pair has its own seed."""
    ignored = ("preset_id", "seed") if paired else ("preset_id",)
    return [d for d in _condition_differences(a, b) if d["name"] not in ignored]


def failed_requests_text(summary: BenchSummary) -> str:
    """Return how many of all requests of a run failed, and of what kinds: "2 of 64 requests failed
    (2 timeout)"."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in summary.errors.items())
    total = summary.requests_ok + summary.requests_failed
    return f"{summary.requests_failed} of {total} requests failed ({kinds})"


def _warn_of_single_run(side: str, run: BenchResult) -> Iterable[str]:
    s = run.summary
    if s.requests_failed:
        yield f"{side} #{run.id}: {failed_requests_text(s)}"
    if run.conditions.imported:
        yield (
            f"{side} #{run.id} was measured by {run.conditions.imported}, which defines its own "
            "metrics; facts about"
            " engine, model, driver and workload that its file lacks are not compared"
        )
    for why in s.refused:
        yield f"{side} #{run.id} is invalid: {why}"
    if (s.client_cpu_pct or 0) > BUSY_CLIENT_PCT:
        yield (
            f"{side} #{run.id}: the client used {s.client_cpu_pct:.0f} % of a core and may "
            "have been the limit"
        )


def _warn_of_token_count_difference(
    runs_of_a: Sequence[BenchResult], runs_of_b: Sequence[BenchResult], side: str
) -> Iterable[str]:
    """Yield a warning if the mean tokens per request differ by more than 1 % between the runs of A
    (`runs_of_a`) and of B (`runs_of_b`). `side` is "prompt" or "output"."""

    def tokens_per_request(summary: BenchSummary) -> float | None:
        tokens = getattr(summary, f"{side}_tokens")
        if tokens is None or not summary.requests_ok:
            return None
        return float(tokens / summary.requests_ok)

    x = _mean_over_runs(runs_of_a, tokens_per_request)
    y = _mean_over_runs(runs_of_b, tokens_per_request)
    if _relative_difference_or_zero(x, y) > _WORK_DIFFERENCE_SHARE:
        yield f"{side} tokens per request differ: {x:.1f} and {y:.1f}"


def _warn_of_tokens_per_chunk(
    runs_of_a: Sequence[BenchResult], runs_of_b: Sequence[BenchResult]
) -> Iterable[str]:
    """Yield a sentence if the mean tokens in a chunk differ by more than 1 % between the runs of A
    (`runs_of_a`) and of B (`runs_of_b`): ITL is the gap between chunks, so it is not one of the
    same work."""
    x, y = (_mean_over_runs(runs, lambda s: s.tokens_per_chunk) for runs in (runs_of_a, runs_of_b))
    if _relative_difference_or_zero(x, y) > _WORK_DIFFERENCE_SHARE:
        yield (
            f"ITL, the gap between chunks, is not comparable: a chunk has {x:.2f} tokens in A and "
            f"{y:.2f} in B; compare TPOT, the time per token"
        )


def _relative_difference_or_zero(x: float | None, y: float | None) -> float:
    """Return the difference between two values as a share of the first; 0 if one is not known."""
    if not x or not y:
        return 0.0
    return abs(y / x - 1)


def _difference_or_zero(x: float | None, y: float | None) -> float:
    """Return the difference between two values; 0 if one is not known."""
    if x is None or y is None:
        return 0.0
    return abs(x - y)


def _describe_cache_clock_temperature_differences(
    runs_of_a: Sequence[BenchResult], runs_of_b: Sequence[BenchResult]
) -> Iterable[str]:
    """Yield a sentence for each difference between the runs of A (`runs_of_a`) and of B
    (`runs_of_b`) in prefix cache use, clocks or GPU temperature.

    For unpaired runs, these sentences are warnings. For paired runs they are only notes, because
    the random order of the runs spreads such influences over both sides.
    """
    # The chat template begins every prompt, so an equal share of cached tokens in both arms is
    # normal.
    x = _mean_over_runs(runs_of_a, _cached_prompt_pct)
    y = _mean_over_runs(runs_of_b, _cached_prompt_pct)
    if _difference_or_zero(x, y) > _CACHED_DIFFERENCE_PCT:
        yield f"the prefix cache supplied {x:.0f} % of the prompt tokens in A and {y:.0f} % in B"
    if dict(runs_of_a[0].conditions.gpu_settings) == dict(runs_of_b[0].conditions.gpu_settings):
        for name, attribute in (("SM", "sm_mhz"), ("memory", "memory_mhz")):
            x, y = _mean_gpu_reading(runs_of_a, attribute), _mean_gpu_reading(runs_of_b, attribute)
            if 100 * _relative_difference_or_zero(x, y) > _CLOCK_DIFFERENCE_PCT:
                yield (
                    f"{name} clocks differed although the settings are the same: {x:.0f} and "
                    f"{y:.0f} MHz"
                )
    x = _mean_gpu_reading(runs_of_a, "temperature_c")
    y = _mean_gpu_reading(runs_of_b, "temperature_c")
    if _difference_or_zero(x, y) > _TEMPERATURE_DIFFERENCE_C:
        yield f"GPU temperatures differed: {x:.0f} and {y:.0f} C"


def _describe_idle_power_difference(
    runs_of_a: Sequence[BenchResult], runs_of_b: Sequence[BenchResult]
) -> Iterable[str]:
    """Yield a note if net tokens per joule rest on an idle power that differed by more than 10 %
    between the runs."""
    idle = []
    for run in (*runs_of_a, *runs_of_b):
        if run.summary.idle_power_w and run.summary.net_tok_per_joule is not None:
            idle.append(run.summary.idle_power_w)
    if len(idle) > 1 and max(idle) > (1 + _IDLE_POWER_DIFFERENCE_SHARE) * min(idle):
        yield (
            f"net tokens per joule are not comparable: the idle power that is subtracted was read "
            f"before each run, and was {min(idle):.0f} to {max(idle):.0f} W"
        )


def _cached_prompt_pct(summary: BenchSummary) -> float | None:
    if summary.cached_tokens is None or not summary.prompt_tokens:
        return None
    return 100 * summary.cached_tokens / summary.prompt_tokens


def _mean_over_runs(runs: Sequence[BenchResult], pick: PickMetric) -> float | None:
    """Return the mean of a value of each run; None if a run does not have it."""
    return mean_or_none(values_if_all_known(pick(run.summary) for run in runs) or ())


def _mean_gpu_reading(runs: Sequence[BenchResult], attribute: str) -> float | None:
    return _mean_over_runs(runs, lambda s: getattr(s.gpu, attribute) if s.gpu else None)


def _why_metrics_are_unmeasured(
    metrics: Iterable[MetricChange], runs: Sequence[BenchResult]
) -> Iterable[str]:
    """Yield one sentence for each reason why metrics have no value in `runs`. Metrics with the same
    reason share a sentence."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for change in metrics:
        if change.verdict in (NOT_MEASURED, WITHHELD):
            reason = _reason_for_missing_value(change, runs)
            reasons.setdefault((change.verdict, reason), []).append(change.metric)
    for (verdict, reason), names in reasons.items():
        yield f"{verdict}: {', '.join(names)} ({reason})"


def _reason_for_missing_value(change: MetricChange, runs: Sequence[BenchResult]) -> str:
    """Return why the metric of `change` has no value in at least one of `runs`."""
    if change.verdict == WITHHELD:
        return withheld_reason(change.metric, runs)
    name = change.metric.partition(".")[0]
    reasons = (run.summary.absent.get(name) for run in runs)
    return next(filter(None, reasons), "no value in at least one run")


def _notes_on_comparison(
    runs_of_a: Sequence[BenchResult], runs_of_b: Sequence[BenchResult], paired: bool
) -> tuple[str, ...]:
    notes = []
    runs = (*runs_of_a, *runs_of_b)
    if len(runs) == 2:
        notes.append(
            "one run each: these changes cannot be distinguished from the noise between runs; "
            "repeat both (bench --repeat 3) and compare the groups (compare 1-3 4-6)"
        )
    elif 1 in (len(runs_of_a), len(runs_of_b)):
        notes.append("one side has a single run, so there is no interval; repeat it")
    elif not paired:
        notes.append(
            "the runs were not made in pairs, so changes between the two groups (heat, other load) "
            "are part of the difference; an experiment spreads them over both sides"
        )
    for side, results in (("A", runs_of_a), ("B", runs_of_b)):
        if len(results) == 1:
            for title, text in titles_and_speed_comparisons(results[0]):
                notes.append(f"{side}, #{results[0].id}: {title}: {text}")
    notes += [f"#{run.id}: {why}" for run in runs for why in run.summary.marked]
    if len({bool(run.conditions.model_digest) for run in runs}) > 1:
        notes.append("the model's files are not known for every run, so they were not compared")
    if any(run.conditions.simulated for run in runs):
        notes.append("SIMULATED: results of a model, not of hardware")
    return tuple(notes)
