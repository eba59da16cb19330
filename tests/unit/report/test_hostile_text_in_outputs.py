"""Tests with hostile text in every field of a result, in every output format."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support import made_results
from support.hostile import EVIL, assert_safe, hostile_texts

from workbench.cli.run import run
from workbench.model.bench import BenchResult
from workbench.model.errors import InputError
from workbench.model.json_records import from_json, to_json
from workbench.report import imports
from workbench.report.content import Report
from workbench.report.registry import OUTPUT_FORMATS, find_output_format


def export(result: BenchResult, form: str, samples: Sequence[Mapping[str, Any]] = ()) -> str:
    return find_output_format(form).render(Report.from_result(result, samples))


def filled(data: Any, text: str) -> Any:
    """Return JSON data with every text in it replaced by `text`."""
    if isinstance(data, dict):
        return {key: filled(value, text) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [filled(value, text) for value in data]
    return text if isinstance(data, str) else data


def hostile_result(text: str) -> BenchResult:
    data = to_json(made_results.result())
    spoilt = {
        **data,
        "conditions": filled(data["conditions"], text),
        "summary": filled(data["summary"], text),
    }
    return replace(from_json(BenchResult, spoilt), note=text, tags=(text,))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(hostile_texts())
def test_no_output_contains_escape_sequences(text: str) -> None:
    result = hostile_result(text)
    sample = {**made_results.samples(1)[0], "error": text, "detail": text, "finish_reason": text}
    for form in OUTPUT_FORMATS:
        written = export(result, form, [sample])
        assert_safe(written)
        written.encode()
        if form == "html":
            assert "<script>" not in written and "<img" not in written
    assert_safe(export(result, "txt"))


@settings(deadline=None, max_examples=50)
@given(hostile_texts())
def test_an_import_stores_clean_text_or_reports_a_clean_error(
    tmp_path_factory: Any, text: str
) -> None:
    path = tmp_path_factory.mktemp("import") / "evil.json"
    one = made_results.result()
    document = json.loads(export(one, "json"))
    spoilt = {**document, "conditions": filled(document["conditions"], text), "note": text}
    path.write_text(json.dumps(spoilt))
    try:
        (taken,) = imports.read_results(path)
    except InputError as error:
        assert_safe(str(error))
    else:
        assert_safe(
            f"{taken.conditions.model}{taken.conditions.host}{taken.note}".replace("\n", "\0")
        )


def said(*words: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run([*words])
    return out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ("results", "list", EVIL),
        ("results", "export", "1", "--format", EVIL),
        ("results", "search", EVIL),
        ("presets", "check", EVIL.replace("\ud800", "")),
        ("presets", "show", EVIL),
        ("plan", EVIL),
        ("bench", "--url", EVIL),
        ("gpu", "set", "--gpu", EVIL, "--power-limit", "1"),
        ("compare", EVIL, "2"),
        (EVIL,),
        ("--simulate", EVIL, "gpu", "status"),
    ],
)
def test_arguments_are_echoed_cleanly(words: tuple[str, ...]) -> None:
    assert_safe(said(*words))
    assert_safe(said(*words, "--json"))


def test_presets_check_names_a_file_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[2J\x9b31m\u202e.toml"
    path.write_text('id = "evil"\ntitle = 3\n')
    assert_safe(said("presets", "check", str(path)))
    assert_safe(said("presets", "check", str(path), "--json"))
