"""Programs for python3 on a host: sent once, kept by their hash, and never run if they are not what
was sent."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench.bench.workers import LOAD_CLIENT
from workbench.gpu import remote_programs
from workbench.gpu.pynvml_part import strip_unused_definitions
from workbench.gpu.remote_programs import (
    AGENT_PROGRAM,
    GUARD_PROGRAM,
    JOURNAL_PROGRAM,
    MEASUREMENT_LOCK_PROGRAM,
    TOPOLOGY_PROGRAM,
)
from workbench.hosts.local import LocalHost
from workbench.hosts.python_programs import (
    ASKED,
    FRAME,
    KEPT_MAX_BYTES,
    MISSING,
    TOO_OLD,
    PythonProgram,
)

READ = b'{"do": "read", "log": true}\n'


class FarHost(LocalHost):
    """This machine as another one: nothing is imported from here. Counts what is written to
    programs."""

    kind = "ssh"
    is_local = False

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    async def run(self, argv: Any, **options: Any) -> Any:
        self.sent.append(options.get("input") or b"")
        return await super().run(argv, **options)

    @property
    def frames(self) -> int:
        return sum(FRAME in data for data in self.sent)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(tmp_path / "register"))
    return tmp_path / "state" / "workbench" / "programs"


def read_journal(host: LocalHost, root: str = "/nowhere") -> Any:
    done = asyncio.run(JOURNAL_PROGRAM.run(host, {"root": root}, input=READ))
    assert done.returncode == 0, done.err
    return json.loads(done.out)


def test_a_program_is_sent_once_and_kept_for_its_user_only(folder: Path) -> None:
    host = FarHost()
    first, second = read_journal(host), read_journal(host)
    assert first == second and host.frames == 1
    kept = folder / JOURNAL_PROGRAM.digest
    assert [path.name for path in folder.iterdir()] == [JOURNAL_PROGRAM.digest]
    assert (
        stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    )


def test_two_that_bring_a_program_at_once_are_both_answered(folder: Path) -> None:
    """A new host: the later one found the program there, and read its sources as the request."""

    class Later(FarHost):
        async def run(self, argv: Any, **options: Any) -> Any:
            if FRAME in (options.get("input") or b""):
                assert (await JOURNAL_PROGRAM.run(FarHost(), {"root": "/nowhere"}, input=READ)).out
            return await super().run(argv, **options)

    host = Later()
    assert read_journal(host) == read_journal(host) and host.frames == 1


def changed(kept: Path, other: Path) -> None:
    kept.write_bytes(other.read_bytes()[:-1])


def of_others(kept: Path, other: Path) -> None:
    kept.write_bytes(other.read_bytes())
    kept.chmod(0o622)


def a_link(kept: Path, other: Path) -> None:
    kept.symlink_to(other)


def a_pipe(kept: Path, other: Path) -> None:
    os.mkfifo(kept)


def a_directory(kept: Path, other: Path) -> None:
    kept.mkdir()


@pytest.mark.parametrize("make", [changed, of_others, a_link, a_pipe, a_directory])
def test_a_changed_or_foreign_file_is_not_run(folder: Path, tmp_path: Path, make: Any) -> None:
    host = FarHost()
    answer = read_journal(host)
    kept, other = folder / JOURNAL_PROGRAM.digest, tmp_path / "other"
    kept.rename(other)
    make(kept, other)
    assert read_journal(host) == answer and host.frames == 2  # sent again


def test_a_file_of_another_user_is_not_run(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    host = FarHost()
    read_journal(host)
    os.chown(folder / JOURNAL_PROGRAM.digest, 12345, 12345)
    read_journal(host)
    assert host.frames == 2


def test_a_program_that_arrives_changed_is_not_run(folder: Path) -> None:
    frame = JOURNAL_PROGRAM.stdin_frame(False)
    other = FRAME + b"%08d" % (len(frame) - len(FRAME) - 9) + frame[len(FRAME) + 8 : -1]
    done = subprocess.run(
        JOURNAL_PROGRAM.argv(sys.executable, False, {}),
        input=other,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"the program arrived changed\n")
    assert not folder.exists()


def test_a_host_that_cannot_keep_it_gets_it_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("no directory")
    host = FarHost()
    assert read_journal(host) == read_journal(host)
    assert host.frames == 2


def test_a_full_disk_leaves_no_part_of_it(folder: Path) -> None:
    folder.mkdir(parents=True)
    # blocks of 512 bytes: 2 KB
    limited = ["sh", "-c", 'ulimit -f 4; trap "" XFSZ; exec "$@"', "sh"]
    argv = JOURNAL_PROGRAM.argv(sys.executable, False, {"root": "/nowhere"})
    done = subprocess.run(
        [*limited, *argv],
        input=JOURNAL_PROGRAM.stdin_frame(False) + READ,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []


def test_old_versions_go_when_a_new_one_comes(folder: Path) -> None:
    folder.mkdir(parents=True)
    # a file that Workbench did not write stays
    old, recent, foreign = "a" * 64, "b" * 64, "letter.txt"
    for name, age_days in ((old, 31), (f"{old}.77", 31), (recent, 29), (foreign, 99)):
        (folder / name).write_text("")
        then = (folder / name).stat().st_mtime - age_days * 86400
        os.utime(folder / name, (then, then))
    read_journal(FarHost())
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        (JOURNAL_PROGRAM.digest, recent, foreign)
    )


@pytest.mark.parametrize("how", ["a link", "a directory that others can write"])
def test_no_file_is_removed_from_a_directory_that_is_not_its_own(
    folder: Path, tmp_path: Path, how: str
) -> None:
    """Files of a model cache have names like those of kept programs."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    weights = blobs / ("0" * 64)
    weights.write_bytes(b"weights")
    os.utime(weights, (0, 0))
    folder.parent.mkdir(parents=True)
    if how == "a link":
        folder.symlink_to(blobs)
    else:
        blobs.rename(folder)
        folder.chmod(0o777)
    host = FarHost()
    read_journal(host)
    kept = folder / ("0" * 64)
    assert kept.read_bytes() == b"weights" and not (folder / JOURNAL_PROGRAM.digest).exists()


def test_a_large_file_is_no_kept_program(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    weights = folder / ("0" * 64)
    weights.write_bytes(bytes(KEPT_MAX_BYTES))
    os.utime(weights, (0, 0))
    read_journal(FarHost())
    assert weights.exists() and (folder / JOURNAL_PROGRAM.digest).exists()


def test_it_asks_for_what_it_lacks(folder: Path) -> None:
    argv = JOURNAL_PROGRAM.argv(sys.executable, False, {})
    done = subprocess.run(argv, input=READ, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (MISSING, ASKED + b"\n")


def test_what_was_written_before_it_asked_is_not_lost(folder: Path) -> None:
    """An order to the agent may come while it still waits for its sources."""

    async def main() -> tuple[dict[str, Any], list[bytes]]:
        stream = await remote_programs.MEASUREMENT_LOCK_PROGRAM.stream(
            FarHost(), {"what": "x", "machine": "m", "wait": False}
        )
        lines = []
        try:
            await stream.write(b"an order\n")
            async for line in stream.lines():
                lines.append(line)
                return json.loads(line), lines
        finally:
            await stream.close()
        raise AssertionError

    answer, lines = asyncio.run(main())
    assert answer.get("held") and ASKED not in lines


@pytest.mark.parametrize("version", ["3.7", "3.8", "3.10", "3.13"])
def test_other_versions_of_python(folder: Path, version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    if not found:
        pytest.skip(f"no Python {version} here (pyenv install {version})")
    argv = JOURNAL_PROGRAM.argv(str(found[0]), False, {"root": "/nowhere"})
    given = JOURNAL_PROGRAM.stdin_frame(False) + READ
    done = subprocess.run(argv, input=given, capture_output=True, timeout=20, check=False)
    assert done.returncode == (TOO_OLD if version == "3.7" else 0), done.stderr


def test_only_what_is_used_of_a_library_is_sent() -> None:
    source = (
        "# a licence\nimport os\n\nA = 1\nB = A + 1\n\ndef used():\n    return helper(B)\n\n"
        "@wraps\n# why\ndef helper(x):\n    return [\n        x,\n    ]\n\ndef unused():\n    "
        "return C\n\nC = 3\n"
        "class Unused:\n    pass\nNVML_ERROR_X = 7\nregister()\n"
    )
    part = strip_unused_definitions(source, "lib.used()")
    assert "def unused" not in part and "C = 3" not in part and "Unused" not in part
    for kept in (
        "# a licence",
        "import os",
        "A = 1",
        "B = A",
        "def used",
        "@wraps",
        "NVML_ERROR_X",
        "register()",
    ):
        assert kept in part
    compile(part, "part", "exec")


def test_the_agent_is_small_on_the_wire() -> None:
    """A host gets it once for each version: 1.6 s at 20 KB/s. MIG and the gate for numbers took 3
    KB, the table of readings 1.6 KB, and names that say what they return the last 0.4 KB."""
    assert len(remote_programs.AGENT_PROGRAM.stdin_frame(False)) < 32_500


def test_on_this_machine_no_source_is_packed() -> None:
    """Reading and compressing the sources takes 16 ms of each start of a screen or a command."""

    def library() -> dict[str, str]:
        raise AssertionError("the sources were read")

    program = replace(JOURNAL_PROGRAM, library=library)
    assert len(program.stdin_frame(is_local=True)) < 500 and program.argv("python3", True, {})


@pytest.mark.parametrize(
    "program",
    [
        AGENT_PROGRAM,
        GUARD_PROGRAM,
        JOURNAL_PROGRAM,
        MEASUREMENT_LOCK_PROGRAM,
        TOPOLOGY_PROGRAM,
        LOAD_CLIENT,
    ],
)
def test_every_module_of_a_program_can_be_read_by_its_oldest_python(program: PythonProgram) -> None:
    """The log of the guard was opened in a form that Python 3.8 cannot read."""
    root = Path(workbench.__file__).parent
    for name in program.modules:
        path = root / f"{name.replace('.', '/')}.py"
        ast.parse(path.read_text(), path.name, feature_version=program.least_python)
