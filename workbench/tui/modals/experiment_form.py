"""The form of an A/B experiment: A and B as one line of text each, the number of pairs, and an
estimate of the duration."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from workbench.bench.twins import MIN_PAIRS
from workbench.engines.flag_values import format_flag_value
from workbench.model.errors import InputError
from workbench.model.experiment import OPTIONS, SHOWS_PCT, Arm, ArmTarget
from workbench.model.metrics import metric_title, names_of_deciding_metrics, narrow_table_title
from workbench.model.plan import PlanDifference
from workbench.model.settings import GpuSettings, parse_setting_argument
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.formats import duration_text, flag_value_text
from workbench.tui.modals.declared_fields import field_from_option, parse_option_field
from workbench.tui.modals.form import Field, Form, Values, fill_fields_with_last_values
from workbench.tui.widgets.experiment import format_arm_as_words

COMPARED, NOT_COMPARED = "compared", "not compared"


def metric_choice_label(metric: str) -> str:
    """Return the name by which the form offers a metric, such as "tok/s" or "TTFT p50"."""
    if "." in metric:  # a latency
        return metric_title(metric)
    return narrow_table_title(metric)


# metrics by the word by which the form offers them
DECIDING = {metric_choice_label(name): name for name in names_of_deciding_metrics()}


IN_FORM = {option.field: option for option in OPTIONS if option.label}


def _form_field_of_option(name: str, *, is_detail: bool = False) -> Field:
    return field_from_option(IN_FORM[name], IN_FORM[name].default, is_detail=is_detail)


class RequestedExperiment(NamedTuple):
    a: Arm
    b: Arm
    options: dict[str, Any]


def arms_from_plan_differences(changes: Sequence[PlanDifference]) -> tuple[Arm, Arm]:
    """Return the arms (A, B) for an experiment about `changes`, the differences between a running
    server and the plan. A has the server's values and B those of the plan. Raise InputError for a
    change that is neither of a flag nor of an environment variable."""
    a: dict[str, list[str]] = {"sets": [], "unsets": [], "envs": []}
    b: dict[str, list[str]] = {"sets": [], "unsets": [], "envs": []}
    for change in changes:
        if change.kind not in ("flag", "env"):
            text = f"{flag_value_text(change.a)} > {flag_value_text(change.b)}"
            raise InputError(f"A and B would also differ in the {change.kind}: {text}")
        for arm, value in ((a, change.a), (b, change.b)):
            if value is None:
                # the plan sets the variable, so it can be unset
                if change.kind == "flag" or change.b is not None:
                    arm["unsets"].append(change.name)
            elif change.kind == "env":
                arm["envs"].append(f"{change.name}={value}")
            else:
                text = format_flag_value(value)
                if isinstance(value, bool):
                    text = flag_value_text(value)
                arm["sets"].append(f"{change.name}={text}")
    return _arm_from_words(a), _arm_from_words(b)


def _arm_from_words(words_by_kind: Mapping[str, Sequence[str]]) -> Arm:
    return Arm(
        tuple(words_by_kind["sets"]), tuple(words_by_kind["unsets"]), tuple(words_by_kind["envs"])
    )


def format_arm(arm: Arm) -> str:
    return " ".join(map(_quote_word, format_arm_as_words(arm)))


def _quote_word(word: str) -> str:
    """Return the word as `parse_arm` reads it, which treats fewer characters specially than a
    shell."""
    if set(word).isdisjoint(" \t\"'\\"):
        return word
    return shlex.quote(word)


def parse_arm(text: str) -> Arm:
    """Parse a line of the form into an arm, which is a configuration to compare. Allowed words are
    flag=value, -flag (removes the flag), $NAME=value (environment variable), gpu.SETTING=value, and
    one server, as @PRESET or a URL. Raise InputError for any other word."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{error}: “{text}”") from None
    arm = Arm()
    for word in words:
        name, equals, value = word.partition("=")
        is_preset = word.startswith("@") and word != "@"
        if is_preset or "://" in word:
            if arm.target is not None:
                raise InputError(f"an arm has one target, got two: {arm.target.name} and “{word}”")
            arm = replace(arm, target=ArmTarget(word.removeprefix("@")))
        elif name.startswith("gpu."):
            try:
                arm = replace(
                    arm,
                    gpu=GpuSettings(
                        {**arm.gpu, **parse_setting_argument(word.removeprefix("gpu."))}
                    ),
                )
            except InputError as error:
                raise InputError(f"{name}: {error.message}") from None
        elif word.startswith("$") and equals:
            arm = replace(arm, envs=(*arm.envs, word[1:]))
        elif word.startswith("-") and not equals:
            arm = replace(arm, unsets=(*arm.unsets, word.lstrip("-")))
        elif equals and name.strip("-"):
            arm = replace(arm, sets=(*arm.sets, f"{name.lstrip('-')}={value}"))
        else:
            expected = "flag=value, -flag, $NAME=value, gpu.power-limit=W, @PRESET or a URL"
            raise InputError(f"expected {expected}, got “{word}”")
    return arm


def parse_experiment_form(values: Values) -> RequestedExperiment:
    """Return the two arms and the options of the experiment from the texts in the form. Raise
    InputError for an invalid field."""
    a, b = _arm_from_values(values, "a"), _arm_from_values(values, "b")
    if a == b:
        raise InputError("A and B are the same; enter the change to test in the field B")
    options: dict[str, Any] = {"metric": DECIDING[values["metric"]]}
    for option in IN_FORM.values():
        value = parse_option_field(option, values)
        if value is not None:
            option.require_valid(value)
            options[option.field] = value
    if values.get("answers") == NOT_COMPARED:
        options["quality"] = False
    if twin := values.get("twin", "").strip():
        options["twin"] = twin
        if options["pairs"] % 2 or options["pairs"] < MIN_PAIRS:
            raise InputError(
                "choose 4, 6 or 8 pairs: with a twin, A and B swap their hosts in half of them"
            )
    return RequestedExperiment(a, b, options)


def _arm_from_values(values: Values, name: str) -> Arm:
    try:
        return parse_arm(values[name])
    except InputError as error:
        raise InputError(f"{name.upper()}: {error.message}") from None


def experiment_form(
    a: Arm,
    b: Arm,
    intro_text: str,
    load_text: str,
    estimate_s: Callable[[RequestedExperiment], float | None],
    warnings_and_cost_text: Callable[[RequestedExperiment], str],
    last_values: Mapping[str, str],
) -> Form:
    """Return the form of a new experiment. `intro_text` says where A and B come from, and
    `load_text` describes the benchmark of each run. `estimate_s` returns the duration in seconds,
    None if unknown. `warnings_and_cost_text` returns which values the engine may not have and what
    comparing the answers adds, "" for neither. `last_values` has the texts of the fields when the
    user last accepted the form."""
    fields: tuple[Field, ...] = (
        Field("a", "A", format_arm(a), wide=True),
        Field("b", "B", format_arm(b), wide=True),
        _form_field_of_option("pairs"),
        _form_field_of_option("until_pct"),
        Field("metric", "decided by", "tok/s", "chosen before the runs", tuple(DECIDING)),
        _form_field_of_option("match_temperature_c", is_detail=True),
        Field(
            "twin",
            "twin host",
            "",
            "a host like this one: also says how much is the machine",
            detail=True,
        ),
        Field(
            "answers",
            "answers",
            COMPARED,
            "if A and B differ in what can change them",
            (COMPARED, NOT_COMPARED),
            detail=True,
        ),
        _form_field_of_option("max_minutes", is_detail=True),
    )

    fields = fill_fields_with_last_values(fields, last_values)

    def make_hints(values: Values) -> Mapping[str, str]:
        listed = ", ".join(f"{n} pairs {pct:g} %" for n, pct in SHOWS_PCT.items())
        return {"pairs": f"smallest difference shown: {listed}"}

    def make_summary_rows(values: Values, width: int) -> list[Row]:
        wanted = parse_experiment_form(values)
        seconds, count = estimate_s(wanted), f"{2 * wanted.options['pairs']}"
        if "until_pct" in wanted.options:
            count = f"at most {count}"
        time = "the time is known after a first benchmark of this load"
        if seconds is not None:
            time = f"about {duration_text(seconds)}"
        runs = f"{count} runs of {load_text}, and a first run that is discarded"
        rows = paragraph_rows(f"{runs}: {time}", width, "strong", "  ")
        if cost := warnings_and_cost_text(wanted):
            rows += paragraph_rows(cost, width, "dim", "  ")
        return rows

    def make_intro_rows(width: int) -> list[Row]:
        text = (
            "Words of A and B: flag=value, -flag, $NAME=value, gpu.power-limit=400, "
            "gpu.gpu-clocks=1755; "
            "@PRESET, @RUN or a URL in place of the plan"
        )
        return [*paragraph_rows(intro_text, width), *paragraph_rows(text, width, "dim", "  "), ()]

    return Form(
        "A/B experiment",
        fields,
        intro=make_intro_rows,
        check=parse_experiment_form,
        hints=make_hints,
        make_summary=make_summary_rows,
        accept="start",
        label_cells=18,
        entry_cells=14,
        wide=True,
    )
