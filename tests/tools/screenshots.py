"""The pictures of the documentation: the real screen and session, driven by keys.

    python tests/tools/screenshots.py DIRECTORY [SCENE]
    python tests/tools/screenshots.py DIRECTORY real LLAMA_SERVER MODEL_A MODEL_B PORT

The scenes start, benchmark and stop servers on simulated hosts; each picture says SIMULATED. The second
command compares two GGUF files on this machine with a real llama-server, and also writes the report of
the experiment as HTML and JSON. It takes some ten minutes, and is not among the other scenes.
"""

from __future__ import annotations

import asyncio
import html
import os
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.errors import ServerError
from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.model.untrusted_text import clean_text
from workbench.model.watch import ALARM, QUIET, SPEED, Loss, NightEntry, Watch
from workbench.store import paths
from workbench.store.watches import WatchStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.pilot import Pilot

    from workbench.session.session import Session

FONT = "DejaVu Sans Mono"
_DEADLINE_S = 480.0  # long enough for a power sweep, whose every value settles first
_REAL_S = 3600.0  # for an experiment on a real engine
_ALIVE = frozenset({ServerState.STARTING, ServerState.READY})


def plain_fonts(svg: str) -> str:
    """Return the SVG with a font that most machines have. It replaces the web font, which programs
    that draw SVG do not load."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    return _TEXT.sub(_words_apart, svg.replace("Fira Code", FONT))


_TEXT = re.compile(
    r'<text class="(?P<style>[^"]+)" x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" '
    r'textLength="(?P<length>[\d.]+)" clip-path="(?P<clip>[^"]+)">(?P<text>[^<]*)</text>'
)
_GAP = "&#160;"


def _words_apart(found: re.Match[str]) -> str:
    """Return a text of the SVG as one text for each of its words, at the cell where the word begins.
    The dots of graphs come from another font, whose wider signs would move along the row."""
    plain = found["text"].replace(_GAP, " ")
    row = html.unescape(plain)
    if not row.strip():
        return found[0]
    cell = float(found["length"]) / len(row)
    parts = []
    for word in re.finditer(r"[^ ]+", row):
        x = float(found["x"]) + word.start() * cell
        parts.append(
            f'<text class="{found["style"]}" x="{x:g}" y="{found["y"]}" '
            f'textLength="{cell * len(word[0]):g}" clip-path="{found["clip"]}">'
            f"{html.escape(word[0])}</text>"
        )
    return "".join(parts)


def write(svg: str, path: Path) -> Path:
    """Write the picture as PATH.png, or as PATH.svg if the package resvg_py is missing. Return the
    path of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import resvg_py
    except ImportError:
        made = path.with_suffix(".svg")
        made.write_text(svg, encoding="utf-8")
        return made
    made = path.with_suffix(".png")
    made.write_bytes(
        bytes(resvg_py.svg_to_bytes(svg_string=svg, font_family=FONT, monospace_family=FONT))
    )
    return made


class Scene:
    """The screen on a simulated host, which a script controls by pressing keys. `written` has the
    paths of the pictures taken so far."""

    def __init__(self, session: Session, pilot: Pilot[int], folder: Path) -> None:
        self.session, self.pilot, self.folder = session, pilot, folder
        self.written: list[Path] = []

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        names = {"-": "minus", ".": "full_stop", ",": "comma", ":": "colon"}
        await self.press(*(names.get(c, c) for c in text))

    async def until(self, condition: Callable[[], bool], within_s: float = _DEADLINE_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            notice = self.session.state.notice
            if notice is not None and notice.level is Level.ERROR:
                raise ServerError(
                    f"a picture could not be taken: {notice.text}", next_step=notice.next_step
                )
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"a picture could not be taken within {within_s:g} s; last message: "
                    f"{self.session.state.notice}"
                )
            await asyncio.sleep(0.1)
        await self.pilot.pause()

    async def shot(self, name: str, size: tuple[int, int] | None = None) -> None:
        """Write a picture of the screen with the file name `name`. `size` (columns, rows) resizes
        the terminal first."""
        if size is not None:
            await self.pilot.resize_terminal(*size)
        await asyncio.sleep(0.6)  # every widget repaints once
        await self.pilot.pause()
        svg = self.pilot.app.export_screenshot(title="workbench")
        self.written.append(write(plain_fonts(svg), self.folder / name))

    async def load(self, letters: str) -> None:
        await self.press("p")
        await self.type(letters)
        await self.press("enter")
        await self.until(
            lambda: (
                self.session.state.plan is not None
                and self.session.state.plan.installed is not None
            )
        )

    async def start(self) -> None:
        before = self.session.state.run_id
        await self.press("s", "enter")
        await self.until(
            lambda: self.session.state.run_id != before and self.is_(ServerState.READY)
        )

    def is_(self, state: ServerState) -> bool:
        server = self.session.state.server
        return server is not None and server.state is state

    @property
    def page(self) -> str:
        """Return the title of the open form, question or page; "" if none is open."""
        from workbench.tui.pages.frame import PageFrame

        main, box = self.pilot.app.screen_stack[0], self.pilot.app.screen
        page = main.query_one(PageFrame).visible_page
        return str(getattr(box, "box_title", page.title if page is not None else ""))

    async def sweep_ends(self) -> None:
        await self.until(
            lambda: (s := self.session.state.sweep) is not None and s.state != "running"
        )

    async def bench(self, *form: str) -> None:
        """Run a benchmark on the server, and wait for its end. `form` are the keys to press in the
        form of the benchmark, beginning at the field for the number of streams."""
        before = self.session.state.bench.last_id
        await self.press("b", "tab", *form, "enter")
        await self.until(
            lambda: (
                self.session.state.bench.last_id != before and not self.session.state.bench.running
            )
        )

    async def loaded(self, name: str, streams: int) -> None:
        """Take a picture, with the file name `name`, of the server after 20 s of load with
        `streams` streams."""
        seconds = 25.0
        load = self.session.bench.benchmark_target(
            self.session.state.run_id, None, seconds=seconds, concurrency=streams
        )
        task = asyncio.create_task(load)
        await self.press("3")
        await asyncio.sleep(seconds - 5.0)
        await self.shot(name)
        await task

    async def advice(self, name: str) -> None:
        """Take a picture, with the file name `name`, of the page with the advice on the newest
        result."""
        await self.press("4", "i")
        await self.until(lambda: self.page.startswith("Advice"))
        await self.shot(name)
        await self.press("escape")


async def _tuning(scene: Scene) -> None:
    """Take the pictures for the guide, on a host with four GPUs: a benchmark, a changed flag, and
    the comparison with the benchmark before the change."""
    await scene.load("tp4")
    await scene.press("s")
    await scene.shot("start-plan-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.is_(ServerState.READY))
    await scene.bench("1", "tab", "4")  # one stream shows the distance to the memory limit
    await scene.bench("8", "tab", "4", "8")
    await scene.press("slash")
    await scene.type("eag")
    await scene.shot("find-flag-120x40")
    await scene.press("enter")
    await scene.shot("edit-flag-120x40")
    await scene.press("down", "enter", "full_stop")
    await scene.shot("again-120x40")
    before = scene.session.state.bench.last_id
    await scene.press("enter")
    await scene.until(
        lambda: scene.session.state.bench.last_id != before and not scene.session.state.busy
    )
    await scene.press("2")
    await scene.shot("loop-120x40")
    await scene.press("5", "i")
    await scene.until(lambda: scene.page.startswith("Timelines"))
    await scene.shot("timelines-120x40")
    await scene.press("escape")
    await _sizes(scene)


async def _sizes(scene: Scene) -> None:
    """Take pictures of the main screen at other terminal sizes, and a picture of the help page."""
    await scene.shot("loop-200x60", (200, 60))
    for key, name in (("2", "launch"), ("3", "log"), ("4", "bench"), ("5", "compare")):
        await scene.press(key)
        await scene.shot(f"{name}-80x24", (80, 24))
    await scene.press("f1")
    await scene.shot("help-120x40", (120, 40))
    await scene.press("escape")


async def _concurrency(scene: Scene) -> None:
    """Take a picture of a sweep of the concurrency."""
    await scene.load("vllmany")
    scene.session.plans.set_flag("port", "8002")  # other scenes run at the same time
    await scene.start()
    await scene.press("S", "c", "tab")
    await scene.type("1,4,16,64")
    await scene.press("enter")
    await scene.sweep_ends()
    await scene.shot("concurrency-sweep-120x40")
    await scene.press("escape")


async def _capacity(scene: Scene) -> None:
    """Take pictures of a search for users under limits, with its operating map."""
    await scene.load("vllmany")
    scene.session.plans.set_flag("port", "8003")
    scene.session.plans.set_flag("max-num-seqs", "8")
    await scene.start()
    await scene.press("S", "u", "tab")
    await scene.type("ttft<=500@p95,tpot<=40@p95")
    await scene.shot("capacity-form-120x40")
    await scene.press("enter")
    await scene.sweep_ends()
    await scene.shot("capacity-120x40")
    await scene.shot("capacity-80x24", (80, 24))
    await scene.press("end")
    await scene.shot("capacity-map-80x24")
    await scene.press("escape")


async def _settings(scene: Scene) -> None:
    """Take pictures of a clock lock on a GPU that is passed through to a virtual machine. The
    driver accepts the lock, and a load shows that the lock has no effect."""
    await scene.load("sglopt")
    await scene.start()
    await scene.press("g")
    await scene.shot("gpu-settings-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.page == "These commands change the GPUs")
    await scene.shot("gpu-commands-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.page == "GPU settings" and not scene.session.state.busy)
    await scene.press("V")
    await scene.until(lambda: scene.page == "What the load showed")
    await scene.shot("no-effect-120x40")
    await scene.press("escape")
    await scene.bench("1", "tab", "4")
    await scene.shot("altered-120x40")
    await scene.advice("advice-120x40")
    await scene.press("W")
    await scene.until(lambda: "in force" in scene.page)
    await scene.shot("in-force-120x40")
    await scene.press("escape")
    await scene.press("q")
    await scene.shot("quit-120x40")
    await scene.press("escape", "r")
    await scene.until(lambda: not scene.session.state.alterations)


async def _preset(scene: Scene) -> None:
    """Take a picture of the page of a preset."""
    await scene.until(lambda: bool(scene.session.state.presets))
    await scene.press("p")
    await scene.type("fp8")
    await scene.press("escape", "1", "i")
    await scene.shot("preset-120x40")


async def _two_sparks(scene: Scene) -> None:
    """Take pictures on two DGX Sparks: the page that shows which quantizations and context lengths
    fit, and the advice on a benchmark of both machines."""
    await scene.until(lambda: bool(scene.session.state.presets))
    await scene.session.plans.load_preset("vllm-llama-3.3-70b-2x-spark")
    await scene.until(lambda: scene.session.state.telemetry is not None)
    await scene.press("M")
    await scene.shot("fit-120x40")
    await scene.press("escape")
    scene.session.plans.set_flag("port", "8003")  # other scenes run at the same time
    await scene.start()
    await scene.bench("1", "tab", "1")
    await scene.advice("advice-two-sparks-120x40")


async def _doctor(scene: Scene) -> None:
    """Take a picture of the page that examines a host whose software is too old."""
    await scene.press("H")
    await scene.until(lambda: "finding" in scene.page)
    await scene.shot("doctor-120x40")


async def _alerts(scene: Scene) -> None:
    """Take a picture of the page of the alerts, with all rules on and hot GPUs."""
    from workbench.sim import driver_state, profiles
    from workbench.sim.simulated_host import SimulatedHost

    host = scene.session.host
    assert isinstance(host, SimulatedHost)
    await scene.press("exclamation_mark", "a")
    await scene.until(lambda: scene.session.alerts.are_all_on)
    driver = driver_state.SimState(host.driver_state, profiles.get_profile("four-pcie"))
    driver.set_faults(celsius={str(gpu): 86 for gpu in range(4)})
    rows = scene.session.alerts.rule_rows
    await scene.until(
        lambda: any(row.rule.name == "temperature" and row.state == "active" for row in rows())
    )
    await scene.shot("alerts-120x40")


async def _sweep(scene: Scene) -> None:
    """Take a picture of a sweep of the power limit."""
    from workbench.tui.modals.gpu_confirm import ConfirmSettings

    await scene.load("vllmany")
    scene.session.plans.set_flag("port", "8001")  # other scenes run at the same time
    await scene.start()
    await scene.press("S", "tab")
    await scene.type("300,600")
    await scene.press("enter")
    await scene.until(lambda: isinstance(scene.pilot.app.screen, ConfirmSettings))
    await scene.press("pagedown", "pagedown", "enter")
    await scene.sweep_ends()
    await scene.shot("power-sweep-120x40")
    await scene.press("escape")


async def _nights(scene: Scene) -> None:
    """Take pictures of the newest of 14 nights of a watch: the candidate is slower from the seventh
    on, and the machine from the tenth."""
    store, rng = WatchStore(paths.watches_dir()), random.Random(2)
    watch = Watch("vllm-any", "venv:/opt/vllm-nightly", "03:00", simulate="rtx-pro-6000")
    chosen = (("attention backend", "FLASH_ATTN", "FLASHINFER"),)
    for number in range(14):
        pinned = (30.0 if number < 9 else 29.1) * (1 + rng.gauss(0, 0.003))
        slower = number >= 6
        speed = pinned * (0.969 if slower else 1.0) * (1 + rng.gauss(0, 0.003))
        entry = NightEntry(
            watch,
            ALARM if number in (6, 13) else QUIET,
            first_id=number + 1,
            losses=(Loss(SPEED, 3.1, 24, alarm=True),) if slower else (),
            pinned_version="0.32.0",
            version=f"0.33.{number // 3}",
            pinned_speed=pinned,
            speed=speed,
            chosen=chosen if slower else (),
            simulated=True,
        )
        begun = time.time() - 86_400 * (13 - number)
        store.save(replace(store.add_night(), unix_s=begun, entries=(entry,), done=True))
    await scene.press("J")
    await scene.until(lambda: scene.page.startswith("Night 14"))
    await scene.shot("night-120x40")
    await scene.shot("watch-history-120x40")
    await scene.shot("night-80x24", (80, 24))
    await scene.press("end")
    await scene.shot("watch-history-80x24")
    await scene.press("escape")


async def _tune(scene: Scene) -> None:
    """Take pictures of a tune: its plan, its race, and what it has proven."""
    await scene.load("vllmany")
    for name, value in (("port", "8013"), ("max-num-seqs", "2")):
        scene.session.plans.set_flag(name, value)
    await scene.press("N", "tab", "tab")
    await scene.type("16")
    await scene.press("enter")
    await scene.until(lambda: scene.page.startswith("Tune of"))
    await scene.shot("tune-plan-120x40")
    await scene.press("end", "y")
    await scene.until(
        lambda: (s := scene.session.state.sweep) is not None and s.points[-1].label[:1] == "2"
    )
    await scene.shot("tune-race-120x40")
    await scene.shot("tune-race-80x24", (80, 24))
    await scene.until(
        lambda: (e := scene.session.state.experiment) is not None and e.completed_pairs >= 2
    )
    await scene.shot("tune-final-80x24")
    await scene.shot("tune-final-120x40", (120, 40))
    await scene.sweep_ends()
    await scene.shot("tuned-80x24", (80, 24))
    await scene.shot("tuned-120x40", (120, 40))
    await scene.press("escape")


async def _experiment(scene: Scene) -> None:
    """Take pictures of an A/B experiment about the power limit."""
    await scene.load("vllmany")
    await scene.start()
    await scene.bench("8", "tab", "1", "6")
    await scene.press("X")
    await scene.until(lambda: scene.page == "A/B experiment")
    await scene.press("tab")
    await scene.type("gpu.power-limit=400")
    await scene.shot("experiment-form-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.page == "These commands change the GPUs")
    await scene.press("pagedown", "pagedown", "enter")
    await scene.until(
        lambda: (e := scene.session.state.experiment) is not None and e.completed_pairs >= 2
    )
    await scene.until(lambda: scene.session.state.bench.running)
    await scene.shot("experiment-running-120x40")
    await scene.until(
        lambda: (e := scene.session.state.experiment) is not None and e.state != "running"
    )
    await scene.shot("experiment-120x40")
    await scene.press("escape")


async def _answers(scene: Scene) -> None:
    """Take pictures of the page about the answers before and after a change of the KV cache type."""
    await scene.load("vllmany")
    scene.session.plans.set_flag("port", "8007")  # other scenes run at the same time
    await scene.start()
    await scene.bench("8", "tab", "1", "6")
    before = scene.session.state.bench.last_id
    scene.session.plans.set_flag("kv-cache-dtype", "fp8")
    await scene.press("full_stop", "enter")
    await scene.until(
        lambda: scene.session.state.bench.last_id != before and not scene.session.state.busy
    )
    await scene.press("Q")
    await scene.until(lambda: scene.page == "Answers of A and B")
    await scene.shot("answers-120x40")
    await scene.shot("answers-80x24", (80, 24))
    await scene.press("escape")


_SPARKS = """[clusters.sparks]
nodes = ["sim:gb10@spark-01", "sim:gb10@spark-02"]
reserve_gib = 8
"""


async def _cluster(scene: Scene) -> None:
    """Take a picture of a server on two nodes under load."""
    session = scene.session
    await scene.until(lambda: bool(session.state.presets))
    await session.plans.load_preset("vllm-llama-3.3-70b-2x-spark")
    session.plans.set_flag("port", "8006")  # other scenes run at the same time
    await scene.start()
    await scene.loaded("cluster-120x40", streams=8)


async def _job(scene: Scene) -> None:
    """Take a picture of a server that runs as a batch job under load. This machine must have Slurm,
    which runs a simulated engine."""
    session = scene.session
    if (await session.host.run(["sh", "-c", "squeue"])).returncode != 0:
        return
    await scene.until(lambda: bool(session.state.presets))
    await session.plans.load_preset("vllm-qwen3-vl-2b-dp4")
    options = ["gpus=4", "walltime=8:00:00"]
    env = ["VLLM_API_KEY=secret"]
    session.plans.editor.apply_assignments(
        ["host=0.0.0.0", "port=8005"], [], env, run_as="slurm", run_options=options
    )
    session.plans.show_plan()
    await scene.start()
    await scene.loaded("job-120x40", streams=64)


async def _real(scene: Scene, model_a: str, model_b: str, port: str) -> None:
    """Take pictures of the comparison of two GGUF files on a real llama-server: the experiment with
    both halves of its verdict, and the page about the answers. Write its report too."""
    session = scene.session
    await session.plans.load_preset("llamacpp-gguf", {"model": model_a})
    for flag, value in (("port", port), ("ctx-size", "16384"), ("parallel", "8")):
        session.plans.set_flag(flag, value)
    await scene.start()
    await scene.bench("4")
    await scene.press("X")
    await scene.until(lambda: scene.page == "A/B experiment")
    await scene.press("tab")
    await scene.type(f"model={model_b}")
    await scene.shot("real-form-120x40")
    await scene.press("enter")
    await scene.until(
        lambda: (e := session.state.experiment) is not None and e.state != "running",
        within_s=_REAL_S,
    )
    await scene.shot("real-experiment-120x40")
    await scene.shot("real-experiment-80x24", (80, 24))
    await scene.press("escape", "Q")
    await scene.until(lambda: scene.page == "Answers of A and B")
    await scene.shot("real-answers-80x24")
    await scene.shot("real-answers-120x40", (120, 40))
    await scene.press("escape")
    experiment = session.state.experiment
    assert experiment is not None
    for form in ("html", "json"):
        text = await session.reports.report_text(form, experiment_id=experiment.id)
        scene.written.append(scene.folder / f"real-experiment.{form}")
        scene.written[-1].write_text(text, encoding="utf-8")


# The name of each scene, its host, and its steps. No two scenes use one port, because they run side
# by side.
SCENES: dict[str, tuple[str, Callable[[Scene], Awaitable[None]]]] = {
    "tuning": ("sim:four-pcie", _tuning),
    "experiment": ("sim:rtx-pro-6000", _experiment),
    "sweep": ("sim:rtx-pro-6000", _sweep),
    "tune": ("sim:rtx-pro-6000", _tune),
    "nights": ("sim:rtx-pro-6000", _nights),
    "concurrency": ("sim:rtx-pro-6000", _concurrency),
    "capacity": ("sim:rtx-pro-6000", _capacity),
    "settings": ("sim:rtx-pro-6000-passthrough", _settings),
    "preset": ("sim:rtx-5060ti-x2", _preset),
    "sparks": ("sim:gb10-x2", _two_sparks),
    "cluster": ("cluster:sparks", _cluster),
    "job": ("sim:four-pcie@login", _job),
    "alerts": ("sim:four-pcie", _alerts),
    "doctor": ("sim:rtx-5060ti-old-stack", _doctor),
    "answers": ("sim:rtx-pro-6000", _answers),
}


REAL = "real"  # the scene of a real llama-server
FLEET = "fleet"  # the scene of several hosts
_FLEET_HOSTS = (
    "sim:rtx-pro-6000@lab-1",
    "sim:rtx-pro-6000@lab-2",
    "sim:four-pcie@rack-1",
    "sim:four-pcie@rack-2",
    "sim:gb10@spark-1",
    "sim:gb10@spark-2",
    "sim:rtx-5060ti-x2@home",
    "sim:rtx-pro-6000-passthrough@vm",
)
_FLEET_SERVERS = (
    ("sim:rtx-pro-6000@lab-1", "vllm-any", "8010"),
    ("sim:four-pcie@rack-1", "vllm-qwen3-vl-2b-tp4-eager", "8011"),
)


async def _play_fleet(folder: Path) -> list[Path]:
    """Take pictures of a fleet of simulated hosts: two with servers under load, and one with
    altered GPU settings. Return their paths."""
    from workbench.model.settings import GpuSettings, parse_setting_argument
    from workbench.session.session import Session

    sessions = [Session.of_host(name) for name, _, _ in _FLEET_SERVERS]
    altered = Session.of_host(_FLEET_HOSTS[3])
    try:
        for session, (_, preset, port) in zip(sessions, _FLEET_SERVERS, strict=True):
            await session.link.connect()
            await session.plans.load_preset(preset)
            session.plans.set_flag("port", port)
            await session.servers.wait_ready(await session.servers.start())
        await altered.link.connect()
        await altered.gpu.apply_settings(GpuSettings(parse_setting_argument("power-limit=150")))
        loads = [
            asyncio.create_task(s.bench.benchmark_target(s.state.run_id, None, seconds=60.0))
            for s in sessions
        ]
        try:
            return await _fleet_shots(folder)
        finally:
            for session in sessions:
                await session.bench.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
    finally:
        for session in sessions:
            if session.state.run_id is not None:
                await session.servers.stop()
        await altered.gpu.revert_settings()  # else the guard stays to watch the settings
        for session in (*sessions, altered):
            await session.close()


async def _fleet_shots(folder: Path) -> list[Path]:
    from workbench.session.fleet.fleet import Fleet
    from workbench.tui.fleet.app import FleetApp
    from workbench.tui.fleet.screen import FleetView

    fleet, written = Fleet(_FLEET_HOSTS), []
    await fleet.open()
    try:
        app = FleetApp(fleet, FleetView(host=_FLEET_HOSTS[3]))
        async with app.run_test(size=(120, 40)) as pilot:
            deadline = time.monotonic() + _DEADLINE_S
            while (
                not all(h.is_live for h in fleet.state.hosts)
                or sum(bool(h.tok_s) for h in fleet.state.hosts) < 2
            ):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the fleet's picture could not be taken within {_DEADLINE_S:g} s"
                    )
                await asyncio.sleep(0.1)
            await asyncio.sleep(20.0)  # of the graphs
            for columns, rows in ((120, 40), (80, 24)):
                await pilot.resize_terminal(columns, rows)
                await asyncio.sleep(1.2)
                await pilot.pause()
                svg = app.export_screenshot(title="workbench fleet")
                written.append(write(plain_fonts(svg), folder / f"fleet-{columns}x{rows}"))
    finally:
        await fleet.close()
    return written


def take_all(folder: Path) -> Sequence[Path]:
    """Take every picture, write them into `folder`, and return their paths. The scenes, which take
    some of the pictures each, run at the same time in processes of their own. They do not touch the
    user's own files."""
    return asyncio.run(_take_all(folder))


async def _take_all(folder: Path) -> list[Path]:
    taken = await asyncio.gather(*(_take_in_child(folder, name) for name in (*SCENES, FLEET)))
    return [path for paths in taken for path in paths]


async def _take_in_child(folder: Path, name: str) -> list[Path]:
    """Run the scene `name`, which takes some of the pictures, in a new process, and return their
    paths. If the process fails, raise ServerError with the last line of its standard error."""
    argv = [sys.executable, __file__, str(folder), name]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    out, err = await child.communicate()
    if child.returncode:
        said = clean_text(err, lines=True).strip().splitlines()[-1:] or ["no message"]
        raise ServerError(
            f"the scene {name} ended with exit code {child.returncode}: {said[0]}",
            next_step="run it again",
        )
    return [Path(line) for line in out.decode().splitlines()]


def take(folder: Path, name: str) -> list[Path]:
    """Run the scene `name`, which takes some of the pictures, write them into `folder`, and return
    their paths."""
    with _own_directories():
        if name == FLEET:
            return asyncio.run(_play_fleet(folder))
        host, play = SCENES[name]
        return asyncio.run(_play(folder, host, play))


def take_real(folder: Path, llama_server: str, model_a: str, model_b: str, port: str) -> list[Path]:
    """Run the scene about a real llama-server on this machine. Return the paths of its pictures."""
    found = os.pathsep.join([str(Path(llama_server).resolve().parent), os.environ["PATH"]])

    async def play(scene: Scene) -> None:
        await _real(scene, model_a, model_b, port)

    with _own_directories():
        os.environ["PATH"] = found
        return asyncio.run(_play(folder, "local", play))


async def _play(folder: Path, host: str, play: Callable[[Scene], Awaitable[None]]) -> list[Path]:
    from workbench.session.session import Session
    from workbench.tui.app import WorkbenchApp

    session = Session.of_host(host)
    app = WorkbenchApp(session)
    async with app.run_test(size=(120, 40)) as pilot:
        scene = Scene(session, pilot, folder)
        await scene.until(lambda: session.state.host.link == "connected")
        try:
            await play(scene)
        finally:
            for status in session.state.servers:
                if status.state in _ALIVE:
                    await session.servers.stop(status.run_id)
        return scene.written


@contextmanager
def _own_directories() -> Iterator[None]:
    names = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "WORKBENCH_SIM_START_S")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="workbench-pictures-") as folder:
        os.environ.update({name: f"{folder}/{name.lower()}" for name in names[:-1]})
        paths.hosts_file().parent.mkdir(parents=True)
        paths.hosts_file().write_text(_SPARKS, encoding="utf-8")
        os.environ["WORKBENCH_SIM_START_S"] = "5"  # long enough for a picture of a starting server
        _move_from_used_ports()
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _move_from_used_ports() -> None:
    """Find the shipped presets whose port is in use on this machine. Save a copy of each, with a
    free port, among the user's own presets."""
    for preset in paths.shipped_presets_dir().glob("*.toml"):
        text = preset.read_text(encoding="utf-8")
        found = re.search(r"^port = (\d+)$", text, re.MULTILINE)
        if found is None or _bound(int(found[1])) is not None:
            continue
        own = paths.own_presets_dir() / preset.name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(text.replace(found[0], f"port = {_bound(0)}"), encoding="utf-8")


def _bound(port: int) -> int | None:
    """Return `port` if a TCP socket on 127.0.0.1 can be bound to it, otherwise None. For `port` 0,
    return the number of a free port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return None
        return int(one.getsockname()[1])


def main(arguments: Sequence[str]) -> None:
    """Take the pictures of one scene, or of all, and print their paths."""
    folder, *scene = arguments
    if scene[:1] == [REAL]:
        taken: Sequence[Path] = take_real(Path(folder), *scene[1:])
    else:
        taken = take(Path(folder), scene[0]) if scene else take_all(Path(folder))
    for path in taken:
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
