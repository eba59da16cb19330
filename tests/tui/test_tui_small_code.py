"""A screen writes the bytecode of the next one, unless that is there."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from workbench.store import small_code
from workbench.store.small_code import SmallCodeLoader
from workbench.tui import small_code_start


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(small_code.cache_directory())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sample.py"
    path.write_text("def sample():\n    'Return nothing.'\n")
    return path


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_screen_writes_it_for_the_next_one(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_code_start, "_loaded_sources", lambda: iter([(str(source), False)]))
    await small_code_start.write_small_code()
    loader = SmallCodeLoader("sample", str(source), str(cache))
    assert loader.get_code("sample") is not None and loader.is_small


@pytest.mark.anyio
async def test_it_is_not_written_again(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A screen always loads a few modules before it uses the cache, and others after a key."""
    kept = [(f"/kept/{number}.py", True) for number in range(4)]
    monkeypatch.setattr(
        small_code_start, "_loaded_sources", lambda: iter([*kept, (str(source), False)])
    )
    monkeypatch.setattr(small_code_start, "start_process", None)  # a call would fail
    await small_code_start.write_small_code()
    assert not cache.exists()


def test_every_loaded_module_has_its_source() -> None:
    found = dict(small_code_start._loaded_sources())
    assert str(Path(argparse.__file__)) in found and str(Path(__file__)) not in found
