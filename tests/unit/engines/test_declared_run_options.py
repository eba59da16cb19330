"""Each declared option of a launcher keeps its value on every way: command line, row of the flag
editor, and preset."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engines.plans import plan_from_preset
from workbench.engines.run_as import make_launcher_rows, set_launcher_row
from workbench.model.errors import InputError
from workbench.model.plan import LaunchPlan
from workbench.model.preset import Preset
from workbench.model.run_options import OPTIONS, PROCESS, with_launcher_and_options
from workbench.model.run_options.option import RunOption
from workbench.store.preset_edit import document_from_plan

PLAN = LaunchPlan("vllm", "org/tiny")
LAUNCHERS = [word for word in OPTIONS if word != PROCESS]
# Each option takes at least one of these, which differ in what has to be quoted.
TEXTS = (
    *("2", "16", "a100:2", "all", "0,1", "none", "64G", "64gb", "8:00:00", "1-12", "UNLIMITED"),
    *("node-7", "team", "my unit", 'it\'s "quoted"', "a=b c", "--wait", "/data:/data:ro", "/cache"),
    *("memlock=-1", "MemoryMax=200G", "Environment=A='b c'", "org/image:tag", "vllm@sha256:ab"),
)


def taken(option: RunOption) -> list[str]:
    """Return the texts among TEXTS that the option takes, in the form in which a plan keeps them."""
    found = []
    for text in option.choices or TEXTS:
        try:
            found.append(option.parse(text))
        except InputError:
            continue
    return list(dict.fromkeys(found))


def values_of(option: RunOption) -> st.SearchStrategy[list[str]]:
    most = 3 if option.repeatable else 1
    return st.lists(st.sampled_from(taken(option)), min_size=1, max_size=most)


@st.composite
def launchers_with_options(draw: st.DrawFn) -> tuple[str, dict[str, list[str]]]:
    word = draw(st.sampled_from(LAUNCHERS))
    optional = {option.name: values_of(option) for option in OPTIONS[word]}
    return word, draw(st.fixed_dictionaries({}, optional=optional))


@pytest.mark.parametrize("word", LAUNCHERS)
def test_every_option_of_a_launcher_is_tried(word: str) -> None:
    assert [option.name for option in OPTIONS[word] if not taken(option)] == []
    assert len({option.name for option in OPTIONS[word]}) == len(OPTIONS[word])


@given(launchers_with_options())
@settings(max_examples=50)
def test_a_run_option_keeps_its_value_on_every_way(made: tuple[str, dict[str, Any]]) -> None:
    word, values = made
    words = [f"{name}={text}" for name, texts in values.items() for text in texts]
    plan = with_launcher_and_options(PLAN, word, words)
    assert {name: text.split("\n") for name, text in plan.run_options.items()} == values

    typed = set_launcher_row(PLAN, "run-as", word)
    for row in make_launcher_rows(plan, PLAN, "all"):
        if row.name != "run-as" and row.value is not None:
            typed = set_launcher_row(typed, row.name, str(row.value))
    assert (typed.run_as, typed.run_options) == (plan.run_as, plan.run_options)

    saved = document_from_plan(plan, PARENT, preset_id="mine", title="Mine")
    loaded = plan_from_preset(Preset.model_validate(saved))
    assert (loaded.run_as, loaded.run_options) == (plan.run_as, plan.run_options)


PARENT: dict[str, Any] = {
    "schema": 1,
    "id": "parent",
    "title": "Parent",
    "summary": "A preset",
    "hardware": {},  # was left out of the saved preset, which then could not be loaded
    "engine": {"name": "vllm"},
    "model": {"id": "org/tiny"},
    "provenance": {"document": "none", "status": "untested"},
}


def test_a_preset_of_somebody_else_cannot_choose_an_image_unasked() -> None:
    images = [
        option for options in OPTIONS.values() for option in options if option.name == "image"
    ]
    assert images and all(option.foreign for option in images)
