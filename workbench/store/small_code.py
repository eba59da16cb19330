"""Bytecode without docstrings and columns: reading it in place of the usual bytecode.

A screen keeps the code of 640 modules. Without docstrings, and with one entry for each line in
place of one for each expression, that is 3 MiB less. `small_code_writer.py` writes such bytecode
into the user's cache, once after each update. Python itself would drop docstrings only with `-OO`,
for which installed packages have no bytecode, and which drops assertions too.

The file is imported before all others, so it imports only what Python has loaded already.
"""

# ruff: noqa: PTH111, PTH116, PTH120 (pathlib would be loaded with its docstrings)

from __future__ import annotations

import marshal
import os
import stat
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType

HEADER_BYTES = 16  # of a .pyc file: the version of the bytecode, flags, time and size of the source


class SmallCodeLoader(SourceFileLoader):
    """Loads the bytecode of one module from the cache if it is there and of the present source, and
    otherwise as Python does."""

    def __init__(self, name: str, path: str, cache: str) -> None:
        super().__init__(name, path)
        self.cache = cache
        self.is_small = False  # whether its bytecode came from the cache

    def get_code(self, fullname: str) -> CodeType | None:
        try:
            data = self.get_data(small_file(self.cache, self.path))
            header = header_of(os.stat(self.path))
        except OSError:
            return super().get_code(fullname)
        if data[:HEADER_BYTES] != header:
            return super().get_code(fullname)
        self.is_small = True
        code: CodeType = marshal.loads(memoryview(data)[HEADER_BYTES:])
        return code


class SmallCodeFinder:
    """Finds modules where Python does, and lets SmallCodeLoader load those from source files."""

    def __init__(self, cache: str) -> None:
        self.cache = cache

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = SmallCodeLoader(name, spec.loader.path, self.cache)
        return spec


def header_of(source: os.stat_result) -> bytes:
    """Return the first bytes of a .pyc file for a source file, as Python writes them."""
    numbers = (0, int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    return MAGIC_NUMBER + b"".join(number.to_bytes(4, "little") for number in numbers)


def small_file(cache: str, source: str) -> str:
    """Return the file in the cache for the source file with the absolute path `source`."""
    return f"{cache}{source}c"


def cache_directory() -> str:
    """Return the directory with the small bytecode for this version of Python. Its parent is the
    cache of Workbench. "" if this user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        base = os.path.expanduser("~/.cache")
    name = f"code-{sys.implementation.cache_tag}"
    return f"{base}/workbench/{name}" if base.startswith("/") else ""


def is_own_directory(path: str) -> bool:
    """Return whether `path` and the directory above it are directories of this user in which no
    other user can write. Under sudo, the cache can be that of another user."""
    try:
        return all(_is_own(one) for one in (path, os.path.dirname(path)))
    except OSError:
        return False


def _is_own(path: str) -> bool:
    found = os.lstat(path)
    mode = found.st_mode
    closed = not mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(mode) and found.st_uid == os.geteuid() and closed


def use_small_code() -> None:
    """Import modules from now on with the bytecode in the user's cache, where it has any."""
    cache = cache_directory()
    if is_own_directory(cache):
        sys.meta_path.insert(0, SmallCodeFinder(cache))
