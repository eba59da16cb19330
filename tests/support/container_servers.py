"""Servers as containers of a real podman, and of Docker's own command line in front of it, for
tests: plans of the fake engine, and the fixtures `engine` and `on_path`, which a test module
imports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support import fake_engine
from support.podman import IMAGE, Podman, podman, seen_places
from support.serving import free_port, supervised

from workbench import engines
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.supervisor import ServerEvent, Supervisor

READY_S = 90.0
ENDED = frozenset({ServerState.FAILED, ServerState.CRASHED})
ENDS = ENDED | {ServerState.READY}


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    # Podman takes no path of more than 50 characters for its state.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        podman(Path(directory)) as box,
    ):
        box.docker()
        yield box


@pytest.fixture(autouse=True)
def on_path(engine: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", engine.path)
    yield
    assert engine("ps", "--all", "--quiet", "--filter", "label=workbench.run") == ""


def seen(*more: Path) -> list[str]:
    """Return the options with which a container sees this machine's programs, and no GPU."""
    places = dict.fromkeys((*seen_places(), *map(str, more)))
    return [
        f"image={IMAGE}",
        "gpus=none",
        "grace=1",
        *(f"mount={place}:{place}:ro" for place in places),
    ]


def fake_plan(
    tmp_path: Path, word: str = "podman", behaviour: str = "", *options: str, **env: str
) -> LaunchPlan:
    program = fake_engine.install(tmp_path / "bin")
    settings = tuple(
        FlagSetting(name, value) for name, value in {"FAKE_ENGINE": behaviour, **env}.items()
    )
    flags = (FlagSetting("port", free_port()),)
    plan = LaunchPlan(
        "vllm",
        "org/model",
        flags=flags,
        env=settings,
        executable=(str(program),),
        executable_from="given",
    )
    named = {option.partition("=")[0] for option in options}
    usual = (
        option
        for option in [*seen(tmp_path), "hub-cache=none"]
        if option.partition("=")[0] not in named
    )
    return with_launcher_and_options(plan, word, [*usual, *options])


async def started(supervisor: Supervisor, plan: LaunchPlan) -> ServerStatus:
    engine = engines.get_engine(plan.engine)
    return await supervisor.start(plan, engine.command(plan), engine)


async def ready(supervisor: Supervisor, plan: LaunchPlan) -> ServerStatus:
    status = await supervisor.wait_ready((await started(supervisor, plan)).run_id, READY_S)
    assert status.state is ServerState.READY, (status.reason, supervisor.log(status.run_id).lines())
    return status


def failed(plan: LaunchPlan) -> tuple[ServerStatus, list[str]]:
    found: list[tuple[ServerStatus, list[str]]] = []

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await started(supervisor, plan)
        ended = await supervisor.wait(
            status.run_id, lambda s: s.state is ServerState.FAILED, READY_S
        )
        assert ended.state is ServerState.FAILED
        found.append((ended, list((await supervisor.load_log(status.run_id)).lines())))

    supervised(scenario)
    return found[0]


def keeper_of(status: ServerStatus) -> int:
    """Return the process id of a run's keeper; 0 while another keeper replaces it."""
    try:
        return int(Path(status.run_dir or "", "pid").read_text())
    except (OSError, ValueError):
        return 0


async def write(status: ServerStatus, text: str) -> None:
    """Make the server write to its log."""
    async with httpx.AsyncClient() as http:
        assert (await http.post(f"{status.url}/log", content=text.encode())).status_code == 200
