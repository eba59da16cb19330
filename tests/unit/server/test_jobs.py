"""The user's jobs, as squeue and qstat list them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from support.fake_host import FakeHost
from support.pbs_programs import Server, install, shown

from workbench.model.errors import HostError, InputError
from workbench.model.job import Job
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.jobs import parse_scheduler_duration_s, read_jobs


def listed(answer: str, *runs: ServerStatus) -> list[Job]:
    return list(asyncio.run(read_jobs(FakeHost(lambda call: answer), runs)))


def test_jobs_of_slurm_have_their_run_reason_and_time_left() -> None:
    run = ServerStatus(
        "20261121-031502-vllm-3f2a", "vllm", ServerState.READY, "login", run_as="slurm", handle="7"
    )
    waiting, ours = listed(
        "slurm\n8|PENDING|gpu|n/a|gres:gpu:2|1-00:00:00|Resources|a|b\n7|RUNNING|gpu|c01|gres:gpu:4|7:59:30|None|wb\n",
        run,
    )
    assert waiting == Job("slurm", "8", "a|b", "PENDING", "gpu", "Resources", None, "gpu:2", 86400)
    assert (ours.run_id, ours.node, ours.left_s, ours.reason) == (run.run_id, "c01", 28770, None)


@pytest.mark.parametrize("torque", [False, True])
def test_jobs_of_pbs_are_read_from_long_values_too(tmp_path: Path, torque: bool) -> None:
    pbs = install(tmp_path)
    pbs.set("torque", torque)
    resources = {"nodes": "1:gpus=2"} if torque else {"select": "1:ngpus=2"}
    job = {
        "id": "3.pbs01",
        "name": "wb",
        "state": "Q",
        "owner": "me",
        "queue": "q",
        "out": "/o" * 80,
        "workdir": "/w",
    }
    text = shown(Server(tmp_path), {**job, "resources": {**resources, "walltime": "01:00:00"}})
    (found,) = listed(f"pbs\n{text}")
    assert (found.id, found.state, found.queue, found.gpus, found.left_s) == (
        "3.pbs01",
        "queued",
        "q",
        "gpu:2",
        3600,
    )
    assert found.reason == "Not Running: Insufficient amount of resource: ngpus (R: 2 A: 0 T: 4)"


def test_a_host_without_a_scheduler_and_one_whose_scheduler_is_silent() -> None:
    with pytest.raises(InputError, match="neither Slurm nor PBS"):
        listed("none\n")
    with pytest.raises(HostError, match="does not answer: slurm_load_jobs error"):
        listed("slurm\nrefused slurm_load_jobs error: Unable to contact slurm controller\n")


def test_the_programs_are_asked_for_the_jobs_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.hosts.local import LocalHost

    pbs = install(tmp_path)
    pbs.set("hold")
    for name in ("id", "sed"):
        (pbs.bin / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(pbs.bin))
    (pbs.bin / "sh").symlink_to("/bin/sh")
    assert asyncio.run(read_jobs(LocalHost(), ())) == ()
    (tmp_path / "job.sh").touch()
    subprocess.run(
        [str(pbs.bin / "qsub"), "-N", "mine", "job.sh"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (job,) = asyncio.run(read_jobs(LocalHost(), ()))
    assert (job.id, job.name, job.state, job.left_s) == ("1.pbs01", "mine", "queued", None)
    subprocess.run([str(pbs.bin / "qdel"), job.id], check=True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1-02:03:04", 93784), ("59", 59), ("NOT_SET", None), (None, None)]
)
def test_durations(text: str | None, seconds: int | None) -> None:
    assert parse_scheduler_duration_s(text) == seconds


def test_every_job_is_listed_and_no_text_of_a_job_tears_the_table() -> None:
    lines = [
        f"{n}|RUNNING|gpu|c01|gres:gpu:4|{'9' * 5000 if n == 7 else '1:00'}|None|a\tb\x1b[31m"
        for n in range(900)
    ]
    found = listed("slurm\n" + "\n".join(lines) + "\n")
    assert [job.id for job in found] == [str(n) for n in range(900)]
    assert {job.name for job in found} == {"a b"}
    assert found[7].left_s is None
