"""Servers as jobs of a real Slurm with one node: the queue, the log, READY, benchmarks, other
Workbenches, the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import llama_server, tiny_gguf
from support.command_line import CommandLine
from support.slurm import ADDRESS, Slurm, slurm
from support.sshd import free_port, sshd, wait_for

PROFILE = ("--simulate", "four-pcie")
PRESET = ("vllm-qwen3-vl-2b-dp4", "--set", "data-parallel-size=2")
READY_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def command(tmp_path: Path, cluster: Slurm) -> Iterator[CommandLine]:
    """The commands on a simulated host with the cluster. At the end no job and no process may be
    left."""
    one = CommandLine(tmp_path, before=PROFILE, SLURM_CONF=cluster.conf)
    yield one
    one.stop_all()
    cluster.run("scancel", "--user=root")
    wait_for(lambda: cluster.jobs() == [], "the end of all jobs", 30)
    wait_for(lambda: one.left() == [], "the end of all processes", 20)


def options(**more: object) -> list[object]:
    port, run = free_port(), {"gpus": 2, **more}
    words: list[object] = ["--as", "slurm", "--set", "host=0.0.0.0", "--set", f"port={port}"]
    return [
        *words,
        *(word for name, value in run.items() for word in ("--run-option", f"{name}={value}")),
    ]


def start(command: CommandLine, **more: object) -> dict[str, Any]:
    return command.ok(
        "start", *PRESET, *options(**more), "--wait", "--timeout", READY_S, timeout_s=READY_S + 30
    )


def measured(command: CommandLine, run_id: str) -> dict[str, Any]:
    """Wait until the run is READY, and return the result of a small benchmark. A busy machine may
    make its client late, which only spoils the result (exit code 3)."""
    done = command(
        "bench", run_id, "--requests", 8, "--concurrency", 2, "--max-tokens", 8, "--warmup", 0
    )
    assert done.code in (0, 3) and done.document["requests_ok"] == 8, done
    return done.document


def status(command: CommandLine, run_id: str) -> dict[str, Any]:
    listed = command.ok("servers")["servers"]
    return next(run for run in listed if run["run_id"] == run_id)


def awaited(
    command: CommandLine,
    run_id: str,
    holds: Callable[[dict[str, Any]], bool],
    what: str,
    deadline_s: float = 60,
) -> dict[str, Any]:
    """Return the status of the run once `holds` is true of it."""
    end = time.monotonic() + deadline_s
    while True:
        run = status(command, run_id)
        if holds(run):
            return run
        assert time.monotonic() < end, f"{what}: {run}"


@pytest.mark.slow
def test_a_job_waits_runs_is_measured_and_is_cancelled(
    cluster: Slurm, command: CommandLine
) -> None:
    other = cluster.submit("--gres=gpu:3", "-J", "someone's")
    wait_for(lambda: f"{other} RUNNING" in cluster.jobs(), "the other job", 20)
    run = command.ok("start", *PRESET, "--env", "VLLM_API_KEY=sk-job", *options(walltime="1:00:00"))
    waiting = awaited(
        command, run["run_id"], lambda r: "Resources" in (r["launcher_state"] or ""), "the queue"
    )
    assert (waiting["state"], waiting["node"], waiting["ends_unix_s"]) == ("starting", None, None)
    assert waiting["phase"] == waiting["launcher_state"] == "PENDING (Resources)"
    listed = {job["id"]: job for job in command.ok("jobs")["jobs"]}
    assert (listed[other]["name"], listed[other]["run_id"], listed[other]["gpus"]) == (
        "someone's",
        None,
        "gpu:3",
    )
    ours = listed[waiting["handle"]]
    assert (ours["run_id"], ours["reason"], ours["left_s"]) == (run["run_id"], "Resources", 3600)

    cluster.run("scancel", other)
    absent = measured(command, run["run_id"])["absent"]
    assert absent["power_w"] == f"the server runs on node {ADDRESS}, whose GPUs are not read"
    ready = status(command, run["run_id"])
    assert (ready["node"], ready["url"]) == (ADDRESS, f"http://{ADDRESS}:{ready['port']}")
    assert 3500 < ready["ends_unix_s"] - time.time() <= 3600
    assert next(job for job in command.ok("jobs")["jobs"])["node"] == "c01"
    assert "SIMULATED" in command.ok("logs", run["run_id"])["lines"][0]
    job = cluster.run("scontrol", "-d", "show", "job", ready["handle"])
    assert "GRES=gpu:2" in job

    stopped = command.ok("stop", run["run_id"], timeout_s=60)
    assert (stopped["state"], cluster.jobs(), command.left()) == ("stopped", [], [])


@pytest.mark.slow
def test_a_plan_that_listens_on_loopback_is_refused_with_its_fix(
    cluster: Slurm, command: CommandLine
) -> None:
    done = command("start", *PRESET, "--as", "slurm")
    assert (
        done.code != 0
        and ("listen on 127.0.0.1 of its node only") in done.err
        and "host=0.0.0.0" in done.err
    )
    assert cluster.jobs() == [] and command.ok("servers")["servers"] == []


@pytest.mark.slow
def test_what_sbatch_refuses_is_the_reason_of_the_failure(
    cluster: Slurm, command: CommandLine
) -> None:
    done = command("start", *PRESET, *options(partition="nowhere"), "--wait", timeout_s=60)
    assert done.code == 1 and done.document["state"] == "failed"
    assert "invalid partition specified: nowhere" in done.document["reason"]


@pytest.mark.slow
@pytest.mark.long
def test_the_controller_is_restarted_while_the_server_answers(
    cluster: Slurm, command: CommandLine
) -> None:
    run = start(command)
    cluster.stop_controller()
    try:
        gone = awaited(
            command,
            run["run_id"],
            lambda r: "unknown" in (r["launcher_state"] or ""),
            "unknown",
            40,
        )
        assert "contact slurm controller" in gone["launcher_state"] and gone["state"] == "ready"
    finally:
        cluster.start_controller()
    back = awaited(
        command,
        run["run_id"],
        lambda r: r["launcher_state"] == "RUNNING",
        "the controller's return",
    )
    assert (back["state"], back["handle"], back["restarts"]) == ("ready", run["handle"], None)


@pytest.mark.slow
@pytest.mark.long
def test_a_preempted_job_is_requeued_and_ready_again(cluster: Slurm, command: CommandLine) -> None:
    run = start(command)
    urgent = cluster.submit("-p", "urgent", "--gres=gpu:4")
    again = awaited(
        command,
        run["run_id"],
        lambda r: "PENDING" in (r["launcher_state"] or ""),
        "the queue again",
    )
    assert (again["state"], again["node"]) == ("starting", None)
    cluster.run("scancel", urgent)
    # else it waits for two minutes
    cluster.run("scontrol", "update", f"jobid={run['handle']}", "StartTime=now")
    measured(command, run["run_id"])
    again = status(command, run["run_id"])
    assert (again["state"], again["restarts"], again["handle"]) == ("ready", 1, run["handle"])
    assert any(finding["code"] == "run.restarted" for finding in again["findings"])


@pytest.mark.long
@pytest.mark.slow
def test_a_job_cancelled_from_outside_is_explained(cluster: Slurm, command: CommandLine) -> None:
    run = start(command)
    cluster.run("scancel", run["handle"])
    ended = awaited(command, run["run_id"], lambda r: r["state"] == "crashed", "the end")
    assert f"job {run['handle']} ended: CANCELLED" in "\n".join(
        command.ok("logs", run["run_id"])["lines"]
    )
    assert ended["ends_unix_s"] is None


@pytest.mark.long
@pytest.mark.slow
def test_a_node_that_fails_is_named_with_the_next_step(
    cluster: Slurm, command: CommandLine
) -> None:
    run = start(command, extra="--no-requeue")  # else Slurm starts the job again on another node
    try:
        cluster.run("scontrol", "update", "nodename=c01", "state=down", "reason=power")
        ended = awaited(command, run["run_id"], lambda r: r["state"] == "crashed", "the end")
    finally:
        cluster.run("scontrol", "update", "nodename=c01", "state=resume")
    assert ended["reason"] == f"job {run['handle']} ended: NODE_FAIL (the node c01 failed)", ended
    (finding,) = (f for f in ended["findings"] if f["code"] == "launcher.node")
    assert "start the server again" in finding["fix"] and finding["text"] == ended["reason"]


@pytest.mark.long
@pytest.mark.slow
def test_a_server_in_somebodys_job_is_followed_benchmarked_and_left(
    cluster: Slurm, tmp_path: Path
) -> None:
    # a script, as pip installs programs: the process has its name
    program = tmp_path / "llama-server"
    program.symlink_to(Path(llama_server.__file__).resolve())
    model, port = tiny_gguf.write(tmp_path / "tiny.gguf"), free_port()
    words = (
        f"{sys.executable} {program} -m {model} --host 0.0.0.0 --port {port} --alias tiny -c 4096"
    )
    job = cluster.submit("--gres=gpu:1", command=f"export LLAMA_API_KEY=sk-theirs; {words}")
    waiting = cluster.submit("--gres=gpu:4")
    command = CommandLine(tmp_path, SLURM_CONF=cluster.conf)
    try:
        wait_for(lambda: f"{job} RUNNING" in cluster.jobs(), "the job", 20)
        refused = command("adopt", f"slurm:{waiting}")
        assert refused.code == 1 and f"the job {waiting} does not run: PENDING" in refused.err
        wait_for(lambda: command("adopt", f"slurm:{job}").code == 0, "the server in the job", 30)
        run_id = command.ok("servers")["servers"][0]["run_id"]
        again = command.ok("adopt", f"slurm:{job}", "--wait", "--timeout", 60, timeout_s=90)
        assert (again["run_id"], again["state"], again["handle"], again["others"]) == (
            run_id,
            "ready",
            job,
            True,
        )
        assert (again["node"], again["port"]) == (ADDRESS, port)
        measured(command, run_id)
        assert "sk-theirs" not in (command.run_dirs()[-1] / "plan.json").read_text()
        assert any(
            "tiny" in line or "model" in line for line in command.ok("logs", run_id)["lines"]
        )
        assert command.ok("stop", run_id, timeout_s=60)["state"] == "stopped"
        assert not (command.run_dirs()[-1] / "server").exists()  # with the key
        assert f"{job} RUNNING" in cluster.jobs()  # a stop only ends following it
    finally:
        command.stop_all()
        cluster.run("scancel", "--user=root")
        wait_for(lambda: cluster.jobs() == [], "the end of all jobs", 30)
        wait_for(lambda: command.left() == [], "the end of all processes", 20)


@pytest.mark.long
def test_the_walltime_ends_the_job_and_is_named(cluster: Slurm, command: CommandLine) -> None:
    run = start(command, walltime="1")
    assert 0 < run["ends_unix_s"] - time.time() <= 60
    ended = awaited(command, run["run_id"], lambda r: r["state"] == "crashed", "the walltime", 150)
    assert "TIMEOUT (its walltime was over)" in ended["reason"]


def killed_keepers(cluster: Slurm, command: CommandLine, times: int) -> None:
    """Kill the keeper of one job after another, at random moments; each job must be found again and
    stopped."""
    chance = random.Random(12)
    for _ in range(times):
        with command.spawn("start", *PRESET, *options()) as starting:
            _out, err = starting.communicate(timeout=60)
        assert starting.returncode == 0, err
        run_dir = command.run_dirs()[-1]
        time.sleep(chance.uniform(0, 2.5))
        killed = int((run_dir / "sid").read_text())
        os.killpg(killed, signal.SIGKILL)
        if status(command, run_dir.name)["state"] != "failed":
            measured(command, run_dir.name)
        else:  # the keeper died before it had submitted the job
            assert (
                "not submitted" in status(command, run_dir.name)["reason"] and cluster.jobs() == []
            )
        stopped = command.ok("stop", run_dir.name, timeout_s=60)
        assert stopped["state"] in ("stopped", "failed") and cluster.jobs() == []
        assert command.left() == []


@pytest.mark.slow
@pytest.mark.long
def test_a_job_outlives_its_keeper(cluster: Slurm, command: CommandLine) -> None:
    killed_keepers(cluster, command, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_job_outlives_its_keeper_at_any_moment(cluster: Slurm, command: CommandLine) -> None:
    killed_keepers(cluster, command, 50)


@pytest.mark.long
@pytest.mark.slow
def test_a_job_is_a_host_with_only_the_gpus_that_it_was_given(
    cluster: Slurm, tmp_path: Path
) -> None:
    def gpus(job: str) -> list[int]:
        inside = CommandLine(
            tmp_path, before=(*PROFILE, "--container", f"slurm:{job}"), SLURM_CONF=cluster.conf
        )
        return [gpu["index"] for gpu in inside.ok("gpu", "status")["gpus"]]

    first, second = cluster.submit("--gres=gpu:1"), cluster.submit("--gres=gpu:2")
    without, waiting = cluster.submit(), cluster.submit("--gres=gpu:4")
    try:
        wait_for(
            lambda: {f"{job} RUNNING" for job in (first, second, without)} <= set(cluster.jobs()),
            "the jobs",
            20,
        )
        assert (gpus(first), gpus(second), gpus(without)) == ([0], [1, 2], [])
        queued = CommandLine(
            tmp_path, before=("--container", f"slurm:{waiting}"), SLURM_CONF=cluster.conf
        )
        assert "the job is pending" in queued("doctor").err
        inside = CommandLine(
            tmp_path, before=("--container", f"slurm:{second}"), SLURM_CONF=cluster.conf
        )
        assert inside.ok("doctor")["host"]["hostname"] == "c01"
        cluster.run("scancel", second)
        wait_for(
            lambda: not any(line.startswith(second) for line in cluster.jobs()),
            "the end of the job",
            20,
        )
        assert "the job is cancelled" in inside("doctor").err
        assert (
            "the job 999 does not exist"
            in CommandLine(tmp_path, before=("--container", "slurm:999"), SLURM_CONF=cluster.conf)(
                "doctor"
            ).err
        )
    finally:
        cluster.run("scancel", "--user=root")
        wait_for(lambda: cluster.jobs() == [], "the end of all jobs", 30)


@pytest.mark.long
@pytest.mark.slow
def test_llama_cpp_as_a_job_behind_a_login_host(cluster: Slurm, tmp_path: Path) -> None:
    """The host is a real sshd; the port of the node is reached through it. The key comes from the
    environment."""
    far = tmp_path / "far"
    far.mkdir()
    program = llama_server.install(tmp_path / "bin")
    model = tiny_gguf.write(tmp_path / "tiny.gguf")
    path = f"{program.parent}:{os.environ['PATH']}"
    with sshd(far, environment={"SLURM_CONF": cluster.conf, "PATH": path}) as server:
        home = tmp_path / "person"
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh" / "config").write_text(server.stanza())
        command = CommandLine(tmp_path, before=("--host", "box"), HOME=str(home))
        sets = {"ctx-size": 4096, "parallel": 4, "alias": "tiny"}
        words = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        words += ["--var", f"model={model}", "--env", "LLAMA_API_KEY=sk-job"]
        run = command.ok(
            "start",
            "llamacpp-gguf",
            *words,
            *options(gpus=0),
            "--wait",
            "--timeout",
            90,
            timeout_s=120,
        )
        assert (run["state"], run["node"], run["launcher_state"]) == ("ready", ADDRESS, "RUNNING")
        measured(command, run["run_id"])
        server.cut()
        assert command("servers").code != 0  # it has seen that the host is gone
        server.restore()
        assert status(command, run["run_id"])["state"] == "ready"
        assert (
            subprocess.run(["grep", "-rl", "sk-job", str(far)], capture_output=True).returncode == 0
        )
        assert command.ok("stop", run["run_id"], timeout_s=90)["state"] == "stopped"
        assert cluster.jobs() == []
        kept = subprocess.run(
            ["grep", "-rl", "sk-job", str(far)], capture_output=True, text=True
        ).stdout
        assert kept == ""  # the words and the environment of the server are removed at its end
