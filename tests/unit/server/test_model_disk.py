"""A start that has too little disk space is warned of, whatever it needs the space for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from workbench.hosts.local import LocalHost
from workbench.model.findings import Finding, Level
from workbench.model.plan import Command, LaunchPlan, ModelFacts
from workbench.server.model_disk import find_disk_problem

GIB_KIB = 1 << 20
MODEL = "org/Big-8B"
SIZED = ModelFacts(MODEL, weight_bytes=30 * 2.0**30)


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `df` before the machine's own, which reports the KiB in this file."""
    program, answer = tmp_path / "bin" / "df", tmp_path / "free"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho head\necho "/dev/x 9 9 $(cat {answer}) 1% $2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return answer


def problem(
    home: Path, model: str = MODEL, engine: str = "vllm", facts: ModelFacts | None = None
) -> Finding | None:
    plan = LaunchPlan(engine, model, facts)
    command = Command(("vllm", "serve", model), env={"HF_HOME": str(home / "hf")}, port=8000)
    return asyncio.run(find_disk_problem(LocalHost(), plan, command))


def cached(home: Path, *, whole: bool = True) -> None:
    folder = home / "hf" / "hub" / "models--org--Big-8B"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "blobs").mkdir()
    if not whole:
        (folder / "blobs" / "1234.incomplete").touch()


@pytest.mark.parametrize(
    ("facts", "gib", "said"),
    [
        (SIZED, 29, "its weights take about 30 GiB"),
        (SIZED, 31, None),
        (None, 19, "its size is unknown"),
        (None, 21, None),
    ],
)
def test_a_model_that_is_downloaded_needs_its_size(
    tmp_path: Path, free: Path, facts: ModelFacts | None, gib: int, said: str | None
) -> None:
    free.write_text(str(gib * GIB_KIB))
    found = problem(tmp_path, facts=facts)
    if said is None:
        assert found is None
    else:
        assert found is not None and (found.code, found.level) == ("host.disk", Level.WARN)
        assert said in found.text and f"{gib}.0 GiB are left" in found.text
        assert f"{tmp_path}/hf/hub" in found.text, "HF_HOME of the plan names the place"


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_is_there_needs_only_a_little(tmp_path: Path, free: Path, whole: bool) -> None:
    cached(tmp_path, whole=whole)
    free.write_text(str(5 * GIB_KIB))
    assert (problem(tmp_path, facts=SIZED) is None) == whole
    free.write_text(str(GIB_KIB // 2))
    found = problem(tmp_path, facts=SIZED)
    assert found is not None and ("compiled kernels" in found.text) == whole


@pytest.mark.parametrize(("model", "engine"), [("/models/x", "vllm"), ("x.gguf", "llamacpp")])
def test_a_model_in_files_is_not_downloaded(
    tmp_path: Path, free: Path, model: str, engine: str
) -> None:
    free.write_text(str(5 * GIB_KIB))
    assert problem(tmp_path, model, engine) is None


@pytest.mark.parametrize("answer", ["", "much", "-5"])
def test_a_disk_that_cannot_be_read_gives_no_warning(
    tmp_path: Path, free: Path, answer: str
) -> None:
    free.write_text(answer)
    assert problem(tmp_path) is None
