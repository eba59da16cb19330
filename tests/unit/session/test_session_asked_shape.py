"""Which benchmark is "as before": the person's own last one, whatever loads sweeps and proofs put
on the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from workbench.model.load_spec import REPEATED
from workbench.model.preset import Benchmark
from workbench.session.bench.spec import spec_from_fields
from workbench.session.session import Session
from workbench.session.state import BenchState


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"concurrency": 3, "requests": 9},
        {"profile": "batch", "until_steady": False},
        {"rate": 2.5, "seconds": 30.0},
        {"prompts": ('"one"', '"two"'), "prompts_name": "two lines"},
        {"temperature": 0.7, "shared_prefix": True},
    ],
)
def test_the_shape_asks_for_the_same_again(asked: dict[str, Any]) -> None:
    session = Session.of_host()
    spec = session.bench.asked = spec_from_fields(None, asked)
    again = session.server_load.make_spec(None, session.bench.default_spec_fields())
    assert {n: getattr(again, n) for n in REPEATED if n != "profile"} == {
        n: getattr(spec, n) for n in REPEATED if n != "profile"
    }


def test_a_load_of_a_sweep_or_a_proof_is_no_benchmark_of_the_persons() -> None:
    session = Session.of_host()
    session.bench.asked = spec_from_fields(None, {"concurrency": 3})
    load = replace(session.bench.asked, concurrency=32, requests=20_000, seconds=10.0)
    session.core.update(bench=BenchState(spec=load))
    assert (
        session.bench.default_spec() == session.bench.asked
        and session.bench.default_spec_fields()["concurrency"] == 3
    )


def test_a_benchmark_with_a_presets_own_word_for_its_profile_is_repeated() -> None:
    """`.` failed after it had restarted the server: no profile has that name."""
    session = Session.of_host()
    own = Benchmark(profile="of their own", concurrency=[2], requests=6)
    spec = spec_from_fields(own, {"endpoint": "completions"})
    again = session.bench.fields_to_repeat_benchmark(spec)
    assert spec_from_fields(own, again) == spec
    assert session.server_load.make_spec(None, again) == replace(spec, profile="quick")
