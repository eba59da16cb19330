"""The screen in each state, as text grids."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_session import FakeSession
from support.grid import check

from workbench.model.engine_live import EngineView
from workbench.model.gpu import DriverInfo, DriverStatus, GpuState
from workbench.model.server_run import ServerState
from workbench.session.state import HostView, SessionState
from workbench.tui.theme import style

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}
STATES = [
    ("empty", None, 1, ()),
    ("plan", "plan", 1, ("2",)),
    ("ready", "ready", 4, ("3",)),
    ("benching", "benching", 4, ("4",)),
    ("compare", "compare", 4, ("5",)),
    ("altered", "altered", 1, ("6",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stage", "gpus", "keys"), STATES, ids=[s[0] for s in STATES])
def test_grid(drive: Any, name: str, stage: str | None, gpus: int, keys: tuple[str, ...]) -> None:
    async def scenario(d: Any) -> None:
        await d.press(*keys)
        for size, (columns, rows) in SIZES.items():
            await d.pilot.resize_terminal(columns, rows)
            await d.pilot.pause()
            check(f"{name}-{size}", d.text)

    drive(scenario, stage=stage, gpus=gpus)


@pytest.mark.parametrize(
    "name, keys", [("start-plan", "s"), ("flag-edit", "enter"), ("help", "f1")]
)
def test_grid_of_modals(drive: Any, name: str, keys: str) -> None:
    async def scenario(d: Any) -> None:
        await d.press("2", keys)
        check(f"{name}-80x24", d.text)

    drive(scenario, stage="plan", size=(80, 24))


def test_the_status_bar_says_simulated_at_every_size(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for size in [*SIZES.values(), (79, 23), (40, 12), (100, 20), (99, 60)]:
            await d.pilot.resize_terminal(*size)
            await d.pilot.pause()
            assert d.row(0).endswith(" SIMULATED"), size

    drive(scenario, stage="altered")


def test_simulated_is_reversed_not_only_coloured(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        strip = d.app.main.status_bar.render_line(0)
        assert [s.style.reverse for s in strip if "SIMULATED" in s.text] == [True]

    drive(scenario)


def test_it_is_not_there_on_a_real_host(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        assert "SIMULATED" not in d.text

    drive(scenario, session=FakeSession(simulated=False))


def test_every_pane_names_the_next_key_when_empty(drive: Any) -> None:
    session = FakeSession()
    session.state = replace(session.state, presets=(), presets_read=True)

    async def scenario(d: Any) -> None:
        said = (
            "No presets.",
            "pick a preset",
            "No server has run yet.",
            "No results yet. Press s",
            "Nothing to compare",
        )
        assert [words for words in said if words not in d.text] == []

    drive(scenario, session=session, size=(200, 60))


def test_before_the_results_are_read_nobody_says_that_there_are_none(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(results_read=False)
        await d.press("4")
        await d.until(lambda: "The stored results are not read yet." in d.text)
        d.session.push(results_read=True)
        await d.until(lambda: "No results yet. Press s" in d.text)

    drive(scenario)


def test_absent_values_are_not_given_as_zero_and_have_a_reason(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        # no GPU here gives it: no cell in the strip, the reason on page 6
        assert "fan" not in d.row(2) + d.row(3)
        await d.press("6")
        assert "n/a (not supported): fan" in d.text

    drive(scenario)


def test_a_metric_that_the_engine_does_not_report_has_a_reason(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        absent = {"kv_use_pct": "no metric vllm:kv_cache_usage_perc"}
        d.session.push(engine=EngineView("r1", "vLLM :8000", {"running": 3.0}, absent))
        await d.press("6")
        await d.until(lambda: "n/a (no metric vllm:kv_cache_usage_perc): KV cache use" in d.text)

    drive(scenario, size=(200, 60))


def test_a_value_that_one_of_two_gpus_does_not_give_is_na(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        telemetry = d.session.telemetry()
        silent = replace(telemetry.gpus[1], power_w=None, absent={"power_w": "not supported"})
        d.session.push(
            telemetry=replace(telemetry, gpus=(telemetry.gpus[0], silent), t_s=telemetry.t_s + 1)
        )
        await d.until(lambda: "n/a" in d.text)
        power = [row for row in d.text.splitlines() if " power " in row]
        assert ["n/a" in row for row in power] == [False, True]

    drive(scenario, gpus=2)


def test_before_the_host_was_asked_nobody_says_that_it_has_no_server(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(servers_read=False, servers=(), run_id=None)
        await d.until(lambda: "looking for servers" in d.row(0))
        await d.press("3")
        assert "no server" not in d.text and "No server has run yet" not in d.text
        for key, need in (
            ("S", "a sweep needs a server that is READY"),
            ("b", "a benchmark needs a"),
        ):
            await d.press(key)
            await d.until(lambda need=need: need in d.text)
            assert "Workbench still looks for servers" in d.text and "there is no" not in d.text
        d.session.push(servers_read=True)
        await d.until(lambda: "looking for servers" not in d.text and "no server" in d.row(0))

    drive(scenario)


def test_readings_of_a_long_interval_are_stale_when_three_are_missing(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(telemetry_interval_s=10.0, telemetry_monotonic_s=time.monotonic() - 36)
        await d.until(lambda: "STALE 3" in d.row(0))
        d.session.push(telemetry_monotonic_s=time.monotonic() - 14.2)
        await d.until(lambda: "STALE" not in d.row(0))

    drive(scenario)


def test_stale_telemetry_says_its_age(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(telemetry_monotonic_s=time.monotonic() - 14.2)
        await d.until(
            lambda: all(
                re.search(
                    r"STALE (1[4-9]|[2-9]\d) "
                    r"s",
                    d.row(row),
                )
                for row in (0, 1)
            )
        )
        util = d.app.main.strip.render_line(1)
        styles = {s.style.color.name for s in util if s.style and "%" in s.text}
        assert styles == {style("dim").color.name}  # not live

    drive(scenario)


def test_a_lost_gpu_leaves_the_others_live(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        telemetry = d.session.telemetry()
        lost = replace(
            telemetry.gpus[1],
            state=GpuState.LOST,
            message="GPU is lost: XID 79, reset it or reboot",
        )
        gpus = (telemetry.gpus[0], lost, *telemetry.gpus[2:])
        d.session.push(telemetry=replace(telemetry, gpus=gpus, t_s=telemetry.t_s + 1))

        def blocks() -> list[str]:
            return [d.row(row) for row in range(2, 10, 2)]

        await d.until(lambda: "GPU1" in blocks()[1] and "XID 79" in blocks()[1])
        assert [row.count("util") for row in blocks()] == [1, 0, 1, 1]

    drive(scenario, gpus=4)


def test_a_driver_that_does_not_answer_says_why(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for number, status in enumerate(s for s in DriverStatus if s is not DriverStatus.OK):
            driver = DriverInfo(status, f"what to do {number}")
            d.session.push(
                telemetry=replace(
                    d.session.telemetry(), driver=driver, gpus=(), infos=(), t_s=number
                )
            )
            await d.until(lambda status=status: f"x GPUs: {status}" in d.text, str(status))
            assert f"what to do {number}" in d.text

    drive(scenario)


def test_a_lost_link_shows_age_and_retry(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        host = HostView("box", "ssh", "lost", lost_since_unix_s=time.time() - 12, retries=3)
        d.session.push(host=host)
        await d.until(lambda: re.search("LINK LOST 1[2-7]s retry 3", d.row(0)))

    drive(scenario, session=FakeSession(simulated=False), size=(120, 40))


def test_eight_gpus_get_a_row_each_where_there_is_room(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        assert d.row(1).startswith("8 x ")
        await d.press("F")
        await d.until(lambda: [d.row(n)[:4] for n in range(2, 10)] == [f"GPU{n}" for n in range(8)])

    drive(scenario, gpus=8)


def test_no_command_shows_a_secret(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("s")
        assert "hf_secret" not in d.text and "HF_TOKEN" in d.text
        await d.press("escape", "v")
        assert "hf_secret" not in d.text
        await d.press("escape")
        assert "hf_secret" not in d.text

    drive(scenario, stage="plan")


@pytest.mark.slow
def test_narrow_and_wide_and_back(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for size in ((79, 23), (200, 60), (80, 24), (120, 40), (30, 8), (120, 40)):
            await d.pilot.resize_terminal(*size)
            await d.pilot.pause()
            assert len(d.text.splitlines()) == size[1]
        await d.until(lambda: "╭─ 1 Presets" in d.text and "╭─ 5 Compare" in d.text)
        await d.pilot.resize_terminal(79, 23)
        await d.pilot.pause()
        shown = {1: "dp4", 2: "max-num-seqs", 3: "vLLM API", 4: "tok/s", 5: "better", 6: "driver"}
        for number, words in shown.items():
            await d.press(str(number))
            assert words in d.text, number
        await d.press("2", "tab")
        assert d.app.main.panes.active == "log"

    drive(scenario, stage="compare")


def test_zoom_and_back(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("4", "z")
        assert "5 Compare" not in d.text
        await d.press("z")
        assert "5 Compare" in d.text

    drive(scenario, stage="compare")


def test_failed_requests_are_shown_beside_the_metrics(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(results=(d.session.row(1, "x", 10.0, requests_ok=500, requests_failed=12),))
        await d.until(lambda: "12/512" in d.text)

    drive(scenario, stage="ready", size=(200, 60))


def test_every_server_state_has_a_word(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for state in ServerState:
            d.session.show_server(state)
            await d.until(lambda state=state: str(state) in d.row(0).lower(), state)

    drive(scenario, stage="plan")


def test_all_fields_of_the_state_are_drawn_from() -> None:
    """A new field must be given a place on the screen."""
    from workbench import tui

    text = "".join(path.read_text() for path in Path(tui.__file__).parent.rglob("*.py"))
    # says that there are new lines, and no more
    fields = set(SessionState.__dataclass_fields__) - {"log_revision"}
    assert not [f for f in fields if not re.search(rf"state\.{f}\b", text)]


def test_the_list_of_runs_shows_whole_ids_on_a_narrow_screen(drive: Any) -> None:
    """At 80 columns the model was shown in full and the id was cut."""

    async def scenario(d: Any) -> None:
        server = d.session.state.server
        runs = tuple(
            replace(server, run_id=f"{server.run_id}-{n}", model="organization/" + "m" * 60)
            for n in range(3)
        )
        d.session.push(servers=runs, run_id=runs[0].run_id)
        await d.press("3", "o")
        await d.until(lambda: "Server runs" in d.text)
        assert all(f" {run.run_id}  " in d.text for run in runs), d.text

    drive(scenario, stage="ready", size=(80, 24))


def test_the_first_benchmark_is_not_called_as_before(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        assert not d.session.bench.asked
        await d.press("b")
        await d.until(lambda: "< standard >" in d.text)
        assert "Workbench's standard" in d.text
        await d.press("escape")
        await d.session.bench.benchmark_selected_run()
        await d.press("b")
        await d.until(lambda: "< as before >" in d.text)

    drive(scenario, stage="ready")


def test_a_lost_link_speaks_of_a_server_only_if_there_is_one(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        host = replace(
            d.session.state.host, link="lost", lost_since_unix_s=time.time() - 5, retries=2
        )
        d.session.push(host=host)
        await d.until(lambda: "LINK LOST" in d.row(0) and "server keeps running" in d.row(0))
        d.session.push(servers=(), run_id=None)
        await d.until(lambda: "LINK LOST" in d.row(0) and "keeps running" not in d.row(0))

    drive(scenario, stage="ready")
