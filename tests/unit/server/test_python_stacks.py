"""py-spy says where a start that hangs stands; if it cannot, the finding says what is missing."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.hosts.local import LocalHost
from workbench.model.findings import Finding, Level
from workbench.server import python_stacks
from workbench.server.python_stacks import PythonStack, Stacks, add_python_stacks, parse_stacks

HANGS = Finding(Level.WARN, "start.spinning", "spinning", fix="stop it", evidence="GPU 0: 96 %")
DUMP = """Process 7: VLLM::Worker_TP0 --api-key secret
Python v3.12.3 (/usr/bin/python3.12)

Thread 9 (idle): "Thread-1"
    wait (threading.py:355)
Thread 7 (active): "MainThread"
    _all_reduce_in_place (vllm/distributed/parallel_state.py:514)
    forward (vllm/model_executor/models/llama.py:90)
"""


def test_the_main_thread_of_each_process_is_read() -> None:
    found = parse_stacks(f"scope 0\npid 7\n{DUMP}pid 8\n{DUMP.replace('(active)', '(active+gil)')}")
    assert [(one.pid, one.state) for one in found.stacks] == [(7, "active"), (8, "active+gil")]
    assert found.stacks[0].frames[0].startswith("_all_reduce_in_place (vllm/distributed/")
    told = add_python_stacks(HANGS, found)
    assert told.text == "spinning. py-spy finds them in the communication between the ranks"
    assert "7 active: _all_reduce_in_place" in (told.evidence or "") and told.fix == "stop it"
    assert "secret" not in str(told)


@pytest.mark.parametrize(
    ("output", "step"),
    [
        ("absent\n", "pip install py-spy"),
        ("scope 1\npid 7\nPermission Denied: Try running again\n", "ptrace_scope is 1"),
        ("scope \npid 7\nError: Permission denied (os error 13)\n", "sudo py-spy dump --pid 7"),
    ],
)
def test_what_is_missing_is_said(output: str, step: str) -> None:
    told = add_python_stacks(HANGS, parse_stacks(output))
    assert step in (told.fix or "") and told.fix != HANGS.fix and told.text == HANGS.text


@pytest.mark.parametrize(
    "output", ["", "scope 0\n", "scope 0\npid 7\nError: no Python\n", "pid x\n"]
)
def test_an_answer_without_a_stack_changes_nothing(output: str) -> None:
    assert add_python_stacks(HANGS, parse_stacks(output)) == HANGS
    assert add_python_stacks(HANGS, None) == HANGS


def test_a_long_or_strange_stack_stays_short() -> None:
    frames = "\n".join(f"    f{'x' * 500} (\x1b[31m{n}.py:1)" for n in range(99))
    found = parse_stacks(f'scope 0\npid 7\nThread 7 (active): "MainThread"\n{frames}\n')
    assert len(found.stacks[0].frames) <= 4 and len(found.stacks[0].text) <= 160
    assert found.stacks[0].text.isprintable()


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_a_real_process_that_spins_is_read(tmp_path: Path) -> None:
    program = tmp_path / "spin.py"
    program.write_text(
        "def spin():\n    print('spins', flush=True)\n    while True: pass\nspin()\n"
    )
    child = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"spins\n"
        found = asyncio.run(python_stacks.read_stacks(LocalHost(), sys.executable, [child.pid]))
    finally:
        child.kill()
        child.communicate()
    assert found.installed and not found.refused
    assert [(one.pid, one.frames[0]) for one in found.stacks] == [(child.pid, "spin (spin.py:3)")]


def test_a_host_without_py_spy_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    if shutil.which("py-spy") is None:
        found = asyncio.run(python_stacks.read_stacks(LocalHost(), str(tmp_path / "vllm"), [1]))
        assert found == Stacks(installed=False)


def test_the_program_beside_the_engine_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    own = asyncio.run(_ask(tmp_path))
    assert own.stacks == (PythonStack(1, "active", ("f (lora/x.py:1)",)),) or shutil.which("py-spy")


async def _ask(folder: Path) -> Stacks:
    spy = folder / "py-spy"
    spy.write_text("#!/bin/sh\nprintf 'Thread 1 (active)\\n    f (lora/x.py:1)\\n'\n")
    spy.chmod(0o755)
    return await python_stacks.read_stacks(LocalHost(), str(folder / "vllm"), [1])
