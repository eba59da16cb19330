"""Rules about the code: names, layers, and the modules that a start may import."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from workbench.engines import registry
from workbench.gpu import remote_programs
from workbench.hosts.python_programs import PythonProgram

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "workbench").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
HEAVY = {"asyncssh", "textual", "pydantic", "httpx", "plotext", "sqlite3", "tomlkit", "rich"}


def words_printed_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules in `sys.modules` after `code` ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return words_printed_by(script)


def test_no_vague_file_names_and_nothing_left_unfinished() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    assert not [str(path.relative_to(ROOT)) for path in SOURCES if path.stem in vague]
    marks = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error", "fmt: " + "skip")
    assert not [
        (str(path.relative_to(ROOT)), m) for path in SOURCES for m in marks if m in path.read_text()
    ]


def test_only_the_engines_rooms_compare_engine_names() -> None:
    """What differs between engines is an attribute of an engine, so no other code compares names or
    keys by them."""
    rooms = (ROOT / "workbench" / "engines", ROOT / "workbench" / "sim" / "engines")
    others = [path for path in SOURCES if not any(path.is_relative_to(room) for room in rooms)]
    found = [
        f"{path.relative_to(ROOT)}: {', '.join(names)}"
        for path in others
        if (names := compared_engines(path))
    ]
    assert not found


def compared_engines(path: Path) -> list[str]:
    """Return the engine names in comparisons, patterns and keys of dictionaries of the file."""
    text = path.read_text()
    if not any(f'"{name}"' in text for name in registry.engine_names()):
        return []
    texts: list[ast.AST] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            texts += [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            texts += [key for key in node.keys if key is not None]
        elif isinstance(node, ast.match_case):
            texts.append(node.pattern)
    constants = (
        part for node in texts for part in ast.walk(node) if isinstance(part, ast.Constant)
    )
    return [str(part.value) for part in constants if part.value in registry.engine_names()]


def test_no_line_takes_two_readings() -> None:
    """A conditional expression inside another, and a walrus in a comprehension, become steps with
    names."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if is_nested_condition(node) or is_comprehension_with_walrus(node)
    ]
    assert not found


def is_nested_condition(node: ast.AST) -> bool:
    if not isinstance(node, ast.IfExp):
        return False
    inner = [part for part in ast.walk(node) if part is not node]
    return any(isinstance(part, ast.IfExp) for part in inner)


def is_comprehension_with_walrus(node: ast.AST) -> bool:
    if not isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return False
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))


def test_a_gpu_setting_is_known_in_few_places() -> None:
    """All that iterates over the table in model/settings.py needs no key of a setting."""
    assert len([path for path in SOURCES if "power_limit_w" in path.read_text()]) < 8


def test_digits_are_those_that_int_reads() -> None:
    """`"²".isdigit()` is True, and `int("²")` raises ValueError. `isdecimal` and `int` agree."""
    assert not [
        str(path.relative_to(ROOT)) for path in SOURCES if ".isdig" + "it()" in path.read_text()
    ]


def test_few_tests_may_run_again() -> None:
    """At most 10 tests carry the `flaky` mark, each with one rerun."""
    marks = [
        line.strip()
        for path in TESTS
        for line in path.read_text().splitlines()
        if "pytest.mark." + "flaky" in line
    ]
    assert len(marks) <= 10
    assert not [mark for mark in marks if "reruns=1" not in mark]


def test_importing_the_command_line_is_light() -> None:
    assert not loaded_after("import workbench.cli") & HEAVY


def test_a_local_session_never_loads_asyncssh() -> None:
    code = (
        "import asyncio, os, tempfile\n"
        "os.environ['XDG_STATE_HOME'] = os.environ['XDG_DATA_HOME'] = tempfile.mkdtemp()\n"
        "from workbench.session.session import Session\n"
        "import workbench.tui\n"
        "async def main():\n"
        "    s = Session.of_host(None)\n"
        "    await s.open(); await s.close()\n"
        "asyncio.run(main())"
    )
    assert "asyncssh" not in loaded_after(code)


def test_the_first_frame_waits_for_nothing_heavy() -> None:
    """Before `workbench demo` draws its first frame, Textual and the session are loaded, and no
    later module. Generating the model's dataclasses alone takes a tenth of the time to the first
    frame."""
    code = (
        "from workbench.cli import run\n"
        "from workbench.cli.parser import parse_command_line\n"
        "parse_command_line(['demo'])\n"
        "import workbench.cli.screen, workbench.tui.app\n"
        "from workbench.session.session import Session\n"
        "Session.of_host(None, 'four-pcie')\n"
        "late = ('bench', 'settings', 'plan', 'gpu', 'preset')\n"
        "assert not [m for m in late if f'workbench.model.{m}' in sys.modules]\n"
        "rooms = ('engines', 'server', 'bench', 'gpu')\n"
        "assert not [r for r in rooms if f'workbench.{r}' in sys.modules]"
    )
    assert loaded_after(code) & HEAVY == {"textual", "rich"}


def test_each_dataclass_is_lazy() -> None:
    """One of the standard library takes 0.4 ms and 10 KiB more in each program that loads it.
    Write `from workbench.model.lazy_dataclass import dataclass`."""
    found = [
        f"{path.relative_to(ROOT)}"
        for path in (ROOT / "workbench").rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("from dataclasses import")
        and "dataclass" in line.replace(",", " ").split()
    ]
    assert not found, "the decorator is that of workbench/model/lazy_dataclass.py"


def test_a_benchmark_of_a_url_loads_no_supervisor_and_no_series() -> None:
    """Workbench starts no server for it, and each module counts in the CPU time of `bench`."""
    code = (
        "import sys\n"
        "from workbench.cli import run\n"
        "from workbench.cli.parser import parse_command_line\n"
        "from workbench.session.session import Session\n"
        "parse_command_line(['bench', '--url', 'http://127.0.0.1:1'])\n"
        "Session.of_host().bench\n"
        "print(*sys.modules)"
    )
    loaded = words_printed_by(code)
    assert "workbench.session.bench.bench" in loaded
    assert not loaded & {"workbench.server.supervisor", "workbench.cli.sweeps"}


def test_a_first_reading_loads_nothing_heavy() -> None:
    """The telemetry agent is started meanwhile, and its first reading may come first. Whoever adds
    a module here makes each start of the screen later."""
    code = (
        "import sys\n"
        "from workbench import __main__, tui\n"
        "sys.meta_path.insert(0, __main__._WithoutOpenSsl())\n"
        "import asyncio\n"
        "from workbench.cli import run, screen\n"
        "from workbench.cli.parser import parse_command_line\n"
        "from workbench.session.session import Session\n"
        "parse_command_line(['demo'])\n"
        "async def main():\n"
        "    session = Session.of_host(None, 'four-pcie')\n"
        "    (await tui._load_application(session))(session)\n"
        "    async with asyncio.timeout(30):\n"
        "        while session.state.telemetry is None:\n"
        "            await asyncio.sleep(0.01)\n"
        "    print(*sys.modules)\n"
        "    await session.close()\n"
        "asyncio.run(main())"
    )
    loaded = words_printed_by(code)
    assert {name.split(".")[0] for name in loaded} & HEAVY == {"textual", "rich"}
    assert not {"ssl", "_hashlib"} & loaded, "OpenSSL takes 1 to 4 MB"


def test_drawing_the_first_frame_loads_no_later_part() -> None:
    """A pane that asks a part of the session for something, instead of the state, loads that part
    before the frame."""
    code = (
        "import asyncio\n"
        "from textual.screen import Screen\n"
        "from workbench.session.session import Session\n"
        "from workbench.tui.app import WorkbenchApp\n"
        "draw = Screen._compositor_refresh\n"
        "def first(screen):\n"
        "    draw(screen)\n"
        "    if type(screen).__name__ == 'MainScreen':\n"
        "        print(*sys.modules, flush=True)\n"
        "        os._exit(0)\n"
        "Screen._compositor_refresh = first\n"
        "async def main():\n"
        "    async with WorkbenchApp(Session.of_host(None, 'four-pcie')).run_test():\n"
        "        pass\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys\n{code}"],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=ROOT,
    )
    loaded = done.stdout.split()
    assert "workbench.tui.screen" in loaded, done.stderr
    parts = (
        "session.results.results",
        "session.servers.servers",
        "session.plans.plans",
        "session.gpu.control",
        "bench",
        "store.database",
    )
    assert not [part for part in parts if f"workbench.{part}" in loaded]
    unused = ("_directory_tree", "_input", "_option_list", "_placeholder", "_select", "_tree")
    assert not [name for name in unused if f"textual.widgets.{name}" in loaded]


@pytest.mark.slow
def test_a_session_that_has_looked_around_has_loaded_no_benchmark() -> None:
    """The load client, and what judges text, took 1 MiB of each screen, and clusters 0.2. Without a
    server and a plan, the supervisor with the known lines of logs took 1.3, and the engines with
    their flags 1. Without a result, what reads results took 0.7."""
    code = (
        "import asyncio, sys\n"
        "from workbench.session.session import Session\n"
        "async def main():\n"
        "    session = Session.of_host(None, 'four-pcie')\n"
        "    await session.open()\n"
        "    async with asyncio.timeout(60):\n"
        "        while not session.state.servers_read or session.state.telemetry is None:\n"
        "            await asyncio.sleep(0.01)\n"
        "        await session._own_files_read.wait()\n"
        "        await session._store_detached_results()\n"
        "    print(*sys.modules)\n"
        "    await session.close()\n"
        "asyncio.run(main())"
    )
    with tempfile.TemporaryDirectory() as home:
        own = {f"XDG_{name}_HOME": home for name in ("STATE", "DATA", "CONFIG", "CACHE")}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=110,
            cwd=ROOT,
            env={**os.environ, **own},
        )
    loaded = done.stdout.split()
    assert "workbench.session.servers.servers" in loaded, done.stderr
    parts = (
        "model.bench",
        "model.quality",
        "model.sweep",
        "store.results_db",
        "gpu.settings.clock_contrasts",
        "hosts.detached_process",
        "engines.base",
        "engines.catalog",
        "hosts.cluster",
        "server.supervisor",
        "server.log_patterns",
        "session.plans.plan_editor",
        "bench.connection",
        "session.bench.measurement",
        "model.answer_probe",
        "server.cluster_supervisor",
    )
    assert not [part for part in parts if f"workbench.{part}" in loaded]
    unused = {"httpx", "sqlite3", "statistics", "gzip"}
    assert not unused.intersection(loaded)


@pytest.mark.slow
def test_the_first_key_loads_what_a_plan_needs() -> None:
    """Loading it with the first preset took 0.1 s of that key."""
    code = (
        "import asyncio, sys\n"
        "from workbench.session.session import Session\n"
        "from workbench.tui.app import WorkbenchApp\n"
        "PART = 'workbench.session.plans.plan_editor'\n"
        "async def main():\n"
        "    async with WorkbenchApp(Session.of_host(None, 'four-pcie')).run_test() as pilot:\n"
        "        assert PART not in sys.modules\n"
        "        await pilot.press('down')\n"
        "        async with asyncio.timeout(60):\n"
        "            while PART not in sys.modules:\n"
        "                await asyncio.sleep(0.01)\n"
        "asyncio.run(main())"
    )
    with tempfile.TemporaryDirectory() as home:
        own = {f"XDG_{name}_HOME": home for name in ("STATE", "DATA", "CONFIG", "CACHE")}
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            timeout=110,
            cwd=ROOT,
            env={**os.environ, **own},
        )


@pytest.mark.slow
def test_only_ssh_imports_asyncssh_and_only_the_screen_imports_textual() -> None:
    for path in SOURCES:
        names = imported(path)
        inside = path.relative_to(ROOT / "workbench")
        if "asyncssh" in names:
            assert str(inside) == "hosts/ssh.py"
        if "textual" in names or "plotext" in names:
            assert inside.parts[0] == "tui"


def test_programs_that_are_sent_to_hosts_import_only_one_another() -> None:
    """The programs run on a python3 with neither Workbench nor any other package."""
    found = [value for value in vars(remote_programs).values() if isinstance(value, PythonProgram)]
    assert len(found) >= 4
    for program in found:
        for module in program.modules:
            path = ROOT / "workbench" / f"{module.replace('.', '/')}.py"
            names = imported(path)
            assert names - {"pynvml", "workbench"} <= set(sys.stdlib_module_names) | {"__future__"}
            ours = re.findall(
                r"^(?:from|import) (workbench\S*) import ([\w, ]+)",
                path.read_text(),
                re.MULTILINE,
            )
            sent = {f"workbench.{name}" for name in program.modules}
            for package, members in ours:
                assert (
                    package in sent
                    or {f"{package}.{member.split()[0]}" for member in members.split(", ")} <= sent
                )


def imported(path: Path) -> set[str]:
    """Return the top-level names of every import in the file, deferred ones too, without those for
    type checkers."""
    return set(parsed()[path].imports)


@dataclass(frozen=True)
class Parsed:
    imports: list[str]


@cache
def parsed() -> dict[Path, Parsed]:
    """Return the imports of each source file. A process of its own parses:
    `ast.parse` of Python 3.11 may raise SystemError in a process that has hit a recursion limit
    before (cpython issue 106905)."""
    script = Path(__file__).with_name("parse_sources.py")
    done = subprocess.run(
        [sys.executable, str(script), *map(str, SOURCES)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return {Path(path): Parsed(**found) for path, found in json.loads(done.stdout).items()}
