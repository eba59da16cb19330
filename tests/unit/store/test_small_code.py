"""Bytecode without docstrings and columns: what it keeps, and when it is used."""

from __future__ import annotations

import argparse
import asyncio
import os
import typing
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from workbench.store import small_code
from workbench.store.small_code import SmallCodeFinder, SmallCodeLoader, small_file, use_small_code
from workbench.store.small_code_writer import small_code as made_small
from workbench.store.small_code_writer import write_small_code

SOURCE = '''"""A module."""
TEXT = "A module, too."

class Thing:
    """A thing."""
    value = "thing"

    def method(self):
        """Return a value."""
        return [f"{one} {self.value}" for one in "ab"]

def same():
    "text"
    return "text"

def plain():
    return "no docstring"

async def waits():
    """Wait."""
    return "waited"

def fails():
    """Fail."""
    value = (
        1
        / 0
    )
    return value
'''


def run(code: CodeType) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "sample"}
    exec(code, space)
    return space


def inner(code: CodeType) -> typing.Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from inner(one)


def test_only_docstrings_are_dropped() -> None:
    found = run(made_small(compile(SOURCE, "sample.py", "exec")))
    assert [found[name].__doc__ for name in ("Thing", "waits", "fails")] == [None] * 3
    assert found["__doc__"] is None and found["Thing"].method.__doc__ is None
    assert found["TEXT"] == "A module, too."
    assert found["Thing"]().method() == ["a thing", "b thing"]
    assert found["plain"]() == "no docstring"
    assert asyncio.run(found["waits"]()) == "waited"


def test_a_text_that_is_used_otherwise_stays() -> None:
    assert run(made_small(compile(SOURCE, "sample.py", "exec")))["same"]() == "text"
    explicit = '"""Words."""\nwords = "Words."\n'
    assert run(made_small(compile(explicit, "sample.py", "exec")))["words"] == "Words."


def test_a_traceback_names_the_same_lines() -> None:
    for whole in (SOURCE, Path(argparse.__file__).read_text(), Path(typing.__file__).read_text()):
        code = compile(whole, "sample.py", "exec")
        small = list(inner(made_small(code)))
        assert [list(one.co_lines()) for one in small] == [
            list(one.co_lines()) for one in inner(code)
        ]
        assert sum(len(one.co_linetable) for one in small) < sum(
            len(one.co_linetable) for one in inner(code)
        )


# -- from the cache --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = Path(small_code.cache_directory())
    found.mkdir(mode=0o700, parents=True)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sample.py"
    path.write_text(SOURCE)
    return path


def loaded(cache: Path, source: Path) -> tuple[SmallCodeLoader, dict[str, Any]]:
    spec = SmallCodeFinder(str(cache)).find_spec("sample", [str(source.parent)])
    assert spec is not None and isinstance(spec.loader, SmallCodeLoader)
    code = spec.loader.get_code("sample")
    assert code is not None
    return spec.loader, run(code)


def test_a_module_is_loaded_from_the_cache(cache: Path, source: Path) -> None:
    loader, before = loaded(cache, source)
    assert not loader.is_small and before["Thing"].__doc__ == "A thing."
    write_small_code(str(cache), str(source))
    loader, after = loaded(cache, source)
    assert loader.is_small and after["Thing"].__doc__ is None
    assert after["plain"].__code__.co_filename == str(source)


def test_a_module_that_has_changed_is_not(cache: Path, source: Path) -> None:
    write_small_code(str(cache), str(source))
    source.write_text(SOURCE + "\nNEW = True\n")
    loader, found = loaded(cache, source)
    assert not loader.is_small and found["NEW"]


@pytest.mark.parametrize("rest", [b"", b"\0" * 40], ids=["empty", "other"])
def test_a_file_of_another_python_is_not(cache: Path, source: Path, rest: bytes) -> None:
    target = Path(small_file(str(cache), str(source)))
    target.parent.mkdir(parents=True)
    target.write_bytes(rest)
    assert not loaded(cache, source)[0].is_small


@pytest.mark.parametrize("what", ["code", "workbench", "link", "none"])
def test_a_cache_that_another_user_can_write_is_not_used(
    cache: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finders: list[Any] = []
    monkeypatch.setattr("sys.meta_path", finders)
    use_small_code()
    assert [type(one) for one in finders] == [SmallCodeFinder]
    finders.clear()
    if what == "link":
        cache.rename(cache.with_name("moved"))
        cache.symlink_to(cache.with_name("moved"))
    elif what == "none":
        cache.rmdir()
    else:
        os.chmod(cache if what == "code" else cache.parent, 0o777)
    use_small_code()
    assert finders == []
