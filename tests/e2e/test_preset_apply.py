"""A preset applied whole on a simulated host: by the real session, killed in the middle, refused in
the middle, and by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.procs import eventually
from support.serving import free_port
from support.typed_screen import TypedScreen

from workbench.model.errors import SettingsError
from workbench.model.interrupted import Interrupted
from workbench.model.server_run import ServerState
from workbench.server.file_limit import read_host_file_limit, read_process_file_limit
from workbench.session.plans.preset_apply import AppliedPreset, PresetApply
from workbench.session.session import Session
from workbench.sim import profiles
from workbench.sim.driver_state import SimState

PRO = "rtx-pro-6000"
CORE_ID = "/sys/devices/system/cpu/cpu0/topology/core_id"  # is 0 and takes no write, root's neither
PRESET = """
schema = 1
id = "whole"
title = "All that a preset can carry"
summary = "For tests."

[hardware]

[engine]
name = "vllm"
open_files = {files}

[model]
id = "Qwen/Qwen3-0.6B"

[flags]
port = {port}

[[gpu_settings]]
power_limit_w = {power_w}
lock_gpu_clocks_mhz = [1500, 1500]
governor = "powersave"
c_states = "off"

[warm_up]
requests = {requests}
input_tokens = [8, 64]
max_tokens = 8

[provenance]
document = "none"
status = "untested"
"""


@pytest.fixture(autouse=True)
def quick_start(servers_end: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    yield


def write_preset(**changes: Any) -> None:
    presets = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets")
    presets.mkdir(parents=True, exist_ok=True)
    values = {"files": 256, "port": free_port(), "power_w": 400.0, "requests": 3, **changes}
    (presets / "whole.toml").write_text(PRESET.format(**values))


class Box:
    """What the simulated host is set to, looked up behind Workbench's back."""

    def __init__(self, profile: str = PRO) -> None:
        self.root = Path(os.environ["XDG_STATE_HOME"], "workbench", "sim", profile)
        self.cpus = self.root / "driver" / "sys" / "devices" / "system" / "cpu"
        self.state = SimState(str(self.root / "driver"), profiles.get_profile(profile))

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.cpus.glob(pattern))

    @property
    def idle(self) -> str:
        return "".join(file.read_text().strip() for file in self.files("*/cpuidle/*/disable"))

    @property
    def now(self) -> tuple[Any, ...]:
        governors = {file.read_text().strip() for file in self.files("*/cpufreq/scaling_governor")}
        card = self.state.settings()[0]
        return card.limit_w, governors, self.idle

    @property
    def journal(self) -> list[Any]:
        try:
            return list(json.loads((self.root / "gpu" / "journal.json").read_text())["entries"])
        except FileNotFoundError:
            return []


BEFORE = (None, {"performance"}, "0" * 16)
APPLIED = (400.0, {"powersave"}, "1" * 16)


def on(scenario: Callable[[Session], Awaitable[None]], profile: str = PRO) -> None:
    async def go() -> None:
        session = Session.of_host(None, profile)
        try:
            await session.link.connect()
            session.presets.reload_presets()
            await session.telemetry.start()
            await session.plans.load_preset("whole")
            await asyncio.wait_for(scenario(session), 60)
        finally:
            await session.close()

    asyncio.run(go())


async def applied(session: Session) -> AppliedPreset:
    return await PresetApply(session).apply_preset(await PresetApply(session).preview_preset())


def problems(parts: Any) -> dict[str, str]:
    return {part.name: part.problem for part in parts if part.problem}


@pytest.mark.slow
def test_every_part_is_shown_applied_read_back_and_reverted() -> None:
    write_preset()

    async def scenario(session: Session) -> None:
        box = Box()
        whole = await PresetApply(session).preview_preset()
        texts = [part.text for part in whole.parts]
        assert texts[0].startswith("server: not running -> vLLM with Qwen/Qwen3-0.6B")
        assert texts[2:6] == [
            "CPU governor: performance -> powersave",
            "CPU C-states: on -> off",
            "GPU0 power limit: 600 W -> 400 W",
            "GPU0 GPU clocks: unknown -> 1500 MHz",
        ]
        assert texts[1].startswith("open files: ") and texts[6].startswith(
            "warm-up: 3 requests of about 8 to 64 tokens"
        )
        assert box.now == BEFORE and not whole.inapplicable_parts and not session.state.servers

        done = await PresetApply(session).apply_preset(whole)
        assert done.parts_not_applied == () and done.run_id is not None and box.now == APPLIED
        status = session.servers.supervisor.status(done.run_id)
        limit = await read_process_file_limit(session.host, status.pid or 0)
        assert status.state is ServerState.READY and limit is not None and limit.soft >= 256
        assert await session.servers.process_parts_missing_from_preset(status) == ()
        (box.root / "runs" / done.run_id / "warm_up.json").unlink()
        assert await session.servers.process_parts_missing_from_preset(status) == (
            "warm-up of 3 requests (not sent)",
        )

        assert (await session.gpu.revert_settings()).ok and box.now == BEFORE and box.journal == []

    on(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_refused_setting_leaves_nothing_half() -> None:
    write_preset()

    async def scenario(session: Session) -> None:
        box = Box()
        whole = await PresetApply(session).preview_preset()
        stubborn = box.files("*/cpuidle/*/disable")[9]
        stubborn.unlink()
        stubborn.symlink_to(CORE_ID)
        done = await PresetApply(session).apply_preset(whole)
        stubborn.unlink()
        stubborn.write_text("0\n")
        assert done.run_id is None and box.now == BEFORE and box.journal == []
        assert session.servers.supervisor.status(done.status.run_id).state is ServerState.STOPPED
        why = problems(done.parts)
        assert "By hand: echo 1 | sudo tee" in why["CPU C-states"]
        assert "it was rolled back" in why["CPU governor"] and "not run" in why["GPU0 power limit"]
        assert why["server"] == why["warm-up"] and "stopped again" in why["server"]

    on(scenario)


def test_a_missing_right_is_found_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    write_preset()

    async def scenario(session: Session) -> None:
        from workbench.gpu.settings.rights import Rights

        async def none(host: object) -> Rights:
            return Rights(refusal="needs root (ada is not, and sudo does not allow it)")

        monkeypatch.setattr("workbench.session.gpu.rights.read_rights", none)
        whole = await PresetApply(session).preview_preset()
        assert "needs root" in problems(whole.parts)["CPU C-states"]
        with pytest.raises(SettingsError, match=r"CPU C-states.*needs root.*nothing was changed"):
            await PresetApply(session).apply_preset(whole)
        assert not session.state.servers and Box().now == BEFORE

    on(scenario)


@pytest.mark.slow
def test_a_server_that_does_not_start_leaves_the_settings_alone() -> None:
    write_preset()

    async def scenario(session: Session) -> None:
        session.plans.set_flag("max-model-len", "900000000")
        done = await applied(session)
        assert done.run_id is None and Box().now == BEFORE and Box().journal == []
        assert (
            len(done.parts_not_applied) == len(done.parts)
            and "not READY" in done.parts_not_applied[2]
        )

    on(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_what_a_host_lacks_is_named_and_the_rest_is_applied() -> None:
    write_preset(power_w=9000.0, files=2**30)

    async def scenario(session: Session) -> None:
        limit = await read_host_file_limit(session.host)
        whole = await PresetApply(session).preview_preset()
        lacking = problems(whole.parts)
        assert "no cpuidle in this virtual machine" in lacking["CPU C-states"]
        assert "no cpufreq in this virtual machine" in lacking["CPU governor"]
        assert "9000 W is outside its limits" in lacking["each GPU power limit"]
        # beyond what the kernel allows even for root
        assert "this user may not raise it" in lacking["open files"]
        done = await PresetApply(session).apply_preset(whole)
        assert done.run_id is not None and {*lacking} == {*problems(done.parts)}
        assert limit is not None and "the process has" in problems(done.parts)["open files"]
        assert len(Box("rtx-pro-6000-passthrough").journal) == 1  # the clock lock
        await session.gpu.revert_settings()

    on(scenario, "rtx-pro-6000-passthrough")


@pytest.mark.long
@pytest.mark.slow
def test_a_setting_that_somebody_changes_after_the_question_is_left_alone_and_named() -> None:
    """Somebody writes other C-states and another limit between the question and the answer, and
    C-states again before the revert."""
    write_preset()

    async def scenario(session: Session) -> None:
        box = Box()
        whole = await PresetApply(session).preview_preset()
        box.files("*/cpuidle/*/disable")[3].write_text("1\n")
        box.state.change_setting(0, limit_w=300.0)
        done = await PresetApply(session).apply_preset(whole)
        assert done.run_id is not None and box.now == (300.0, {"powersave"}, "0001" + "0" * 12)
        assert {*problems(done.parts)} == {"CPU C-states", "GPU0 power limit"}
        assert (
            "changed to 300 W after you had confirmed" in problems(done.parts)["GPU0 power limit"]
        )

        done = await PresetApply(session).apply_preset(await PresetApply(session).preview_preset())
        assert done.parts_not_applied == () and box.now == APPLIED
        assert {e["setting"]: e["before"] for e in box.journal}["c_states"] == "off:3=0 on=1-3"
        for file in box.files("*/cpuidle/*/disable"):
            file.write_text("0\n")
        for file in box.files("*/cpuidle/state2/disable"):
            file.write_text("1\n")
        report = await session.gpu.revert_settings()
        (foreign,) = [o for o in report.outcomes if o.foreign]
        assert (
            foreign.command.setting == "c_states"
            and ("now off:2: changed by someone else") in foreign.message
        )
        assert box.now == (300.0, {"performance"}, "0010" * 4)
        assert (
            await session.gpu.revert_settings(foreign="original")
        ).ok and box.idle == "0001" + "0" * 12

    on(scenario)


KILLED = """
import asyncio
from workbench.session.plans.preset_apply import PresetApply
from workbench.session.session import Session

async def main():
    session = Session.of_host(None, "rtx-pro-6000")
    session.gpu.guard.options = {"tick_s": 0.1}
    await session.link.connect()
    session.presets.reload_presets()
    session.gpu.guard.start_heartbeats()
    await session.plans.load_preset("whole")
    preset = PresetApply(session)
    await preset.apply_preset(await preset.preview_preset(), on_step=lambda text: print(text, flush=True))

asyncio.run(main())
"""


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "settings", "now"),
    [
        ("applying the settings", "the guard reverts those settings that were changed", BEFORE),
        ("warming up", "the settings stay in force until `workbench gpu revert`", APPLIED),
    ],
)
def test_an_interruption_says_what_is_left(step: str, settings: str, now: Any) -> None:
    write_preset(requests=500)

    async def scenario(session: Session) -> None:
        preset = PresetApply(session)
        whole = await preset.preview_preset()
        applying = asyncio.create_task(
            preset.apply_preset(
                whole, on_step=lambda text: applying.cancel() if step in text else None
            )
        )
        with pytest.raises(Interrupted) as cut:
            await applying
        server = session.state.server
        assert server is not None and server.state is ServerState.READY
        runs_on = f"the server {server.run_id} runs on until `workbench stop {server.run_id}`"
        assert cut.value.left == f"{settings}; {runs_on}"
        assert Box().now == now
        await session.gpu.revert_settings()

    on(scenario)


@pytest.mark.slow
def test_a_kill_in_the_middle_is_reverted_by_the_guard() -> None:
    write_preset(requests=500)
    config = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "config.toml")
    config.write_text("[gpu]\nheartbeat_s = 5.0\n")
    box = Box()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        steps = iter(process.stdout.readline, "")
        assert any("warming up" in step for step in steps) and box.now == APPLIED
        process.send_signal(signal.SIGKILL)
    eventually(lambda: box.now == BEFORE and box.journal == [], "the revert by the guard", 40.0)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["Apply whole whole", "starting the server", "applying the settings", "warming up"]
)
def test_a_screen_that_is_killed_at_its_key_leaves_no_setting(moment: str, tmp_path: Path) -> None:
    """SIGKILL while the page asks, while the server starts, while the settings are applied, and in
    the warm-up."""
    write_preset(requests=500)
    config = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "config.toml")
    config.write_text("[gpu]\nheartbeat_s = 5.0\n")
    box = Box()
    screen = TypedScreen(
        ["--simulate", PRO], (120, 40), {**os.environ, "TERM": "xterm-256color"}, tmp_path
    )
    try:
        screen.until("SIMULATED", "RTX PRO 6000")
        screen.press("p")
        screen.type("whole")
        screen.press("enter")
        screen.until("vllm serve Qwen", lambda text: "whole" in text.split("\n")[0])
        screen.press("A")
        screen.until("Apply whole whole", "apply all of it")
        assert box.now == BEFORE
        if moment != "Apply whole whole":
            screen.press("enter")
            screen.until(f"applying the preset: {moment}")
        if moment == "warming up":
            assert box.now == APPLIED
        screen.kill()
    finally:
        screen.close()
    eventually(lambda: box.now == BEFORE and box.journal == [], "the revert by the guard", 40.0)


@pytest.mark.long
@pytest.mark.slow
def test_the_command_asks_shows_and_applies(cli: Any) -> None:
    write_preset()
    shown = cli("--simulate", PRO, "presets", "apply", "whole", "--dry-run", "--json").document
    assert shown["dry_run"] and shown["ok"] and shown["simulated"] and Box().now == BEFORE
    assert [part["name"] for part in shown["parts"]][-1] == "warm-up"
    refused = cli("--simulate", PRO, "presets", "apply", "whole")
    assert refused.code == 2 and "add --yes" in refused.err and Box().now == BEFORE
    done = cli("--simulate", PRO, "presets", "apply", "whole", "--yes", "--json")
    assert done.code == 0 and done.document["not_applied"] == [] and Box().now == APPLIED
    assert cli("--simulate", PRO, "gpu", "revert", "--json").document["ok"] and Box().now == BEFORE
