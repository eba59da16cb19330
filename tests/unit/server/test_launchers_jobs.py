"""Servers as jobs: the script on the node, the keeper, and the launcher, with PBS programs that
behave as PBS does."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import pbs_programs
from support.fake_host import FakeHost
from support.pbs_programs import Pbs
from support.sshd import wait_for

from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError, ServerError
from workbench.model.findings import Level
from workbench.model.flags import FlagSetting
from workbench.model.plan import Command, LaunchPlan
from workbench.model.server_run import ServerState
from workbench.server.launchers import job_scripts, launcher_of
from workbench.server.launchers.endings import finding_of_end_reason
from workbench.server.launchers.jobs import JobLauncher, job_name_of
from workbench.server.launchers.launcher import Launch, LaunchedServer, parse_launched
from workbench.server.run_directory import RunFacts, RunRecord
from workbench.server.running_server_secrets import parse_command_text
from workbench.server.watched_run import WatchedRun

RUN_ID = "20261121-031502-vllm-3f2a"
SHELLS = [
    pytest.param(
        shell,
        id=shell[0],
        marks=pytest.mark.skipif(not shutil.which(shell[0]), reason=f"needs {shell[0]}"),
    )
    for shell in (["dash"], ["bash"], ["busybox", "sh"])
]
RECORD = (
    "import os, sys; sys.stdout.write('\\0'.join([*sys.argv[1:], os.getcwd(), *map(os.environ.get, "
    "('A', 'B_2'))]))"
)
awaited = functools.partial(wait_for, deadline_s=40.0)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


def launch(
    run_dir: Path, *argv: str, run_as: str = "pbs", address: str = "0.0.0.0", **fields: object
) -> Launch:
    plan = LaunchPlan("vllm", "org/model", run_as=run_as, run_options={"gpus": "2"})
    return replace(Launch(RUN_ID, str(run_dir), plan, argv or ("true",), address=address), **fields)  # type: ignore[arg-type]


def launcher(run_as: str = "pbs") -> JobLauncher:
    found = launcher_of(run_as)
    assert isinstance(found, JobLauncher)
    return found


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=12)
@given(
    argv=st.lists(words, max_size=4),
    a=words,
    directory=words.filter(lambda t: t not in ("", ".", "..") and "/" not in t),
)
@example(
    argv=["", " ", "$(touch gone)", "a\nb\n", "'\"\\", "…é", "-n", "*"],
    a="x\n'$HOME`id`\n",
    directory="a 'b' $c\n",
)
def test_words_variables_and_directories_reach_the_server_as_they_are(
    shell: list[str],
    argv: list[str],
    a: str,
    directory: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run_dir = tmp_path_factory.mktemp("job") / directory
    workdir = tmp_path_factory.mktemp("work") / directory
    for made in (run_dir, workdir):
        made.mkdir()
    job = launch(
        run_dir, sys.executable, "-c", RECORD, *argv, env={"A": a, "B_2": "b"}, workdir=str(workdir)
    )
    for name, text in launcher().make_keeper(job).files.items():
        (run_dir / name).write_text(text)
    (run_dir / "environment").write_text("")
    done = subprocess.run([*shell, str(run_dir / "job.sh"), str(run_dir)], stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and (run_dir / "job.exit").read_text() == "0\n"
    assert (run_dir / "job.log").read_bytes().decode().split("\0") == [*argv, str(workdir), a, "b"]


@given(argv=st.lists(words, max_size=4), a=words, workdir=words)
@example(argv=["set", "--", "export"], a="export A=b\nset -- x", workdir="set")
def test_another_workbench_reads_the_words_of_a_job(argv: list[str], a: str, workdir: str) -> None:
    job = launch(
        Path("/run"), "vllm", *argv, env={"A": a, "B_2": "b"}, workdir=workdir, open_files=9
    )
    command = parse_command_text(launcher().make_keeper(job).files["server"])
    assert (command.argv, command.env) == (("vllm", *argv), {"A": a, "B_2": "b"})


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=12)
@given(value=words.filter(bool))
@example(value="/a b:/c'd\n$e\n")
def test_the_path_of_the_login_host_reaches_the_job(shell: list[str], value: str) -> None:
    script = job_scripts._SHARED_FUNCTIONS + (
        '\ntext=$(exported V; echo .); V=; eval "${text%.}"; printf "%s." "$V"'
    )
    done = subprocess.run(
        [*shell, "-c", script], env={**os.environ, "V": value}, capture_output=True
    )
    assert (done.stdout.decode(), done.stderr) == (f"{value}.", b"")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1-02:03:04", "93784"),
        ("00:59", "59"),
        ("2:08:09", "7689"),
        ("09", "9"),
        ("UNLIMITED", ""),
        (f"{'9' * 400}:00:00", ""),
        (f"{'9' * 400}-00:00:00", ""),
        ("", ""),
        ("N/A", ""),
    ],
)
def test_durations_of_schedulers_are_read(text: str, expected: str) -> None:
    done = subprocess.run(
        ["dash", "-c", job_scripts._SHARED_FUNCTIONS + '\nseconds "$1"', "sh", text],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == expected


def test_the_node_says_that_it_does_not_see_the_run_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        ["dash", "-c", job_scripts.JOB_SCRIPT, "sh", str(tmp_path / "gone")],
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 66 and (f"does not see the run directory {tmp_path}/gone") in done.stderr
    )


def test_a_job_that_was_given_up_ends_at_once(tmp_path: Path) -> None:
    for name, text in (
        launcher().make_keeper(launch(tmp_path, "touch", str(tmp_path / "ran"))).files.items()
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "launched").write_text("handle 1\nended job 1 was lost\n")
    assert subprocess.run(["dash", str(tmp_path / "job.sh"), str(tmp_path)]).returncode == 0
    assert not (tmp_path / "ran").exists()


def test_the_job_name_fits_all_versions_of_pbs_and_differs_between_runs() -> None:
    assert job_name_of(RUN_ID) == "wb-031502-3f2a" and len(job_name_of(RUN_ID)) <= 15
    assert job_name_of("") == "wb-RUN"  # of a plan, which has no run yet


# ---- the keeper with PBS


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pbs]:
    found = pbs_programs.install(tmp_path / "pbs")
    (found.bin / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.02\n")  # the keeper's seconds
    (found.bin / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", f"{found.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    yield found
    subprocess.run(["qdel", *found.living()])
    awaited(lambda: not found.living(), "the end of the jobs")


Kept = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Kept]:
    """Return a function that starts the keeper of a job in `tmp_path`/run, with its output in the
    file `log`."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, follow: str | None = None, **options: str) -> subprocess.Popen[bytes]:
        job = launch(run_dir, *argv)
        job = replace(job, plan=replace(job.plan, run_options={**job.plan.run_options, **options}))
        keeper = (
            launcher().make_adopting_keeper(job, follow) if follow else launcher().make_keeper(job)
        )
        for name, text in keeper.files.items():
            (run_dir / name).write_text(text)
        with (run_dir / "log").open("wb") as log:
            started.append(
                subprocess.Popen(keeper.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def launched(tmp_path: Path) -> LaunchedServer:
    path = tmp_path / "run" / "launched"
    return (parse_launched(path.read_bytes()) if path.exists() else None) or LaunchedServer()


def log(tmp_path: Path) -> str:
    return (tmp_path / "run" / "log").read_text()


def test_a_job_waits_runs_and_ends_with_the_servers_exit_code(
    pbs: Pbs, keep: Kept, tmp_path: Path
) -> None:
    pbs.set("hold")
    keeper = keep(
        "sh",
        "-c",
        "echo hello; until [ -e go ]; do sleep 1; done; exit 3",
        walltime="1:00:00",
        queue="q1",
    )
    awaited(lambda: "Insufficient" in (launched(tmp_path).state or ""), "the reason of the queue")
    waiting = launched(tmp_path)
    assert waiting.handle == "1.pbs01" and waiting.state == (
        "queued (Not Running: Insufficient amount of resource: ngpus (R: 2 A: 0 T: 4))"
    )
    assert (waiting.began_unix_s, waiting.ends_unix_s) == (None, None)
    pbs.set("hold", False)
    awaited(lambda: launched(tmp_path).ends_unix_s is not None, "the walltime")
    running = launched(tmp_path)
    assert running.state == "running" and running.pid and Path(f"/proc/{running.pid}").exists()
    assert running.ends_unix_s is not None and running.began_unix_s is not None
    assert running.ends_unix_s - running.began_unix_s == 3600
    awaited(lambda: "hello" in log(tmp_path), "the log")
    (tmp_path / "go").touch()
    assert keeper.wait(60) == 3
    ended = launched(tmp_path)
    assert (ended.exit_code, ended.ended, ended.pid) == (3, "job 1.pbs01 ended: exit code 3", None)
    assert log(tmp_path) == "hello\nworkbench: job 1.pbs01 ended: exit code 3\n"
    assert (
        not (tmp_path / "run" / "server").exists()
        and not (tmp_path / "run" / "environment").exists()
    )
    assert pbs.calls("qsub") == [
        [
            *[
                "-S",
                "/bin/sh",
                "-j",
                "oe",
                "-o",
                "job.out",
                "-l",
                "select=1:ngpus=2",
                "-N",
                "wb-031502-3f2a",
            ],
            *["-l", "walltime=1:00:00", "-q", "q1"],
            "job.sh",
        ]
    ]


@pytest.mark.parametrize(("torque", "code"), [(False, 143), (True, 143)])
@pytest.mark.slow
def test_the_walltime_ends_the_job_and_is_named(
    pbs: Pbs, keep: Kept, tmp_path: Path, torque: bool, code: int
) -> None:
    pbs.set("torque", torque)
    keeper = keep("/bin/sleep", "60", walltime="1")
    assert keeper.wait(60) == code
    assert launched(tmp_path).ended == "job 1.pbs01 ended: its walltime was over"
    assert "=>> PBS: job killed: walltime 2 exceeded limit 1" in log(tmp_path)


def test_torque_is_asked_in_its_own_words(pbs: Pbs, keep: Kept, tmp_path: Path) -> None:
    pbs.set("torque")
    assert keep("sh", "-c", "exit 4").wait(60) == 4
    assert "nodes=1:gpus=2" in pbs.calls("qsub")[0] and not any(
        "-x" in call for call in pbs.calls("qstat")
    )


def test_a_server_that_forgets_ended_jobs_leaves_the_exit_code_to_the_job(
    pbs: Pbs, keep: Kept, tmp_path: Path
) -> None:
    pbs.set("no-history")
    assert keep("sh", "-c", "exit 5").wait(60) == 5
    assert launched(tmp_path).ended == (
        "job 1.pbs01 ended: the scheduler no longer knows it (exit code 5)"
    )


def test_a_refused_job_ends_with_the_words_of_qsub(pbs: Pbs, keep: Kept, tmp_path: Path) -> None:
    assert keep("true", extra="--nonsense").wait(60) == 1
    assert "qsub: invalid option -- '--nonsense'" in log(tmp_path)
    assert (launched(tmp_path).ended or "").startswith("not submitted: ") and pbs.jobs() == []


def test_an_unreachable_scheduler_is_named_and_nothing_is_lost(
    pbs: Pbs, keep: Kept, tmp_path: Path
) -> None:
    keeper = keep("sh", "-c", "until [ -e go ]; do sleep 1; done; exit 6")
    awaited(lambda: launched(tmp_path).state == "running", "the job")
    pbs.set("down")
    awaited(
        lambda: "cannot connect to server pbs01" in (launched(tmp_path).state or ""), "the state"
    )
    assert (launched(tmp_path).state or "").startswith("unknown: ") and launched(tmp_path).pid
    with pytest.raises(HostError, match="PBS does not answer: qstat: cannot connect"):
        asyncio.run(
            launcher().read_exit_state(LocalHost(), launch(tmp_path / "run"), launched(tmp_path))
        )
    pbs.set("down", False)
    awaited(lambda: launched(tmp_path).state == "running", "the answer of PBS")
    (tmp_path / "go").touch()
    assert keeper.wait(60) == 6


def test_a_job_that_is_not_requeued_is_an_error(pbs: Pbs, tmp_path: Path) -> None:
    job = launch(tmp_path / "run")
    with pytest.raises(ServerError, match=r"did not put the job 9\.pbs01 back") as raised:
        asyncio.run(launcher().restart(LocalHost(), job, LaunchedServer("9.pbs01")))
    assert raised.value.command == "qrerun 9.pbs01" and "Unknown Job Id" in str(raised.value)


@pytest.mark.parametrize("queued", [True, False])
def test_stop_ends_the_job_and_the_keeper_ends_by_itself(
    pbs: Pbs, keep: Kept, tmp_path: Path, queued: bool
) -> None:
    pbs.set("hold", queued)
    keeper = keep("/bin/sleep", "60")
    awaited(lambda: launched(tmp_path).state not in (None, "submitting", "submitted"), "the job")
    asyncio.run(launcher().stop(LocalHost(), launch(tmp_path / "run"), launched(tmp_path)))
    assert pbs.living() == [] and pbs.calls("qdel") == [["1.pbs01"]]
    assert keeper.wait(60) == 143
    # a second stop
    asyncio.run(launcher().stop(LocalHost(), launch(tmp_path / "run"), launched(tmp_path)))


def test_a_restarted_job_waits_again_and_its_second_start_is_counted(
    pbs: Pbs, keep: Kept, tmp_path: Path
) -> None:
    keeper = keep("sh", "-c", "echo started; until [ -e go ]; do sleep 1; done; exit 2")
    awaited(
        lambda: launched(tmp_path).state == "running" and launched(tmp_path).pid is not None,
        "the job",
    )
    pbs.set("hold")
    asyncio.run(launcher().restart(LocalHost(), launch(tmp_path / "run"), launched(tmp_path)))
    assert pbs.calls("qrerun") == [["1.pbs01"]]
    awaited(lambda: (launched(tmp_path).state or "").startswith("queued (Not Running"), "the queue")
    waiting = launched(tmp_path)
    assert (waiting.began_unix_s, waiting.pid, waiting.ended) == (
        None,
        None,
        None,
    ) and keeper.poll() is None
    pbs.set("hold", False)
    awaited(
        lambda: launched(tmp_path).restarts == 1 and launched(tmp_path).pid is not None,
        "the second start",
    )
    awaited(lambda: log(tmp_path).count("started") == 2, "the log of both starts")
    (tmp_path / "go").touch()
    assert keeper.wait(60) == 2 and launched(tmp_path).ended == "job 1.pbs01 ended: exit code 2"


@pytest.mark.parametrize("shell", SHELLS)
def test_numbers_without_end_end_no_keeper(
    pbs: Pbs, keep: Kept, tmp_path: Path, shell: list[str]
) -> None:
    """dash gives up a whole script at a number that it cannot hold."""
    words = " ".join([shutil.which(shell[0]) or "", *shell[1:]])
    (pbs.bin / "sh").write_text(f'#!/bin/bash\nexec {words} "$@"\n')
    (pbs.bin / "sh").chmod(0o755)
    keeper = keep("sh", "-c", "until [ -e go ]; do sleep 1; done; exit 2", walltime="1:00:00")
    awaited(lambda: launched(tmp_path).pid is not None, "the job")
    many, run = "9" * 400, tmp_path / "run"
    (run / "job.began").write_text(
        f"node {os.uname().nodename}\npid {many}\nrestarts {many}\nbegan {many}\n"
    )
    awaited(
        lambda: launched(tmp_path).state == "running" and launched(tmp_path).pid is None,
        "the next look",
    )
    assert launched(tmp_path).restarts is None and (launched(tmp_path).ends_unix_s or 0) < 1e11
    (tmp_path / "go").touch()
    assert keeper.wait(60) == 2


def test_a_lost_keeper_is_replaced_and_the_whole_log_is_kept(
    pbs: Pbs, keep: Kept, tmp_path: Path
) -> None:
    keeper = keep("sh", "-c", "echo first; until [ -e go ]; do sleep 1; done; echo last; exit 7")
    awaited(lambda: "first" in log(tmp_path), "the log")
    keeper.kill()
    keeper.wait()
    # found by its name
    fate = asyncio.run(
        launcher().read_exit_state(LocalHost(), launch(tmp_path / "run"), LaunchedServer())
    )
    assert fate.lives and fate.handle == "1.pbs01"
    again = keep(follow=fate.handle)
    (tmp_path / "go").touch()
    assert again.wait(60) == 7
    assert log(tmp_path).splitlines()[:2] == ["first", "last"] and len(pbs.calls("qsub")) == 1


def test_a_job_whose_keeper_was_lost_is_explained_after_its_end(
    pbs: Pbs, keep: Kept, tmp_path: Path
) -> None:
    keeper = keep("sh", "-c", "exit 9")
    awaited(lambda: bool(pbs.jobs()), "the job")
    keeper.kill()
    awaited(lambda: not pbs.living(), "the end of the job")
    fate = asyncio.run(
        launcher().read_exit_state(LocalHost(), launch(tmp_path / "run"), LaunchedServer())
    )
    assert (fate.lives, fate.ended, fate.exit_code) == (False, "job 1.pbs01 ended: exit code 9", 9)


def test_a_job_of_another_user_with_the_same_name_is_not_taken(pbs: Pbs, tmp_path: Path) -> None:
    """Names of jobs are public: `qstat` shows them."""
    pbs.set("hold")
    (tmp_path / "job.sh").touch()
    subprocess.run(["qsub", "-N", job_name_of(RUN_ID), "job.sh"], cwd=tmp_path, check=True)
    (mine,) = pbs.directory.glob("job-*.json")
    job = json.loads(mine.read_text())
    mine.write_text(json.dumps({**job, "owner": "mallory"}))
    fate = asyncio.run(launcher().read_exit_state(LocalHost(), launch(tmp_path), LaunchedServer()))
    assert (fate.lives, fate.handle) == (False, "")
    mine.write_text(json.dumps(job))
    assert (
        asyncio.run(
            launcher().read_exit_state(LocalHost(), launch(tmp_path), LaunchedServer())
        ).handle
        == job["id"]
    )


def test_a_keeper_that_was_lost_before_the_job_left_none(pbs: Pbs, tmp_path: Path) -> None:
    fate = asyncio.run(launcher().read_exit_state(LocalHost(), launch(tmp_path), LaunchedServer()))
    assert (fate.lives, fate.handle) == (False, "") and "not submitted" in (fate.ended or "")
    asyncio.run(launcher().stop(LocalHost(), launch(tmp_path), LaunchedServer()))


def test_a_job_that_does_not_end_is_an_error(
    pbs: Pbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pbs.bin / "qdel").write_text("#!/bin/sh\necho 'qdel: Unauthorized Request' >&2\nexit 159\n")
    monkeypatch.setattr(JobLauncher, "stop_s", 3.0)
    pbs.set("hold")
    (tmp_path / "job.sh").touch()
    subprocess.run(["qsub", "-N", job_name_of(RUN_ID), "job.sh"], cwd=tmp_path, check=True)
    with pytest.raises(
        ServerError,
        match=r"PBS did not end the job: job 1.pbs01 is still "
        r"queued.*Unauthorized",
    ):
        asyncio.run(launcher().stop(LocalHost(), launch(tmp_path), LaunchedServer()))
    pbs_programs.install(tmp_path / "again")
    (pbs.bin / "qdel").write_text(
        (tmp_path / "again/bin/qdel")
        .read_text()
        .replace(str(tmp_path / "again"), str(tmp_path / "pbs"))
    )


# ---- what is against a start


def check(facts: str, **fields: object) -> list[tuple[Level, str]]:
    host = FakeHost(lambda call: facts)
    found = asyncio.run(
        launcher("slurm").check(host, launch(Path("/home/a/run"), run_as="slurm", **fields))
    )  # type: ignore[arg-type]
    return [(finding.level, finding.code) for finding in found]


@pytest.mark.parametrize(
    ("facts", "address", "expected"),
    [
        ("missing sbatch\nhost login", "0.0.0.0", [(Level.ERROR, "job.scheduler")]),
        (
            "host login\nrefused slurm_load_node: Unable to contact",
            "0.0.0.0",
            [(Level.ERROR, "job.scheduler")],
        ),
        ("host login\nfiles nfs\nnode c01", "127.0.0.1", [(Level.ERROR, "job.loopback")]),
        ("host login\nfiles nfs\nnode c01", "10.0.0.1", []),
        ("host login\nfiles ext2/ext3\nnode c01", "0.0.0.0", [(Level.WARN, "job.files")]),
        ("host box.lan\nfiles ext2/ext3\nnode box", "127.0.0.1", []),
    ],
)
def test_what_is_against_a_job(facts: str, address: str, expected: list[tuple[Level, str]]) -> None:
    assert check(facts, address=address) == expected


def test_a_job_with_fewer_gpus_than_the_plan_needs_is_named() -> None:
    plan = LaunchPlan(
        "vllm", "m", flags=(FlagSetting("tensor-parallel-size", 4),), run_options={"gpus": "a100:2"}
    )
    assert check("host a\nnode a", plan=plan) == [(Level.WARN, "job.too-few-gpus")]


def test_gpus_are_chosen_by_the_scheduler_and_not_by_the_plan(tmp_path: Path) -> None:
    assert check("host a\nnode a", env={"CUDA_VISIBLE_DEVICES": "0"}) == [(Level.WARN, "job.gpus")]
    files = (
        launcher().make_keeper(launch(tmp_path, env={"CUDA_VISIBLE_DEVICES": "0", "A": "b"})).files
    )
    assert "CUDA" not in files["server"] and "export A=b" in files["server"]


SQUEUE = """#!/bin/sh
printf '%s\\n' '{line}'
"""


def looked(
    directory: Path, line: str, exit_code: str, scheduler: str = "slurm"
) -> tuple[str, str, str]:
    """Return phase, state and exit code of a job of which squeue prints `line` and scontrol
    `exit_code`."""
    programs = {
        "squeue": SQUEUE.format(line=line),
        "scontrol": SQUEUE.format(line=f"   Requeue=0 ExitCode={exit_code} "),
    }
    for name, text in programs.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    script = job_scripts._SHARED_FUNCTIONS + launcher(scheduler).scheduler.functions
    show = '\njob=7; look; printf "%s/%s/%s" "$phase" "$state" "$code"'
    env = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}
    done = subprocess.run(["dash", "-c", script + show], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    phase, state, code = done.stdout.split("/")
    return phase, state, code


@pytest.mark.parametrize(
    ("line", "code", "expected", "finding"),
    [
        (
            "FAILED|c01|0:00|NonZeroExitCode",
            "3:0",
            ("ended", "FAILED (NonZeroExitCode)", "3"),
            None,
        ),
        (
            "OUT_OF_MEMORY|c01|0:00|OutOfMemory",
            "0:125",
            ("ended", "OUT_OF_MEMORY (it used more memory than it had asked for)", ""),
            "launcher.memory",
        ),
        (
            "NODE_FAIL|c01|0:00|NodeDown",
            "0:0",
            ("ended", "NODE_FAIL (the node c01 failed)", ""),
            "launcher.node",
        ),
        (
            "NODE_FAIL|n/a|0:00|NodeDown",
            "0:0",
            ("ended", "NODE_FAIL (the node failed)", ""),
            "launcher.node",
        ),
        (
            "TIMEOUT|c01|0:00|TimeLimit",
            "0:15",
            ("ended", "TIMEOUT (its walltime was over)", "143"),
            "launcher.walltime",
        ),
        (
            "PREEMPTED|c01|0:00|None",
            "0:15",
            ("ended", "PREEMPTED (a job with a higher priority took its place)", "143"),
            "launcher.preempted",
        ),
        (
            "CANCELLED|c01|0:00|None",
            f"0:{'9' * 400}",
            ("ended", "CANCELLED", ""),
            "launcher.cancelled",
        ),
    ],
)
def test_each_end_of_a_job_is_told_with_the_next_step(
    tmp_path: Path, line: str, code: str, expected: tuple[str, str, str], finding: str | None
) -> None:
    assert looked(tmp_path, line, code) == expected
    found = finding_of_end_reason(f"job 7 ended: {expected[1]}")
    assert (found.code if found else None) == finding and (found is None or found.fix)


def test_an_end_by_the_scheduler_is_the_reason_and_not_the_errors_that_follow() -> None:
    plan = LaunchPlan("vllm", "m", run_as="slurm")
    record = RunRecord("RUN", "login", plan, Command(("vllm",)), 1.0, 60.0)
    run = WatchedRun(FakeHost(lambda call: ""), "/run", record, None, adopted=True)
    ended = "job 7 ended: OUT_OF_MEMORY (it used more memory than it had asked for)"
    run.facts = RunFacts(record, alive=False, launched=LaunchedServer(handle="7", ended=ended))
    run.explained = ("RuntimeError: engine core died", ())
    run.refresh_and_check_status_change()
    assert run.status.reason == ended
    assert [(f.code, "--run-option memory" in (f.fix or "")) for f in run.status.findings] == [
        ("launcher.memory", True)
    ]


def test_a_run_whose_keeper_another_workbench_starts_is_unknown_and_not_crashed() -> None:
    plan = LaunchPlan("vllm", "m", run_as="slurm")
    record = RunRecord("RUN", "login", plan, Command(("vllm",)), 1.0, 60.0)
    run = WatchedRun(FakeHost(lambda call: ""), "/run", record, None, adopted=True)
    run.facts = RunFacts(record, alive=False, lost="the shell was killed")
    run.set_unreachable_reason("/run already contains a run")
    assert run.refresh_and_check_status_change() and run.status.state is ServerState.UNKNOWN


def test_a_server_in_a_job_of_pbs_cannot_be_followed() -> None:
    with pytest.raises(
        ServerError, match="PBS has no command that runs a program inside"
    ) as refused:
        asyncio.run(launcher("pbs").find_adoptable(FakeHost(lambda call: ""), "12.pbs01", {}))
    assert "workbench bench --url" in (refused.value.next_step or "")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            "phase queued\nstate PENDING (Resources)\nhost \nwhy ",
            r"the job 7 does not run: PENDING \(Resources\)",
        ),
        ("phase gone\nstate \nhost \nwhy ", "the job 7 does not run: not known to the scheduler"),
        (
            "phase running\nstate RUNNING\nhost c01\nwhy ",
            "no server of a known engine was found in the job 7 on c01",
        ),
        (
            "phase running\nstate RUNNING\nhost c01\nwhy \nrefused srun: error: Access/permission "
            "denied",
            "on c01: srun: error: Access/permission denied",
        ),
    ],
)
def test_a_job_without_a_server_is_not_followed(answer: str, says: str) -> None:
    with pytest.raises(ServerError, match=says):
        asyncio.run(launcher("slurm").find_adoptable(FakeHost(lambda call: answer), "7", {}))
    for handle in ("", "-1", "7;id", "x", "7 8", "--me"):
        with pytest.raises(ServerError, match="is not the id of a Slurm job"):
            asyncio.run(launcher("slurm").find_adoptable(FakeHost(lambda call: answer), handle, {}))


def test_the_outermost_server_of_a_job_is_followed() -> None:
    lines = ["phase running", "state RUNNING", "host c01", "why "]
    lines += [
        "proc 30 20",
        "cwd /w",
        "arg /v/bin/python",
        "arg /v/bin/vllm",
        "arg serve",
        "arg org/m",
        "readable",
    ]
    lines += [
        "proc 20 10",
        "cwd /w",
        "arg /v/bin/python",
        "arg /v/bin/vllm",
        "arg serve",
        "arg org/m",
    ]
    lines += [
        "env VLLM_API_KEY=sk-1",
        "readable",
        "proc 10 1",
        "cwd /",
        "arg bash",
        "arg -c",
        "arg vllm serve org/m",
    ]
    found = asyncio.run(
        launcher("slurm").find_adoptable(FakeHost(lambda call: "\n".join(lines)), "7", {})
    )
    assert (found.argv[1:], found.workdir) == (("/v/bin/vllm", "serve", "org/m"), "/w")
    assert found.env == {"VLLM_API_KEY": "sk-1"}


def test_no_secret_is_on_the_command_line_of_the_keeper(tmp_path: Path) -> None:
    for word in ("slurm", "pbs"):
        job = launch(
            tmp_path, "vllm", "--api-key", "sk-hidden", run_as=word, env={"HF_TOKEN": "hf-hidden"}
        )
        assert "-hidden" not in " ".join(launcher(word).make_keeper(job).argv)
        assert "-hidden" not in " ".join(launcher(word).command(job).argv)
