"""The start of the program that writes the bytecode of the next screen."""

from __future__ import annotations

import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

from workbench.hosts.local_process import start_process
from workbench.store import small_code

# Each of these is known to work without its docstrings, as is the standard library.
_PACKAGES = frozenset({"workbench", "textual", "rich", "platformdirs", "typing_extensions"})
_ROOT = Path(__file__).resolve().parents[2]
# as the telemetry agent is started: isolated, and without what site-packages would start
_PROGRAM = (
    f"import sys; sys.path.append({str(_ROOT)!r}); "
    "from workbench.store.small_code_writer import main; main()"
)


async def write_small_code() -> None:
    """Write the small bytecode of the loaded modules into the user's cache, in a process of its own.
    Do nothing if most modules were loaded from there, or if another user can write there."""
    found = dict(_loaded_sources())
    missing = [path for path, is_small in found.items() if not is_small]
    cache = small_code.cache_directory()
    if len(missing) * 4 < len(found) or not _make_directory(cache):
        return
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, cache]
    process = await start_process(argv, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)
    assert process.stdin is not None
    try:
        process.stdin.write("\n".join(missing).encode())
        process.stdin.close()
        await process.wait()
    finally:
        await process.end()


def _loaded_sources() -> Iterator[tuple[str, bool]]:
    """Yield (absolute path of its source, whether its bytecode is small) of each loaded module."""
    for name, module in list(sys.modules.items()):
        loader = getattr(module, "__loader__", None)
        root = name.partition(".")[0]
        is_known = root in _PACKAGES or root in sys.stdlib_module_names
        if is_known and isinstance(loader, SourceFileLoader) and loader.path.startswith("/"):
            yield loader.path, getattr(loader, "is_small", False)


def _make_directory(cache: str) -> bool:
    """Make the directory, and return whether only this user can write there."""
    try:
        for one in (Path(cache).parent, Path(cache)):  # the mode is that of the last directory
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return small_code.is_own_directory(cache)
