"""A clean environment for every test: XDG directories of its own, no colour or terminal settings,
no leftovers."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is late now and then. Lateness is not a failure of a property. A test run is the
# same each time, so that a failure belongs to the change; more of the same examples find nothing
# more. WORKBENCH_SEARCH=1 searches with new examples (docs/CONTRIBUTING.md).
_SEARCH = bool(os.environ.get("WORKBENCH_SEARCH"))
settings.register_profile(
    "busy machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not _SEARCH,
    max_examples=100 if _SEARCH else 40,
)
settings.load_profile("busy machine")

# A shell ignores SIGINT and SIGQUIT in what it starts with `&`, and nohup ignores SIGHUP: the tests
# start without that.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

# A plain login has no locale, and the screen would then draw in ASCII. The screen reads it when it
# is imported.
for _name in ("LC_ALL", "LC_CTYPE"):
    os.environ.pop(_name, None)
os.environ["LANG"] = "C.UTF-8"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


_freeze = gc.freeze
_TESTS = count(1)
_TESTS_BETWEEN_ALL = 200


def pytest_collection_finish() -> None:
    """Take what the modules of the tests have made out of the collections after each test. A screen
    would take out its own objects too, and hide what it leaves open."""
    gc.collect()
    _freeze()
    gc.freeze = lambda: None  # type: ignore[assignment]


def _take_out_of_collections() -> None:
    """Take what outlives a test out of the collections after the next tests, which would visit all
    modules of the product. What became garbage meanwhile is collected now and then."""
    if next(_TESTS) % _TESTS_BETWEEN_ALL == 0:
        gc.unfreeze()
        gc.collect()
    _freeze()


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Fail a test that leaves a pipe, a socket, a process or a coroutine to the collector. Without
    the collection here, the failure would be that of a later test."""
    yield
    gc.collect()
    _take_out_of_collections()


@pytest.fixture(autouse=True)
def clean_environment(
    nothing_left_open: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        n
        for n in os.environ
        if n.startswith(("WORKBENCH_", "TEXTUAL", "NO_COLOR", "COLORTERM", "SSH_"))
    ]:
        monkeypatch.delenv(name)
    # xdist sets the sizes, which would overrule a pty's real size. A user's Python has buffers.
    for name in ("COLUMNS", "LINES", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / f"xdg-{name.lower()}"))
    # the machine's own is for its users
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(tmp_path / "gpu-register"))
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def quick(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated engines start quickly, and no benchmark measures the idle GPUs before it."""
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a parametrized test long that its mark `ci_cases` leaves out of
    CI."""
    cases: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("ci_cases")
        if mark is not None:
            function = item.nodeid.partition("[")[0]
            cases[function] += 1
            if cases[function] > mark.args[0]:
                item.add_marker(pytest.mark.long)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)  # a module that skips itself has no tests


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Write a skipped test to the file that SKIPPED_TESTS_FILE names: its id, a tab and the reason.
    `.ci/run` runs these tests again when it has installed the programs that they need."""
    name = os.environ.get("SKIPPED_TESTS_FILE")
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if name and skipped and not os.environ.get("PYTEST_XDIST_WORKER"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        with Path(name).open("a") as file:
            file.write(f"{report.nodeid}\t{' '.join(why.split())}\n")
