"""What a sweep keeps of its inputs, which sweeps can be resumed with them, and what a resumed one
starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.made_results import result

from workbench.model.answer_text import SetFeatures, TextFinding, TextReport
from workbench.model.secrets import MASK
from workbench.model.sweep import Sweep, SweepPoint, SweepSpec, planned_again_for_resume
from workbench.session.series.sweep_progress import (
    bench_fields_to_store,
    point_fields_from_results,
    why_server_failed,
)
from workbench.store.sweeps import SweepStore

SPEC = SweepSpec(
    ("500", "300"),
    {"seconds": 2.0, "command": ("a", "b")},
    runs=2,
    pairs=3,
    measured={"driver": "580.1", "GPU GPU-1": "A100"},
    run_id="r1",
    gpus=("GPU-1",),
    settle_s=5.0,
)


def sweep(state: str, *points: str, spec: SweepSpec | None = SPEC) -> Sweep:
    made = tuple(SweepPoint(f"{n}00 W", 100.0 * n, one) for n, one in enumerate(points))
    return Sweep(0, 1.0, "here", "power_limit_w", "power limit", "W", made, state, spec=spec)


def test_inputs_and_what_was_on_come_back_whole(tmp_path: Path) -> None:
    store = SweepStore(tmp_path)
    start = {"owners": [{"pid": 1}], "gpus": {"GPU-1": {"settings": {"power_limit_w": 600.0}}}}
    made = store.add(replace(sweep("stopped", "done", "skipped"), start=start, before="r0"))
    assert store.get(made.id) == made


def test_a_shape_is_kept_without_secrets_and_names_its_file_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = bench_fields_to_store(
        {"requests": 4, "prompts_file": "p.jsonl", "extra_body": {"api_key": "sesame"}}
    )
    assert shape == {
        "requests": 4,
        "prompts_file": str(tmp_path / "p.jsonl"),
        "extra_body": {"api_key": MASK},
    }
    assert bench_fields_to_store({"requests": 4}) == {"requests": 4, "content": "text"}


@pytest.mark.parametrize(
    ("one", "resumable"),
    [
        (sweep("stopped", "done", "skipped"), True),
        (sweep("stopped", "done", "done"), True),  # its pairs were not made
        (sweep("failed", "failed"), True),
        (sweep("done", "done", "failed"), True),  # the value is tried again when it is asked for
        (sweep("done", "done", "done"), False),
        (sweep("running", "done", "planned"), False),
        (sweep("stopped", "done", "skipped", spec=None), False),
    ],
)
def test_which_can_be_resumed(one: Sweep, resumable: bool) -> None:
    assert one.can_be_resumed is resumable


def test_what_was_measured_stays_with_what_is_said_of_it() -> None:
    notes = ("000 W: not settled", "100 W: not settled", "ended early: cancelled")
    ended = replace(
        sweep("stopped", "done", "failed", "skipped"),
        notes=notes,
        knee=0,
        confirmed=False,
        error="cut",
    )
    again = planned_again_for_resume(planned_again_for_resume(ended))
    assert [p.state for p in again.points] == ["done", "planned", "planned"] and again.spec == SPEC
    assert again.notes == ("000 W: not settled", "resumed: 1 of 3 values had been measured before")
    assert (again.state, again.knee, again.confirmed, again.error) == ("running", None, None, None)


def test_a_point_of_several_runs_shows_their_mean() -> None:
    def of(tok_s: float, **more: Any) -> Any:
        plain = result(1)
        clean = {"refused": (), "requests_failed": 0, "errors": {}}
        return replace(
            plain, summary=replace(plain.summary, **{**clean, "output_tok_s": tok_s, **more})
        )

    both = point_fields_from_results([of(100.0, tok_per_joule=2.0), of(200.0, tok_per_joule=4.0)])
    assert (both["state"], both["tok_s"], both["tok_per_joule"]) == ("done", 150.0, 3.0)
    assert (
        point_fields_from_results([of(100.0, tok_per_joule=2.0), of(200.0, tok_per_joule=None)])[
            "tok_per_joule"
        ]
        is None
    )
    useless = point_fields_from_results([of(100.0), of(200.0, refused=("the client was late",))])
    assert useless["state"] == "failed" and "the client was late" in useless["error"]


def test_a_point_whose_text_is_no_answer_is_no_point_of_the_curve() -> None:
    garbage = TextFinding("error", "text.degenerate", "degenerate output: all", '"!!!!"')
    plain = result(1)
    text = TextReport(SetFeatures(), None, (garbage,))
    clean = replace(plain.summary, refused=(), requests_failed=0, errors={}, text=text)
    point = point_fields_from_results([replace(plain, summary=clean)])
    assert point["state"] == "failed"
    assert point["error"].startswith('its text is not an answer: "!!!!"')
    assert why_server_failed(replace(plain, summary=clean)), "it is not measured again"
