"""The form of a sweep. Its values are suggested from the limits of the GPUs and from the plan."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from textual import events

from workbench.bench.rate_capacity import HORIZON_S, MIN_REQUESTS_TO_HOLD
from workbench.bench.user_capacity import (
    FIRST_USERS,
    MAX_RUNS_PER_LEVEL,
    MIN_RUNS_PER_LEVEL,
    TYPICAL_RUNS,
)
from workbench.model import sweep
from workbench.model.bench import BenchSpec
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.flags import FlagKind, FlagRow
from workbench.model.load_spec import OF_A_SEARCH, ONLY_OF_A_TRACE
from workbench.model.settings import DEFAULT, SWEPT, ClockSetting, NumberSetting
from workbench.model.slo import parse_slo
from workbench.model.think_time import parse_think_time
from workbench.session.state import SessionState
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.formats import flag_value_text
from workbench.tui.modals.form import (
    Field,
    Form,
    Values,
    fill_fields_with_last_values,
    parse_gpu_index,
)
from workbench.tui.widgets.entry import Entry

STREAMS, USERS, RATES, FLAG = "concurrency", "users", "requests/s", "flag"
SETTING = {s.label: s for s in SWEPT}
_SWEPT_BY_KIND = {s.key: s for s in SWEPT}


class Offer(NamedTuple):
    """A kind of sweep that the form offers, with its fields. A key that chooses no kind is typed
    into the first of them."""

    kind: str  # the name of the SweepKind
    fields: tuple[str, ...]


# in the order of the form
OFFERS = {
    **{label: Offer(setting.key, ("values", "gpu")) for label, setting in SETTING.items()},
    STREAMS: Offer(sweep.CONCURRENCY.name, ("values",)),
    USERS: Offer(sweep.USERS.name, ("slo", "think")),
    RATES: Offer(sweep.RATES.name, ("slo", "horizon")),
    FLAG: Offer(sweep.FLAGS.name, ("flags",)),
}
_OF_SOME_KINDS = frozenset(field for offer in OFFERS.values() for field in offer.fields)
# what a search decides itself or derives from its numbers, and what its form has
_NOT_KEPT = frozenset(
    {
        *(one.field for one in OF_A_SEARCH),
        *("concurrency", "requests", "warmup", "slo", "think_time"),
    }
)
_OF_A_TRACE = (
    *("trace", "trace_name", "trace_s", "trace_reuse", "content"),
    *(one.field for one in ONLY_OF_A_TRACE),
)
SLO = "ttft<=500@p95, tpot<=40@p95"  # suggested if the benchmark has none
LEVELS = "1,2,4,8,16,32,64"
POINTS = 7
_LOWEST_CLOCK_FRACTION = 0.45  # of the highest clock


class RequestedSweep(NamedTuple):
    kind: str
    values: list[str]
    gpu: int | None
    flags: dict[str, list[str]]
    slo: str = ""
    horizon_s: float = HORIZON_S
    think_time: str = ""


def is_gpu_setting_sweep(wanted: RequestedSweep) -> bool:
    """Return whether a sweep sets a GPU setting."""
    return wanted.kind in _SWEPT_BY_KIND


def search_load_from_bench_fields(
    bench_fields: Mapping[str, Any], wanted: RequestedSweep
) -> dict[str, Any]:
    """Return the load of a search for users or rates as fields of BenchSpec. It is that of
    `bench_fields`, the fields of a benchmark, without what the search decides itself. In place of a
    trace, it has synthetic prompts of the trace's mean lengths."""
    left_out = set(_NOT_KEPT)
    if bench_fields.get("trace_name"):
        left_out.update(_OF_A_TRACE)
    kept = {name: value for name, value in bench_fields.items() if name not in left_out}
    if wanted.think_time:
        kept["think_time"] = wanted.think_time
    return {**kept, "slo": wanted.slo}


def suggest_swept_values_text(quantity: str, state: SessionState) -> str:
    """Return suggested values for the swept quantity `quantity` as text, separated by commas; "" if
    there are none. If the quantity is a GPU setting, every GPU that reports its limits allows these
    values."""
    if quantity == STREAMS:
        return LEVELS
    setting = SETTING.get(quantity)
    if isinstance(setting, NumberSetting):
        limits = list(filter(None, map(setting.driver_limits, state.gpu_infos)))
        if limits:
            lowest, highest = zip(*limits, strict=True)
            return _evenly_spaced_values_text(max(lowest), min(highest), (10, 25, 50, 100))
    if isinstance(setting, ClockSetting):
        each = map(attrgetter(setting.highest), state.gpu_infos)
        top = float(min(filter(None, each), default=0))
        clocks = _list_common_clocks(setting, state, _LOWEST_CLOCK_FRACTION * top)
        if 0 < len(clocks) <= POINTS:
            return ",".join(map(str, clocks))
        if top:
            return _evenly_spaced_values_text(
                _LOWEST_CLOCK_FRACTION * top, top, (75, 150, 300, 450)
            )
    return ""


def _list_common_clocks(setting: ClockSetting, state: SessionState, lowest_mhz: float) -> list[int]:
    """Return the clocks from `lowest_mhz` up, in rising order, that every GPU supports. A GPU that
    does not report its clocks does not count. Memory has only a few clocks."""
    reported = [set(getattr(info, setting.supported)) for info in state.gpu_infos]
    known = list(filter(None, reported))
    if not known:
        return []
    common = set.intersection(*known)
    return sorted(mhz for mhz in common if mhz >= lowest_mhz)


def _evenly_spaced_values_text(low: float, high: float, step_sizes: tuple[int, ...]) -> str:
    """Return at most POINTS evenly spaced values as text, separated by commas. The last value is
    `high`, and none is below `low`. The distance between two values is the first of `step_sizes`
    with which the values cover the whole range, or else the last of `step_sizes`."""
    size = next((s for s in step_sizes if (high - low) / s <= POINTS - 1), step_sizes[-1])
    values: list[float] = []
    at = high
    while at >= low - 1e-6 and len(values) < POINTS:
        values.append(at)
        at -= size
    return ",".join(f"{v:g}" for v in reversed(values))


def suggest_flag_values_text(row: FlagRow | None) -> str:
    """Return values for a sweep of the flag `row` as text, separated by commas: on and off, some of
    its choices, or numbers around its present value. Return "" for None, for an environment
    variable, and for a flag that has neither a value nor a default."""
    if row is None or row.is_env:
        return ""
    if row.spec is not None:
        if row.spec.kind is FlagKind.BOOL:
            return "on,off"
        if row.spec.choices:
            return ",".join(row.spec.choices[:4])
    value = row.value
    if value is None:
        value = row.default
    if value is None:
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value <= 0:
        return flag_value_text(value)
    numbers: list[float] = [value * 0.5, value, value * 2]
    if isinstance(value, float) and value <= 1:
        numbers = [value - 0.05, value]
        if value <= 0.93:
            numbers.append(value + 0.05)
    return ",".join(f"{number:g}" for number in numbers)


def parse_sweep_form(values: Values, gpu_count: int) -> RequestedSweep:
    """Return the sweep that the texts in the form ask for. `gpu_count` is the number of GPUs on the
    host. Raise InputError for an invalid field."""
    what, gpu = values["what"], parse_gpu_index(values, gpu_count)
    kind, fields = OFFERS[what]
    wanted = RequestedSweep(kind, [], gpu, {})
    if "flags" in fields:
        return wanted._replace(flags=_parse_swept_flags(values["flags"]))
    if "slo" in fields:
        wanted = wanted._replace(slo=", ".join(map(str, parse_slo(values["slo"]))))
        if "horizon" in fields:
            wanted = wanted._replace(horizon_s=_parse_horizon_s(values["horizon"]))
        if "think" in fields and (think_time := values.get("think", "").strip()):
            parse_think_time(think_time)
            wanted = wanted._replace(think_time=think_time)
        return wanted
    listed = re.split(r"[,\s]+", values["values"].strip(", "))
    for text in listed:
        if not _is_valid_swept_value(what, text):
            raise InputError(f"values: expected numbers with commas between them, got “{text}”")
    if len(listed) < 2:
        raise InputError("values: a sweep needs at least two values")
    return wanted._replace(values=listed)


def check_setting_limits(wanted: RequestedSweep, state: SessionState) -> None:
    """Raise InputError if a GPU does not allow a value of the setting that is to be swept."""
    setting = _SWEPT_BY_KIND.get(wanted.kind)
    if not isinstance(setting, NumberSetting):
        return
    for info in state.gpu_infos:
        limits = setting.driver_limits(info)
        if limits is None or wanted.gpu not in (None, info.index):
            continue
        low, high = limits
        for value in wanted.values:
            if not low <= setting.parse_value(value) <= high:
                allowed = f"{low:g}..{high:g} {setting.unit} of GPU{info.index}"
                raise InputError(f"values: {value} is outside of {allowed}")


def _parse_horizon_s(minutes_text: str) -> float:
    """Return the horizon in seconds of a text in minutes. Raise InputError for any other text."""
    try:
        minutes = float(minutes_text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes <= 60:
        raise InputError(f"minutes: expected a number up to 60, got “{minutes_text}”")
    return 60 * minutes


def _parse_swept_flags(text: str) -> dict[str, list[str]]:
    flags = {}
    for word in text.split():
        name, _, listed = word.partition("=")
        values = list(filter(None, listed.split(",")))
        if not name or len(values) < 2:
            raise InputError(f"expected a flag with values, as in flag=v1,v2, got “{word}”")
        flags[name.lstrip("-")] = values
    if not 1 <= len(flags) <= 2:
        raise InputError("a sweep needs one or two flags with values, as in flag=v1,v2")
    return flags


def _is_valid_swept_value(quantity: str, text: str) -> bool:
    if quantity not in SETTING:
        return re.fullmatch(r"[1-9]\d*", text) is not None
    try:
        return SETTING[quantity].parse(text) != DEFAULT
    except InputError:
        return False


def sweep_form(
    state: SessionState,
    flag: FlagRow | None,
    bench_spec: BenchSpec,
    last_values: Mapping[str, str],
    check_flags: Callable[[Mapping[str, Sequence[str]]], None],
) -> Form:
    """Return the form of a new sweep. `flag` is the flag whose values are suggested, and
    `bench_spec` is the benchmark to run at each value. `last_values` has the texts of the fields
    when the user last accepted the form. `check_flags` raises InputError for flags and values that
    cannot be swept.
    """
    count = len(state.gpus)
    kinds = tuple(label for label in OFFERS if count or label not in SETTING)
    first = kinds[0]
    flag_text = ""
    if flag is not None and not flag.is_env:
        flag_text = f"{flag.name}={suggest_flag_values_text(flag)}"
    fields = [
        Field("what", "over", first, "left and right change it", kinds),
        Field("values", "values", suggest_swept_values_text(first, state), wide=True),
        Field("flags", "flags", flag_text, wide=True),
        Field("slo", "SLO", bench_spec.slo or SLO, wide=True),
        Field(
            "think",
            "think time",
            bench_spec.think_time,
            "seconds between answer and question: 5, 2-8",
        ),
        Field(
            "horizon", "minutes", f"{HORIZON_S / 60:g}", "of each rate, with 1,000 requests or more"
        ),
    ]
    if count > 1:
        fields.append(Field("gpu", "GPU", "all", f"all or 0..{count - 1}"))

    def check_values(values: Values) -> None:
        wanted = parse_sweep_form(values, count)
        check_setting_limits(wanted, state)
        try:
            check_flags(wanted.flags)
        except InputError as error:
            raise InputError(f"flags: {error.message}", next_step=error.next_step) from None

    given = dict(last_values)
    if flag_text:
        given["flags"] = flag_text

    def make_summary_rows(values: Values, width: int) -> list[Row]:
        return paragraph_rows(
            _sweep_summary_text(parse_sweep_form(values, count), bench_spec), width, "dim", "  "
        )

    return _SweepForm(
        "Sweep",
        fill_fields_with_last_values(fields, given),
        check=check_values,
        make_summary=make_summary_rows,
        accept="start",
        label_cells=10,
        entry_cells=24,
        wide=True,
        suggest=lambda quantity: suggest_swept_values_text(quantity, state),
    )


def _sweep_summary_text(wanted: RequestedSweep, bench_spec: BenchSpec) -> str:
    streams = count_of(bench_spec.concurrency, "stream")
    if wanted.kind == sweep.FLAGS.name:
        starts = count_of(math.prod(map(len, wanted.flags.values())), "start")
        return (
            f"{starts} of the server, each with {count_of(bench_spec.requests, 'request')} at {streams}. "
            "An A/B experiment then compares the best values with the present ones. The other values get no verdict."
        )
    if wanted.kind == sweep.USERS.name:
        return (
            f"Doubles the users from {FIRST_USERS} until a limit breaks, then halves the gap: each "
            f"level is measured in {MIN_RUNS_PER_LEVEL} to {MAX_RUNS_PER_LEVEL} runs. A search has about "
            f"{TYPICAL_RUNS} runs."
        )
    if wanted.kind == sweep.RATES.name:
        minutes = wanted.horizon_s / 60
        return (
            f"Short looks find the region, then each rate is measured over {minutes:g} min with at "
            f"least {MIN_REQUESTS_TO_HOLD:,} requests. The answer is what holds and what fails over "
            f"{minutes:g} min. A number of users is found sooner."
        )
    points = count_of(len(wanted.values), "point")
    tokens = f"{bench_spec.input_tokens} prompt and {bench_spec.max_tokens} output tokens"
    if wanted.kind == sweep.CONCURRENCY.name:
        return (
            f"{points} of {tokens} for each request. Errors end the sweep early. The knee is "
            "marked."
        )
    return (
        f"{points}, each settled under load and then measured for the same time at {streams} of "
        f"{tokens}. The previous "
        "setting is restored at the end and after any failure."
    )


class _SweepForm(Form):
    """The form of a sweep. The swept quantity decides which fields are shown and which values are
    suggested."""

    def __init__(self, *args: Any, suggest: Callable[[str], str], **named: Any) -> None:
        super().__init__(*args, **named)
        self.suggest = suggest

    def on_mount(self) -> None:
        self._show_fields_of_quantity()

    def handle_unmatched_key(self, event: events.Key) -> None:
        """Type a key that chooses no quantity into the values."""
        entry = self.inputs[OFFERS[self.values["what"]].fields[0]]
        if isinstance(entry, Entry):
            self.set_focus(entry)
            entry.try_handling_key(event)

    def _show_fields_of_quantity(self) -> None:
        shown = OFFERS[self.values["what"]].fields
        for name, line in self.lines.items():
            if name in _OF_SOME_KINDS:
                line.display = name in shown

    def update_after_field_change(self, field_name: str) -> None:
        if field_name == "what" and self.lines:
            self._show_fields_of_quantity()
            self.set_field("values", self.suggest(self.values["what"]))
            for entry in (self.inputs["values"], self.inputs["flags"], self.inputs["slo"]):
                if isinstance(entry, Entry):
                    entry.action_select_all()  # what is typed next replaces the suggestion
        super().update_after_field_change(field_name)
