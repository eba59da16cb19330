"""What `doctor` reads from a host: real processes, ports and Pythons, and answers from hosts that
lie."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.procs import eventually

from workbench.doctor import engine_packages, host_values, multi_gpu
from workbench.doctor.engine_packages import EnginePackages
from workbench.doctor.examination import Examination, TimedParts
from workbench.hosts.base import Host, HostFacts, HostUnreachable
from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError
from workbench.session.hosts.doctor import HostReport

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda c: st.lists(c) | st.dictionaries(st.text(), c),
)


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def ask(python: str, timeout_s: float = 10.0) -> EnginePackages:
    return asyncio.run(
        engine_packages.ask_engine_python(LocalHost(), "vllm", python, ("pytest",), timeout_s)
    )


def test_the_values_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toolkit = tmp_path / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    program(
        toolkit / "bin" / "nvcc",
        "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n",
    )
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "yet"))
    worker = subprocess.Popen(["VLLM::EngineCore", "60"], executable="/bin/sleep")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            seen = asyncio.run(host_values.read_host_values(LocalHost(), [port, 1], 30))
    finally:
        worker.kill()
        worker.wait()
    assert seen.ports == {port: os.getpid()}
    assert (seen.nvcc, seen.nvcc_version, seen.cuda_home_missing) == (
        f"{toolkit}/bin/nvcc",
        "12.8",
        False,
    )
    assert seen.files_hard and seen.memory_available_kib and seen.memlock_kib is not None
    assert seen.disk_free_kib and seen.hub == f"{tmp_path}/not/yet/hub"
    mine = next(w for w in seen.workers if w.pid == worker.pid)
    assert (mine.parent, mine.name) == (os.getpid(), "VLLM::EngineCore 60")


def test_what_is_unknown_about_a_host_is_null_in_json() -> None:
    paths = multi_gpu.parse_gpu_paths({"gpus": [{"index": 0}]}, (), None)
    seen = Examination(HostFacts("box", "local"), host_values.parse_host_values(""))
    document = HostReport(seen, (), can_change_gpus=False, paths=paths).as_json()
    assert "" not in document["values"].values()
    assert document["gpu_paths"]["gpus"][0]["iommu"] is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "{}/xdg"}, "{}/xdg/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{}/xdg", "HF_HOME": "{}/hf"}, "{}/hf/hub"),
        ({"HF_HOME": "{}/hf", "HF_HUB_CACHE": "{}/models"}, "{}/models"),
        ({"HOME": "{}"}, "{}/.cache/huggingface/hub"),
    ],
)
def test_the_hub_cache_is_where_the_hub_libraries_look(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    seen = asyncio.run(host_values.read_host_values(LocalHost(), [], 30))
    assert seen.hub == expected.format(tmp_path)


def test_a_toolkit_that_prints_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "nvcc", "#!/bin/sh\nexec yes 'release 12.8, V1'\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    seen = asyncio.run(host_values.read_host_values(LocalHost(), [], 30))
    assert seen.nvcc and seen.files_hard


def test_the_packages_of_a_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "__version__ = '2.7.1+cu128'\ncuda: Optional[str] = '12.8'\n"
    )
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch-2.7.1+cu128.dist-info").mkdir()
    (tmp_path / "torch-2.7.1+cu128.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.7.1+cu128\n"
        'Requires-Dist: nvidia-nccl-cu12==2.26.2; platform_system == "Linux"\n'
        'Requires-Dist: triton==3.3.1; extra == "more"\nRequires-Dist: numpy>=1\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    program(tmp_path / "json.py", "raise SystemExit('a file of the current directory')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    for name in ("torch", "torch-2.7.1+cu128.dist-info"):
        (tmp_path / name).rename(tmp_path / "site" / name)
    found = ask(sys.executable)
    assert found.problem is None and found.python_version == sys.version.split()[0]
    assert found.versions == {
        "pytest": importlib.metadata.version("pytest"),
        "torch": "2.7.1+cu128",
    }
    assert (found.needs, found.cuda) == ({"torch": {"nvidia-nccl-cu12": ("2.26.2",)}}, "12.8")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exec yes", "does not answer as a Python does"),
        ("exec sleep 600", "did not answer within 0.5 s"),
        ("echo '[1, 2'", "does not answer as a Python does"),
        ("exit 3", "does not answer as a Python does"),
    ],
)
def test_a_python_that_is_none(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in (
        ask(program(tmp_path / "python3", f"#!/bin/sh\n{text}\n"), 0.5).problem or ""
    )


@settings(max_examples=30)
@given(
    JSON | st.fixed_dictionaries({"packages": JSON, "needs": JSON, "cuda": JSON, "python": JSON})
)
def test_any_answer_is_read(answer: object) -> None:
    found = engine_packages.parse_packages("vllm", "python3", json.dumps(answer))
    assert all(isinstance(text, str) for text in found.versions.values())


KEYS = st.sampled_from(
    ["port", "worker", "idle", "files_hard", "own", "disk", "shared_memory", "stack", "nvcc"]
)


@given(st.lists(st.tuples(KEYS, st.text() | st.from_regex(r"[0-9A-F ]{0,30}"))))
def test_any_output_of_the_script_is_read(lines: list[tuple[str, str]]) -> None:
    seen = host_values.parse_host_values("\n".join(f"{key}={value}" for key, value in lines))
    assert "\x1b" not in f"{seen}"


def test_a_part_that_hangs_or_fails_is_named() -> None:
    async def fail() -> int:
        raise HostError("no such thing", host="box")

    async def work() -> TimedParts:
        parts = TimedParts()
        assert await parts.read_part_within_limit("the clock", asyncio.sleep(60, 1), 0.01, 0) == 0
        assert await parts.read_part_within_limit("the disk", fail(), 5, 7) == 7
        return parts

    found = asyncio.run(work()).problems
    assert [f.code for f in found] == ["doctor.slow", "doctor.unread"] and all(f.fix for f in found)
    assert "the clock" in found[0].text and "the disk" in found[1].text


def test_a_lost_host_ends_the_examination() -> None:
    async def lose() -> Host:
        raise HostUnreachable("gone", host="box")

    with pytest.raises(HostUnreachable):
        asyncio.run(TimedParts().read_part_within_limit("the disk", lose(), 5, LocalHost()))


ESCAPES = r"release 1=2 \033]52;c;cHduZWQ=\007\033[2J x"
HOSTILE = {
    "print without end": f"exec yes \"$(printf '{ESCAPES}')\"",
    "print 1 GB": f"printf '{ESCAPES}'; exec head -c 1000000000 /dev/zero",
    "print escapes": f"printf '{ESCAPES}\\n%s\\n' \"$*\"; printf '{ESCAPES}' >&2; exit 3",
    "never end": "trap '' TERM INT HUP; printf x; while :; do sleep 1; done",
    "leave a child": "(trap '' TERM HUP; while :; do sleep 1; done) & echo 1.2.3",
}
NAMES = (
    "nvidia-smi",
    "python3",
    "nvcc",
    "vllm",
    "llama-server",
    "df",
    "systemd-detect-virt",
    "sudo",
)


def processes_in(directory: Path) -> list[str]:
    """Return the command lines of living processes that run a program of `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            found += [words.decode("utf-8", "replace")] if os.fsencode(directory) in words else []
    return found


MEASURED = """
import pathlib, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1]).write_text(str(peak_kib))
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind == "never end" else ()) for kind in HOSTILE],
)
def test_a_host_whose_programs_are_hostile(tmp_path: Path, kind: str) -> None:
    """The whole command: it ends, names what is broken, nothing of the output reaches the terminal,
    no process is left, and it needs no more memory than 64 MiB of one program's output."""
    programs = tmp_path / "programs"
    programs.mkdir()
    # they are asked at each connection
    spared = ("python3", "systemd-detect-virt") if kind == "leave a child" else ()
    for name in (name for name in NAMES if name not in spared):
        program(programs / name, f"#!/bin/sh\n{HOSTILE[kind]}\n")
    env = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    # Linux counts the memory of the process that forks as the child's peak, and this test process
    # is large, so a small process of its own starts the command and reads its peak
    argv = [sys.executable, "-c", MEASURED, str(tmp_path / "peak_kib"), sys.executable]
    argv += ["-m", "workbench", "doctor"]
    process = subprocess.run(argv, env=env, capture_output=True, text=True)
    out, err = process.stdout, process.stderr
    assert process.returncode == 0, err
    assert not {"\x1b", "\x07"} & set(out + err) and "Traceback" not in err and len(out) < 40_000
    assert "vllm" in out and "llama" in out  # every engine is shown, or named in a finding
    assert int((tmp_path / "peak_kib").read_text()) < 500_000
    if kind == "print without end":
        assert (
            "llama-server is on that host: it prints without end"
        ) in out and "does not print its version" in out
    eventually(lambda: processes_in(programs) == [], "the end of all programs", 20)
