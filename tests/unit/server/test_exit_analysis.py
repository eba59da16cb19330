"""A server whose part was killed says which part ended first, and what the kernel says about it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from support.fake_runs import Make, ready
from support.serving import supervised
from support.userland import UserlandHost

from workbench import engines
from workbench.model.findings import Finding
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.exit_analysis import EndedProcess, find_first_ended_process
from workbench.server.supervisor import ServerEvent, Supervisor

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def in_log(name: str, engine: str) -> EndedProcess | None:
    return find_first_ended_process(
        (LOGS / f"{name}.txt").read_text("utf-8").split("\n"), engines.get_engine(engine)
    )


@pytest.mark.parametrize(
    ("log", "engine", "title", "signal_name", "last_line"),
    [
        ("vllm-engine-core-killed", "vllm", "EngineCore (pid 12754)", None, "Starting"),
        ("vllm-worker-killed", "vllm", "Worker (pid 21632)", "SIGKILL", "Model loading took"),
        ("sglang-scheduler-killed", "sglang", "scheduler_0 (pid 13802)", "SIGKILL", None),
        ("sglang-detokenizer-killed", "sglang", "detokenizer (pid 19473)", "SIGKILL", None),
    ],
)
def test_the_part_that_was_killed_is_named_in_logs_of_real_engines(
    log: str, engine: str, title: str, signal_name: str | None, last_line: str | None
) -> None:
    part = in_log(log, engine)
    assert part is not None
    assert (part.title, part.signal_name) == (title, signal_name)
    assert (part.last_line is None) == (last_line is None)


@pytest.mark.parametrize(
    ("line", "engine", "expected"),
    [
        (
            "ERROR 05-21 01:02:03 [core_client.py:562] Engine core proc EngineCore_DP1 died "
            "unexpectedly, shutting down client.",
            "vllm",
            ("EngineCore_DP1", None),
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
            "proc(s): {'EngineCore_DP0': -11}",
            "vllm",
            ("EngineCore_DP0", "SIGSEGV"),
        ),
        (
            "[2025-09-13 09:09:15] Rank 3 scheduler is dead. Please check if there are relevant "
            "logs.",
            "sglang",
            ("Rank 3 scheduler", None),
        ),
    ],
)
def test_older_versions_report_a_part_in_other_words(
    line: str, engine: str, expected: tuple[str, str | None]
) -> None:
    part = find_first_ended_process([line], engines.get_engine(engine))
    assert part is not None
    assert (part.name, part.signal_name) == expected


def test_a_part_that_ended_with_an_exception_is_not_a_killed_one() -> None:
    line = "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': 1}"
    assert find_first_ended_process([line], engines.get_engine("vllm")) is None


def test_of_several_parts_of_one_name_none_is_guessed() -> None:
    lines = [
        "(Worker_TP0 pid=70) INFO 11-21 00:00:00 [x.py:1] hello",
        "(Worker_TP1 pid=71) INFO 11-21 00:00:00 [x.py:1] hello",
    ]
    one = "ERROR 11-21 [m.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    named = find_first_ended_process([*lines, one], engines.get_engine("vllm"))
    assert named is not None and (named.name, named.pid) == ("Worker_TP1", 71)
    core = "WARNING [core_client.py:817] MPClient: engine core exited unexpectedly; starting"
    cores = [line.replace("Worker_TP", "EngineCore_DP") for line in lines]
    unnamed = find_first_ended_process([*cores, core], engines.get_engine("vllm"))
    assert unnamed is not None and (unnamed.name, unnamed.pid) == ("engine core", None)


def kernel_log(host_dir: Path, text: str | None) -> UserlandHost:
    """Return a host whose `dmesg` prints `text`, or refuses if that is None."""
    host_dir.mkdir()
    dmesg = host_dir / "dmesg"
    refusal = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
    dmesg.write_text(f"#!/bin/sh\n{refusal if text is None else f'cat {host_dir}/kernel'}\n")
    dmesg.chmod(0o755)
    (host_dir / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    (host_dir / "journalctl").chmod(0o755)
    (host_dir / "kernel").write_text(text or "")
    return UserlandHost(f"{host_dir}:{os.environ['PATH']}")


async def core_of(supervisor: Supervisor, status: ServerStatus) -> int:
    async with asyncio.timeout(30.0):  # a server may be READY before its last lines are read
        while True:
            await supervisor.load_log(status.run_id)
            lines = "\n".join(supervisor.log(status.run_id).lines())
            if found := re.search(r"EngineCore pid=(\d+)", lines):
                return int(found[1])
            await asyncio.sleep(0.02)


def killed(tmp_path: Path, make: Make, kernel: str | None) -> tuple[str, Finding, ServerState]:
    """Return (reason, first finding, state) of a server whose engine core was killed. `kernel` is
    the kernel's log, with {pid} for the process id of the core."""
    found: list[tuple[str, Finding, ServerState]] = []
    host = kernel_log(tmp_path / "kernel-bin", kernel)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("part"))
        pid = await core_of(supervisor, status)
        if kernel is not None:
            (tmp_path / "kernel-bin" / "kernel").write_text(kernel.replace("{pid}", str(pid)))
        os.kill(pid, signal.SIGKILL)
        ended = await supervisor.wait(status.run_id, lambda s: not s.alive, 20)
        assert ended.reason is not None
        text = ended.reason.replace(str(pid), "PID")
        found.append((text, ended.findings[0], ended.state))

    supervised(scenario, host)
    return found[0]


def test_an_engine_core_that_the_kernel_killed_for_memory(tmp_path: Path, make: Make) -> None:
    lines = (
        "[    1.300000] Out of memory: Killed process {pid} (an earlier one) total-vm:1kB\n"
        "[9999999.1] oom-kill:constraint=CONSTRAINT_NONE,task=python3,pid={pid},uid=0\n"
        "[9999999.2] Out of memory: Killed process {pid} (VLLM::EngineCor) total-vm:9kB\n"
        "[9999999.3] Out of memory: Killed process 1 (systemd) total-vm:7kB\n"
    )
    reason, finding, state = killed(tmp_path, make, lines)
    assert state is ServerState.CRASHED
    assert reason == "EngineCore (pid PID) ended first: the kernel killed it for lack of memory"
    assert finding.code == "log.host-oom"
    assert "(VLLM::EngineCor) total-vm:9kB" in finding.text
    assert "the last line of EngineCore: “Starting to load model fake...”" in finding.text
    assert finding.fix and finding.line


def test_an_engine_core_that_crashed_in_a_library(tmp_path: Path, make: Make) -> None:
    line = "[9999999.2] python3[{pid}]: segfault at 0 ip 00007f error 4 in libcuda.so.1[7f+1]\n"
    reason, finding, _ = killed(tmp_path, make, line)
    assert reason.startswith("EngineCore (pid PID) ended first: ")
    assert finding.code == "log.segfault" and "libcuda.so.1" in finding.text


def test_without_a_word_of_the_kernel_the_next_step_names_the_other_programs(
    tmp_path: Path, make: Make
) -> None:
    reason, finding, _ = killed(tmp_path, make, "[1.0] nothing of interest\n")
    assert "does not log which signal" in reason
    assert finding.fix is not None and "systemd-oomd" in finding.fix


def test_a_user_who_may_not_read_the_kernels_log_gets_the_command(
    tmp_path: Path, make: Make
) -> None:
    _, finding, _ = killed(tmp_path, make, None)
    assert "cannot read the kernel's log" in finding.text
    assert finding.fix is not None and "sudo dmesg -T" in finding.fix


CGROUP = Path(
    "/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup"
)


def own_group() -> str:
    """Return the path of this process's control group that limits memory."""
    kinds = "memory" if CGROUP.name == "memory" else ""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    words = [line.split(":", 2) for line in lines]
    return next((path for _, kind, path in words if kind == kinds), "/")


@pytest.mark.slow
def test_a_real_lack_of_memory_in_a_control_group_is_counted(tmp_path: Path, make: Make) -> None:
    group = CGROUP / f"workbench-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if CGROUP.name == "memory" else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text("200M")
    except OSError as error:
        pytest.skip(f"this user may not limit memory here: {error}")
    before = CGROUP / own_group().lstrip("/") / "cgroup.procs"
    host = kernel_log(tmp_path / "kernel-bin", None)  # the count needs no right to read that log

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("part"))
        pid = await core_of(supervisor, status)
        # the server stays in the group; the kernel may not choose the tests for their size
        before.write_text(str(os.getpid()))
        os.kill(pid, signal.SIGUSR1)
        ended = await supervisor.wait(status.run_id, lambda s: not s.alive, 60)
        assert ended.reason is not None
        assert ended.reason.endswith("ended first: the kernel killed it for lack of memory")
        found = " ".join(finding.text for finding in ended.findings)
        assert "the kernel killed a process of the run's control group" in found

    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        supervised(scenario, host)
    finally:
        before.write_text(str(os.getpid()))
        group.rmdir()
