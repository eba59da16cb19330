"""The page "what differs" of two results."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support import made_results as made
from support.real_screen import real_screen

from workbench.model.bench import BenchResult
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.results_db import ResultsDb
from workbench.tui.cells import row_width
from workbench.tui.pages.differs import result_differences_rows

A = made.result(
    1,
    argv=("vllm", "serve", "m", "--enforce-eager"),
    flags={"enforce-eager": True, "port": 8000},
    env={"VLLM_API_KEY": "sk-secret-1", "OMP_NUM_THREADS": "4"},
    gpu_settings={"gpu0.power_limit_w": 250.0},
    engine_version="0.33.0",
    host="box",
)
B = made.result(
    2,
    argv=("vllm", "serve", "m"),
    flags={"enforce-eager": False, "port": 8000},
    env={"VLLM_API_KEY": "sk-secret-2", "OMP_NUM_THREADS": "8"},
    gpu_settings={"gpu0.power_limit_w": 170.0},
    engine_version="0.34.0",
    host="box",
)


def text(a: BenchResult, b: BenchResult, width: int = 80) -> str:
    return "\n".join("".join(run for run, _ in row) for row in result_differences_rows(a, b, width))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_only_the_differences_are_listed_side_by_side(width: int) -> None:
    shown = text(A, B, width)
    for wanted in ("enforce-eager", "OMP_NUM_THREADS", "0.33.0", "0.34.0", "250 W", "170 W"):
        assert wanted in shown
    assert "port" not in shown and "box" not in shown
    assert "secret" not in shown
    assert "The same: in force under load, host, load, answers." in " ".join(shown.split())
    if width >= 80:
        row = next(line for line in shown.splitlines() if "enforce-eager" in line)
        assert row.split() == ["enforce-eager", "on", "off"]


def test_two_equal_results_differ_in_nothing() -> None:
    assert text(A, replace(A, id=5)).startswith("Nothing differs")


def test_commands_without_known_flags_differ_in_words() -> None:
    bare = {"flags": {}}
    a, b = (replace(r, conditions=replace(r.conditions, **bare)) for r in (A, B))
    assert "--enforce-eager" in text(a, b)


@pytest.mark.parametrize("width", [10, 16, 33, 47, 80, 200])
def test_no_row_is_wider_than_the_page(width: int) -> None:
    long = {"x" * 50: "ü 文字 " * 12, "kv-transfer-config": {"a": ["b" * 70]}}
    other = replace(B, conditions=replace(B.conditions, flags=long, host="h" * 90))
    assert all(row_width(row) <= width for row in result_differences_rows(A, other, width))


@pytest.mark.slow
def test_a_key_and_the_palette_open_the_page(clean_environment: None) -> None:
    db = ResultsDb(paths.results_db())

    async def go() -> None:
        session = Session.of_host()
        ids = [
            db.add(r.spec, replace(r.conditions, host=session.host.name), r.summary) for r in (A, B)
        ]
        async with real_screen(session=session) as screen:
            await screen.until(lambda: len(screen.state.results) == 2)
            await screen.press("5", "d")
            await screen.until("mark two results in the Bench pane with a and B")
            await screen.press("c", "d")
            await screen.until(f"What differs between #{ids[0]} and #{ids[1]}", "250 W", "170 W")
            await screen.press("escape")
            await screen.until(lambda: "What differs" not in screen.text)
            await screen.press("ctrl+p", *"compare differs", "enter")
            await screen.until(f"What differs between #{ids[0]} and #{ids[1]}")

    asyncio.run(go())
