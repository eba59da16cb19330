"""Impossible numbers in what the scripts on a host print: no reader raises another error than one
for people. Each script is answered with its usual output, in which one number is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.fake_host import FakeHost

from workbench.engines import registry
from workbench.gpu.settings.current_values import read_core_settings
from workbench.hosts import detached_process, shell_scripts
from workbench.hosts.base import Completed, Host
from workbench.model.errors import WorkbenchError
from workbench.model.plan import Command, LaunchPlan
from workbench.server import (
    exit_analysis,
    file_limit,
    log_lines,
    model_fingerprint,
    old_runs,
)
from workbench.server.running_server_secrets import api_key_of
from workbench.server.start_lines import StartLines

ODD = ("9" * 5000, "1e308", "1e999", "-1", "nan", "Infinity", str(2**64), "1" + "0" * 400, "", "²")
RUN = detached_process.DetachedProcess(7, 99, 7)


async def _search(host: Host) -> object:
    return await log_lines.search_log(host, "/log", "x", limit=3)


READERS: dict[str, tuple[str, Callable[[Host], Awaitable[Any]]]] = {
    "cores": ("/sys\nstate 0 {} 1\ngovernor {} powersave performance\n", read_core_settings),
    "disk": ("head\n/dev/x 9 9 {} 1% /\n", lambda host: old_runs.check_disk_space(host, "/run")),
    "existing": ("7 {} 8", lambda host: detached_process.find_existing_pids(host, [7, 8])),
    "log": ("{}:a line\n12:another\n", _search),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("odd", ODD)
def test_no_number_that_a_script_prints_is_a_defect(name: str, odd: str) -> None:
    text, read = READERS[name]
    host = FakeHost(lambda call: Completed(call.argv, 0, text.replace("{}", odd).encode(), b""))
    try:
        asyncio.run(read(host))
    except WorkbenchError as refused:
        assert len(str(refused)) < 6000


@pytest.mark.parametrize("odd", ODD)
def test_no_number_of_a_start_script_is_a_defect(odd: str) -> None:
    for at in range(3):
        words = ["7", "99", "7"]
        words[at] = odd
        said = Completed(("sh",), 0, f"ok {' '.join(words)}".encode(), b"")
        with pytest.raises(WorkbenchError):
            detached_process._parse_started_process(said, FakeHost(), "/run", ["x"], None)
    found = shell_scripts.split_stderr_and_exit_code(f"\n{shell_scripts.INSIDE} exit {odd}\n")[1]
    assert found is None or 0 <= found < 10**18
    assert (
        shell_scripts.parse_pid_after_mark(f"{shell_scripts.MARK} {odd}") is None or odd.isdecimal()
    )
    stat = f"7 (x) S {' '.join('1' * 18)} {odd}".encode()
    assert not asyncio.run(
        detached_process.is_process_alive(FakeHost(files={"/proc/7/stat": stat}), RUN)
    )


@pytest.mark.parametrize("odd", ODD)
def test_no_number_of_a_file_on_the_host_is_a_defect(odd: str) -> None:
    limits = f"Max open files            {odd}   {odd}   files\n".encode()
    found = asyncio.run(
        file_limit.read_process_file_limit(FakeHost(files={"/proc/7/limits": limits}), 7)
    )
    assert found is None or found.soft < 10**18
    plan = LaunchPlan("vllm", "m")
    said = f"file={odd} {odd} abc name\n"
    host = FakeHost(lambda call: Completed(call.argv, 0, said.encode(), b""))
    known = asyncio.run(
        model_fingerprint.read_model_fingerprint(host, plan, {}, started_unix_s=1.7e9)
    )
    assert len(known.basis) < 6000


@pytest.mark.parametrize("odd", [*ODD[:1], ODD[7], "4300"])
def test_no_number_in_a_log_is_a_defect(odd: str) -> None:
    vllm, tabby = registry.get_engine("vllm"), registry.get_engine("tabbyapi")
    lines = [
        f"(EngineCore pid={odd}) ERROR last words",
        f"Worker proc EngineCore died unexpectedly (exit code: {odd})",
    ]
    part = exit_analysis.find_first_ended_process(lines, vllm)
    assert part is not None and part.name == "EngineCore"
    search = StartLines(tabby, None)
    search.update_if_start_fact_found(f"Port 5000 is currently in use. Switching to {odd}")
    assert search.port is None or 0 < search.port < 65_536
    assert not exit_analysis._is_kernel_line_about_run(
        f"Killed process {odd} (python)", {7}, None, 0.0
    )
    assert not exit_analysis._is_kernel_line_about_run(
        f"Killed process {odd} (python)", {None}, None, 0.0
    )


def test_a_process_without_a_command_line_has_no_key() -> None:
    """A process that has just ended shows none."""
    assert api_key_of(Command((), {}), registry.get_engine("vllm")) is None
    assert api_key_of(Command(("x", "--api-key", "k"), {}), registry.get_engine("vllm")) == "k"
    assert api_key_of(Command(("x", "--api-key"), {}), registry.get_engine("vllm")) == ""
