"""Impossible numbers in the answers of hosts, engines, schedulers and other tools' files: each is
left out with a reason, or refused in a sentence."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.hostile import ODD_NUMBERS, hostile_numbers, hostile_texts

from workbench.engines import registry
from workbench.hosts import host_facts, run_processes
from workbench.model.errors import InputError
from workbench.model.untrusted_numbers import (
    EXACT,
    path_and_reason_of_impossible_number,
    replace_non_finite,
)
from workbench.report.imports.checked_fields import Fields
from workbench.server import jobs, metrics
from workbench.server.launchers.launcher import parse_launched

words = hostile_numbers().map(str) | hostile_texts() | st.text(max_size=12)
line_of_words = st.lists(words, max_size=8).map(" ".join)
KINDS = ("proc", "token", "run", "value", "now", "uptime", "boot", "older", "end", "/x")


@given(st.lists(st.tuples(st.sampled_from(KINDS), line_of_words), max_size=6))
@example([("proc", "9" * 5000 + " S 1 1 1 1"), ("now", "1e999"), ("value", "pid nan")])
def test_any_survey_of_a_host_is_read(lines: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{kind} {rest}" for kind, rest in [*lines, ("end", "")])
    survey = run_processes.parse_survey(text.encode("utf-8", "surrogatepass"))
    assert survey is not None and 0 <= survey.now_unix_s < 1e12
    for process in survey.processes.values():
        assert all(0 <= value < 10**18 for value in (process.pid, process.parent, process.start))
    for run in survey.runs:
        run_processes.find_living_members(run, survey)


def test_a_row_of_the_process_table_is_read() -> None:
    survey = run_processes.parse_survey(b"boot b\nnow 1700000000\nproc 7 S 1 7 7 99\nend \n")
    assert survey is not None
    assert survey.processes == {7: run_processes.Process(7, "S", 1, 7, 7, 99)}


@given(st.dictionaries(st.sampled_from(["uid", "cpu_count", "memory_kib", "python3"]), words))
def test_any_facts_of_a_host_are_read(said: dict[str, str]) -> None:
    text = "\n".join(f"{name}={value}" for name, value in said.items())
    facts = host_facts.parse_host_facts(text, "box", "ssh")
    assert facts.cpu_count is None or facts.cpu_count >= 0


@given(st.lists(words, min_size=1, max_size=600).map(":".join) | words)
def test_any_duration_of_a_scheduler_is_one_or_none(text: str) -> None:
    seconds = jobs.parse_scheduler_duration_s(text)
    assert seconds is None or 0 <= seconds < 10**15


@given(st.dictionaries(st.sampled_from(["pid", "restarts", "ends_unix_s", "exit_code"]), words))
def test_any_record_of_a_launcher_is_read(said: dict[str, str]) -> None:
    text = "\n".join(f"{name} {value}" for name, value in said.items())
    found = parse_launched(text.encode("utf-8", "surrogatepass"))
    assert found is None or dataclasses.asdict(found)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@given(values=st.lists(words, min_size=1, max_size=4))
@example(values=["9007199254740992"] * 4)
@example(values=["1e308", "-1", "NaN", "+Inf"])
def test_any_page_of_an_engine_gives_possible_counts(engine: str, values: list[str]) -> None:
    one = registry.get_engine(engine)
    names = [names[0].partition("{")[0] for names in one.metrics.values() if names]
    page = "# TYPE x counter\n" + "\n".join(
        f'{name}{{rank="{rank}"}} {" ".join(value.split())}'
        for name in names
        for rank, value in enumerate(values)
    )
    read = metrics.parse_metrics(page, one)
    for field, value in dataclasses.asdict(read).items():
        if isinstance(value, int | float):
            assert math.isfinite(value) and 0 <= value <= 2 * EXACT, field
    json.dumps(dataclasses.asdict(read), allow_nan=False)


@pytest.mark.parametrize("value", [v for v in ODD_NUMBERS if v not in (12, 2**31, 2**63)])
def test_an_imported_number_is_possible_or_refused(value: Any) -> None:
    fields = Fields(Path("file.json"), {"n": value, "list": [value]})
    for read, name in ((fields.number, "n"), (fields.numbers, "list")):
        try:
            found = read(name)
        except InputError as refused:
            assert len(refused.message) < 300
        else:
            assert not path_and_reason_of_impossible_number(found)


@given(st.recursive(hostile_numbers(), lambda d: st.lists(d) | st.dictionaries(st.text(), d)))
def test_data_without_an_impossible_number_is_plain_json(data: object) -> None:
    if not path_and_reason_of_impossible_number(data):
        assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(
            json.dumps(replace_non_finite(data))
        )


@pytest.mark.parametrize("unix_s", [1e308, -1, 1e12])
def test_a_time_that_no_date_can_show_is_impossible(unix_s: float) -> None:
    assert path_and_reason_of_impossible_number({"conditions": {"server_started_unix_s": unix_s}})
    assert not path_and_reason_of_impossible_number(
        {"conditions": {"server_started_unix_s": 1.7e9}}
    )
