"""Each declared option of a load or an experiment keeps its value on every way: command line, form,
preset, stored result and the command that repeats it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import made_results

from workbench.cli.bench import parse_concurrency_levels
from workbench.cli.load_options import read_load_options
from workbench.cli.parser import parse_command_line
from workbench.cli.result_output import result_lines
from workbench.model.bench import BenchResult
from workbench.model.bench_cli_options import bench_cli_options
from workbench.model.declared_options import (
    SEARCH,
    TRACE,
    CheckedText,
    Choice,
    Command,
    Constant,
    DeclaredOption,
    Fraction,
    JsonObject,
    Kind,
    Number,
    Switch,
    Whole,
)
from workbench.model.errors import InputError
from workbench.model.experiment import OPTIONS as DESIGN
from workbench.model.experiment import Arm, ExperimentSpec
from workbench.model.json_records import from_json, to_json
from workbench.model.load_spec import OF_A_SEARCH, OPTIONS, BenchSpec, option_texts
from workbench.model.preset import Benchmark
from workbench.report.formats.stated_load import require_exportable_load
from workbench.session.bench.spec import spec_from_fields
from workbench.tui.modals.bench_form import IN_FORM, bench_fields_from_values
from workbench.tui.modals.declared_fields import option_value_text
from workbench.tui.modals.sweep_form import RequestedSweep, search_load_from_bench_fields
from workbench.tui.pages.result import result_load_text

NO_NUMBERS = ("12", "", None, True, float("nan"), float("inf"), -(10**400), 10**400)
IMPOSSIBLE: dict[type, tuple[Any, ...]] = {  # kind of an option -> values that it refuses
    Whole: (0.5, *NO_NUMBERS),
    Number: (0, -1, 1e-300, 1e300, *(value for value in NO_NUMBERS if value is not None)),
    Fraction: (1, -0.1, *NO_NUMBERS),
    Choice: ("no such word", None, 1, ("chat",)),
}
CHECKED_TEXTS = {  # field -> texts that it accepts
    "slo": ("ttft<=500@p95", "e2e<=8000@p99, tpot<=0.5@p50"),
    "think_time": ("5", "2-8", "exp:0.5"),
}
LINE = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=12)
WORD = LINE.filter(lambda text: text.strip() == text)
JSON = st.dictionaries(LINE, st.integers() | LINE | st.booleans() | st.lists(LINE), max_size=3)


def values_of(option: DeclaredOption) -> st.SearchStrategy[Any]:
    """Return a strategy for the valid values of an option."""
    match option.kind:
        case Whole(least=least, most=most):
            return st.integers(least, most)
        case Number(least=least, most=most):
            return st.floats(least, most)
        case Fraction():
            return st.floats(0, 1, exclude_max=True, allow_subnormal=False)
        case Choice(choices=choices):
            return st.sampled_from(choices)
        case Switch():
            return st.booleans()
        case Constant(value=value):
            return st.just(value)
        case CheckedText():
            return st.sampled_from(CHECKED_TEXTS[option.field])
        case JsonObject():
            return JSON
        case Command():
            return st.lists(WORD, min_size=1, max_size=4).map(tuple)
    return WORD


OPTION_AND_VALUE = st.sampled_from(OPTIONS).flatmap(
    lambda option: st.tuples(st.just(option), values_of(option))
)
# the server is named beside the options, a profile is its values, and a command stands after --
_BY_ANOTHER_NAME = ("model", "profile", "command", "prompts_name", "trace_name")
REPLAYED = [o for o in OPTIONS if o.field not in _BY_ANOTHER_NAME]


def given_by(words: tuple[str, ...]) -> dict[str, Any]:
    arguments = parse_command_line(["bench", "RUN", *words])
    levels = parse_concurrency_levels(arguments.levels)
    return read_load_options(arguments) | ({"concurrency": levels[0]} if levels else {})


@given(OPTION_AND_VALUE)
def test_the_words_of_an_option_set_its_value(pair: tuple[DeclaredOption, Any]) -> None:
    option, value = pair
    option.require_valid(value)
    named = option.dest if option.field != "command" else "command"
    assert given_by(option.kind.command_line_words(option.name, value)) == {named: value}


@given(st.fixed_dictionaries({}, optional={o.field: values_of(o) for o in REPLAYED}))
@settings(max_examples=60)
def test_the_command_that_repeats_a_load_sets_every_option(load: dict[str, Any]) -> None:
    if load.get("ca_file"):
        load.pop("insecure", None)
    spec = replace(BenchSpec("http://x", "m"), **load)
    again = replace(BenchSpec("http://x", "m"), **given_by(bench_cli_options(spec)))
    assert again == spec
    assert from_json(BenchSpec, to_json(spec)) == spec


def test_the_hints_of_the_form_are_whole_at_80_columns() -> None:
    assert {option.hint for option in IN_FORM if len(option.hint) > 31} == set()


@given(st.fixed_dictionaries({o.dest: values_of(o) for o in IN_FORM}))
def test_the_form_reads_what_it_shows(load: dict[str, Any]) -> None:
    texts = {name: option_value_text(value) for name, value in load.items()}
    of_trace = {"speed": load.pop("speed"), "first": load.pop("first")}
    of_trace["trace_file"] = load.pop("trace_file")
    content = load.pop("content")
    no_trace = {**texts, "trace_file": ""}
    assert bench_fields_from_values(no_trace) == load, "a prompts file has its own content"
    assert bench_fields_from_values({**no_trace, "prompts_file": ""})["content"] == content
    replayed = {**of_trace, "warmup": load["warmup"], "seconds": load["seconds"]}
    assert bench_fields_from_values({**texts, "prompts_file": ""}) == replayed
    with pytest.raises(InputError, match="exclude each other"):
        bench_fields_from_values(texts)


@given(
    st.fixed_dictionaries({}, optional={o.field: values_of(o) for o in OPTIONS if o.in_preset}),
)
def test_a_preset_keeps_every_option_that_it_may_have(load: dict[str, Any]) -> None:
    made = Benchmark.model_validate(load)
    assert {name: getattr(made, name) for name in load} == load
    assert Benchmark.model_validate(made.model_dump()) == made


def test_a_preset_is_told_in_one_line_what_an_option_expects() -> None:
    for wrong, expected in (
        ({"requests": -1}, "give a whole number of 1 or more"),
        ({"slo": "nan"}, "give limits, for example"),
        ({"concurrency": [10**8]}, "less than or equal to 65536"),
    ):
        with pytest.raises(ValidationError) as refused:
            Benchmark.model_validate(wrong)
        (error,) = refused.value.errors()
        assert expected in error["msg"] and "\n" not in error["msg"]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.field)
def test_an_option_is_declared_at_a_field_and_its_default_is_valid(option: DeclaredOption) -> None:
    assert option.field in {one.name for one in fields(BenchSpec)}
    option.require_valid(option.default)
    with pytest.raises(ValueError, match=option.field):
        Benchmark.model_validate({option.field: object()})


def other_value(option: DeclaredOption) -> Any:
    """Return a value of the option that is not the default."""
    match option.kind:
        case Whole():
            return 3
        case Number() | Fraction():
            return 0.5
        case Choice(choices=choices):
            return next(each for each in choices if each != option.default)
        case Switch() | Constant():
            return not option.default
        case CheckedText():
            return CHECKED_TEXTS[option.field][0]
    return "word"


def made_with(option: DeclaredOption) -> BenchResult:
    """Return a result whose load has a value of the option that is not the default."""
    made = made_results.result()
    return replace(made, spec=replace(made.spec, **{option.field: other_value(option)}))


@pytest.mark.parametrize(
    "option", [each for each in OPTIONS if each.in_line], ids=lambda option: option.field
)
def test_the_screen_and_the_command_say_an_option_alike(option: DeclaredOption) -> None:
    result = made_with(option)
    said = option.load_line_text(getattr(result.spec, option.field))
    assert (
        said
        and f", {said}" in result_load_text(result)
        and f", {said}" in next(result_lines(result))
    )
    assert option_texts(made_results.result().spec) == ()


@pytest.mark.parametrize(
    "option", [each for each in OPTIONS if each.unknown_to], ids=lambda option: option.field
)
def test_an_export_refuses_an_option_that_its_form_does_not_know(option: DeclaredOption) -> None:
    for tool in option.unknown_to:
        with pytest.raises(InputError, match=f"in {tool}'s form: it has no word for {option.name}"):
            require_exportable_load(made_with(option), tool)


@pytest.mark.parametrize(
    "option", [each for each in OPTIONS if each.needs], ids=lambda option: option.field
)
def test_an_option_without_the_one_that_it_needs_is_refused(option: DeclaredOption) -> None:
    with pytest.raises(InputError, match=f"{option.name} has no effect without --") as refused:
        spec_from_fields(None, {option.field: other_value(option)})
    assert refused.value.next_step.endswith(f"or leave out {option.name}")


def test_an_option_names_fields_that_a_load_has() -> None:
    beside = {field for each in OPTIONS for field, _ in each.no_effect_beside}
    assert beside <= {one.name for one in fields(BenchSpec)}
    decided_by = {word for each in OPTIONS for word in each.decided_by}
    assert decided_by == {TRACE, SEARCH}


def test_a_search_for_users_has_no_option_that_it_decides() -> None:
    of_command = vars(parse_command_line(["capacity", "RUN", "--slo", "ttft<=500"]))
    wanted = RequestedSweep("users", [], None, {}, "ttft<=500@p95")
    for option in OF_A_SEARCH:
        assert option.dest not in of_command
        assert option.field not in search_load_from_bench_fields(
            {option.field: other_value(option)}, wanted
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option in OPTIONS for value in IMPOSSIBLE.get(type(option.kind), ())],
)
def test_an_impossible_value_is_refused_by_the_name_of_its_option(
    option: DeclaredOption, value: Any
) -> None:
    with pytest.raises(
        InputError, match=option.name.removeprefix("--").replace("-", " ")
    ) as refused:
        option.require_valid(value)
    assert len(f"{refused.value.message} {refused.value.next_step}") < 250


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"top_p": NaN}', "NaN is no number of JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"x": "\\ud800"}', "surrogates not allowed"),
        ("[1]", "not a JSON object"),
    ],
)
def test_a_body_that_no_request_can_carry_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_command_line(["bench", "RUN", "--extra-body", text])


def test_a_text_of_other_bytes_than_utf_8_is_refused() -> None:
    for option in OPTIONS:
        if type(option.kind) is Kind:
            with pytest.raises(InputError, match="has a character that is not text"):
                option.require_valid("\udcff")


@given(st.fixed_dictionaries({}, optional={o.field: values_of(o) for o in DESIGN}))
@settings(max_examples=60)
def test_the_words_of_an_experiment_set_its_design(design: dict[str, Any]) -> None:
    if "until_pct" in design:
        design.pop("pairs", None)  # the two exclude each other
    by_field = {option.field: option for option in DESIGN}
    words: list[str] = []
    for name, value in design.items():
        by_field[name].require_valid(value)
        words += by_field[name].kind.command_line_words(by_field[name].name, value)
    arguments = parse_command_line(["experiment", "RUN", *words])
    given_by_words = {o.field: getattr(arguments, o.dest) for o in DESIGN}
    assert {name: value for name, value in given_by_words.items() if value is not None} == design
    spec = replace(ExperimentSpec(Arm(), Arm(), {}), **design)
    assert from_json(ExperimentSpec, to_json(spec)) == spec
