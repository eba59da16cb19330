"""The part of pynvml that the telemetry agent uses: a tenth of its source.

Another machine receives only this part, so it has less to receive and to compile. On this machine,
the part is a file in the user's cache. It saves 2 MB of the agent's memory compared with the whole
of pynvml.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_STATEMENT_BEGIN = re.compile(r"(?m)^(?=[A-Za-z_@])")
_NAMED_DEFINITION = re.compile(r"(?:(?:@|#).*\n)*(?:(?:def|class)\s+(\w+)|(\w+)\s*=(?!=))")
_DECORATORS = re.compile(r"(?:(?:@|#).*\n)+")
_NVML_ERROR = "NVML_ERROR_"  # pynvml makes a class for each name that begins with it


@cache
def installed_pynvml_file() -> Path:
    """Return the file of the installed pynvml. Raises ModuleNotFoundError if it is missing."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pynvml is missing; the distribution nvidia-ml-py contains it")
    return Path(spec.origin)


def reduce_pynvml_source(users: Sequence[Path]) -> str:
    """Return the source of pynvml with only those definitions that the modules in the files `users`
    need, directly or through other definitions. Return the whole source if the part is not valid
    Python."""
    all_of_it = installed_pynvml_file().read_text("utf-8")
    part = strip_unused_definitions(all_of_it, "".join(path.read_text("utf-8") for path in users))
    try:
        compile(part, "pynvml", "exec")
    except SyntaxError:  # a version that is laid out in another way
        return all_of_it
    return part


def cached_pynvml_directory(users: Sequence[Path]) -> Path | None:
    """Return the directory in the user's cache that contains pynvml's part for the modules in the
    files `users`. None if there is none, or if another user could have written it."""
    try:
        folder = _cache_directory_for(users)
        own = all(
            map(_only_this_user_can_write, (*folder.parents[:2], folder, folder / "pynvml.py"))
        )
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return None
    return folder if own else None


def cache_reduced_pynvml(users: Sequence[Path]) -> None:
    """Write pynvml's part for the modules in the files `users` into the user's cache, with its
    bytecode, unless the cache contains it. Do nothing if the cache cannot be written, or if another
    user can write in its directories: that user could place a link there, and root would write to
    its target."""
    if cached_pynvml_directory(users) is not None:
        return
    import py_compile  # only the first screen needs it

    try:
        folder = _cache_directory_for(users)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not all(map(_only_this_user_can_write, (*folder.parents[:2], folder))):
            return
        new = folder / f"pynvml.{os.getpid()}"
        new.write_text(reduce_pynvml_source(users), "utf-8")
        part = new.replace(folder / "pynvml.py")
        # an agent that compiles the part keeps 2 MiB more for as long as it runs
        py_compile.compile(str(part), doraise=True)
    except (OSError, RuntimeError):
        return


def _cache_directory_for(users: Sequence[Path]) -> Path:
    """Return the directory in the user's cache for pynvml's part for the modules in the files
    `users`. Its name changes when one of these files or pynvml changes."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache_dir = Path(base) if base.startswith("/") else Path.home() / ".cache"
    files = [path.stat() for path in (installed_pynvml_file(), Path(__file__), *users)]
    stamp = zlib.crc32(repr([(file.st_mtime_ns, file.st_size) for file in files]).encode())
    return cache_dir / "workbench" / f"pynvml-{stamp:08x}"


def _only_this_user_can_write(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def strip_unused_definitions(source: str, user_source: str) -> str:
    """Return `source`, the source of a Python module, with only those functions, classes and
    variables that `user_source`, the source of another module, needs directly or through other
    definitions. Other statements, such as imports and calls, stay."""
    statements: list[str] = []
    for text in _STATEMENT_BEGIN.split(source):
        if statements and _DECORATORS.fullmatch(statements[-1]):
            statements[-1] += text
        else:
            statements.append(text)
    by_name: dict[str, list[int]] = {}
    kept, todo = set[int](), [user_source]
    for number, text in enumerate(statements):
        named = _NAMED_DEFINITION.match(text)
        name = (named[1] or named[2]) if named else ""
        if name and not name.startswith(_NVML_ERROR):
            by_name.setdefault(name, []).append(number)
        else:
            kept.add(number)
            todo.append(text)
    while todo:
        for word in set(re.findall(r"\w+", todo.pop())):
            for number in by_name.pop(word, ()):
                kept.add(number)
                todo.append(statements[number])
    return "".join(statements[number] for number in sorted(kept))
