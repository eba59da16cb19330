"""Runs that have ended: listed without being read again, and removed only if nothing is lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ended_runs import make_ended
from support.fake_runs import Make, ready
from support.serving import supervised
from support.sshd import sshd

from workbench.hosts.base import Completed, Host
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.model.server_run import ServerState
from workbench.server import old_runs
from workbench.server.old_runs import EndedRun
from workbench.server.supervisor import NEWEST_RUNS, ServerEvent, Supervisor

Scenario = Callable[[Supervisor, Path], Awaitable[None]]


def on(host: Host, scenario: Scenario) -> None:
    async def go() -> None:
        supervisor = Supervisor(host)
        try:
            await scenario(supervisor, Path(await supervisor.runs_dir()))
        finally:
            await supervisor.close()
            await host.close()

    asyncio.run(go())


class CountingHost(LocalHost):
    """Counts the bytes that commands print."""

    printed = 0

    async def run(self, *arguments: object, **how: object) -> Completed:
        done = await super().run(*arguments, **how)  # type: ignore[arg-type]
        self.printed += len(done.stdout)
        return done


def test_ended_runs_are_read_once(clean_environment: None) -> None:
    host = CountingHost()

    async def scenario(supervisor: Supervisor, root: Path) -> None:
        ids = make_ended(root, 60)
        assert len(await supervisor.runs()) == 60 and supervisor.older == ()
        read_all, host.printed = host.printed, 0
        other = Supervisor(host)
        assert [s.run_id for s in await other.runs()] == list(reversed(ids[-NEWEST_RUNS:]))
        assert list(other.older) == ids[:-NEWEST_RUNS] and not await other.has_unread_runs()
        assert host.printed < read_all / 1.5
        old = await other.load_status(ids[3])
        assert (old.state, old.port) == (ServerState.STOPPED, 8000) and ids[3] in {
            s.run_id for s in await other.runs()
        }
        (root / ids[5] / "ended").write_text("")  # as a full disk leaves it
        assert ids[5] in {s.run_id for s in await Supervisor(host).runs()}
        assert (root / ids[5] / "ended").read_text().startswith("stopped ")
        assert len(await other.runs(newest=1000)) == 60

    on(host, scenario)


def test_a_run_of_another_boot_is_not_marked(clean_environment: None) -> None:
    """With a shared home directory, it may live on another machine."""

    async def scenario(supervisor: Supervisor, root: Path) -> None:
        (run_id,) = make_ended(root, 1)
        (root / run_id / "boot_id").write_text("another\n")
        await supervisor.runs()
        assert not (root / run_id / "ended").exists()

    on(LocalHost(), scenario)


def run(
    number: int, *, failed: bool = False, read: bool = False, age_s: float = 0.0, size_kib: int = 10
) -> EndedRun:
    return EndedRun(f"20260101-00000{number}-vllm-0000", failed, read, age_s, size_kib)


RUNS = [
    run(5, age_s=1),
    run(4, failed=True, age_s=2),
    run(3, failed=True, read=True, age_s=3),
    run(2, age_s=4),
]


@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        ({"older_than_s": 1.5}, [3, 2]),
        ({"older_than_s": 3.5}, [2]),
        ({"keep": 0}, [5, 3, 2]),
        ({"keep": 3}, [2]),
        ({"size_kib": 30}, [2]),
        ({"size_kib": 0, "keep": 4}, [5, 3, 2]),
        ({"keep": 4, "older_than_s": 10, "size_kib": 40}, []),
    ],
)
def test_the_oldest_go_and_an_unread_failure_stays(
    limits: dict[str, float], removed: list[int]
) -> None:
    assert [
        int(one.run_id[14]) for one in old_runs.choose_runs_to_remove(RUNS, **limits)
    ] == removed  # type: ignore[arg-type]


async def prune_everything(supervisor: Supervisor, root: Path) -> None:
    """Whatever may be removed goes: a failure only after its log was read, no link, and nothing
    outside the root."""
    gone, failed = make_ended(root, 3), make_ended(root, 1, exit_code=1, stopped=False, days_ago=2)
    outside = root.parent / "precious"
    outside.mkdir()
    (outside / "ended").write_text("stopped 1\n")
    (root / "20250101-000000-vllm-0bad").symlink_to(outside)
    (root / "notes").mkdir()
    (root / "notes" / "ended").write_text("stopped 1\n")
    await supervisor.runs()

    async def prune() -> set[str]:
        every = await old_runs.read_ended_runs(supervisor.host, str(root))
        return set(
            await old_runs.remove_runs(
                supervisor.host, str(root), old_runs.choose_runs_to_remove(every, keep=0)
            )
        )

    assert await prune() == set(gone) and (root / failed[0]).is_dir()
    await supervisor.mark_log_as_read(failed[0])
    assert await prune() == set(failed)
    assert sorted(path.name for path in root.iterdir()) == ["20250101-000000-vllm-0bad", "notes"]
    assert (outside / "ended").exists()


def test_pruning_on_this_machine(clean_environment: None) -> None:
    on(LocalHost(), prune_everything)


@pytest.mark.slow
def test_pruning_over_ssh(tmp_path: Path) -> None:
    with sshd(tmp_path / "ssh") as server:
        on(SshHost(server.host_alias, ssh_config=server.ssh_config_path), prune_everything)


@pytest.mark.slow
def test_a_living_server_stays_whatever_its_mark_says(clean_environment: None, make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        root = Path(await supervisor.runs_dir())
        (root / status.run_id / "ended").write_text("stopped 1\n")
        (every,) = await old_runs.read_ended_runs(supervisor.host, str(root))
        assert await old_runs.remove_runs(supervisor.host, str(root), [every]) == ()
        assert (root / status.run_id / "plan.json").exists()
        (root / status.run_id / "ended").unlink()

    supervised(scenario)


class ShortHost(LocalHost):
    """Refuses long command lines, as the kernel does from 2 MB on."""

    async def run(self, argv: Sequence[str], **how: Any) -> Completed:
        assert sum(map(len, argv)) < 200_000
        return await super().run(argv, **how)


def test_any_number_of_runs_is_marked_and_removed(clean_environment: None) -> None:
    async def prune(supervisor: Supervisor, root: Path) -> None:
        ids = make_ended(root, 2, days_ago=40.0)
        absent = [f"20200101-000000-vllm-{number:04x}" for number in range(3000)]
        await old_runs.write_end_marks(
            supervisor.host, str(root), dict.fromkeys((*absent, *ids), "stopped 1")
        )
        many = [EndedRun(run_id, False, True, 1e6, 40) for run_id in (*absent, *ids)]
        assert set(await old_runs.remove_runs(supervisor.host, str(root), many)) == set(ids)
        assert not any((root / run_id).exists() for run_id in ids)

    on(ShortHost(), prune)
