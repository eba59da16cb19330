"""The alerts of a session: what config.toml turns on, what the state's changes raise, and what
leaves the program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.hosts.local import LocalHost
from workbench.model.alerts import BELL, EFFECTS, RULES, AlertLimits
from workbench.model.engine_live import EngineView
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.measurement_owner import MeasurementOwner
from workbench.model.secrets import mask_text, remembered_secrets
from workbench.model.series_state import SeriesState
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.timeline import EventKind
from workbench.session.alerts import alerts as alerts_module
from workbench.session.alerts.alerts import Alerts
from workbench.session.history.telemetry_watch import TelemetryWatch
from workbench.session.history.timeline import Timeline
from workbench.session.state import BenchState
from workbench.session.state_holder import StateHolder
from workbench.store.config import ConfigStore
from workbench.store.config_schema import AlertsConfig, check_config

URL, TOKEN = "https://hooks.example/services/T0/B0/s3cr3tpath", "t0ken-of-mine"
ALL = ("all",)


class Part:
    """The alerts of a host that is not connected, with a clock of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(alerts_module.time, "monotonic", lambda: self.now_s)
        self.core = StateHolder(LocalHost())
        self.telemetry = TelemetryWatch(self.core)
        self.timeline = Timeline(self.core, self.telemetry)
        self.config = ConfigStore(path / "config.toml")
        self.alerts = Alerts(self.core, self.telemetry, self.timeline, self.config)

    def read(self, *celsius: float, simulated: bool = False, **fields: Any) -> None:
        """Let a reading arrive, a second after the one before. Each GPU has `fields` too."""
        self.now_s += 1.0
        count = len(celsius)
        reading = Telemetry(
            self.now_s,
            0.0,
            DriverInfo(),
            HostSample(),
            self._infos(count),
            tuple(
                GpuSample(i, f"GPU-{i}", temperature_c=c, **fields) for i, c in enumerate(celsius)
            ),
            simulated,
        )
        self.core.update(telemetry=reading)
        for hear in self.telemetry.on_reading:
            hear(reading)

    def _infos(self, count: int) -> tuple[GpuInfo, ...]:
        return tuple(
            GpuInfo(i, f"GPU-{i}", "NVIDIA A100", temperature_slowdown_c=90.0) for i in range(count)
        )

    @property
    def texts(self) -> list[str]:
        return [alert.text for alert in self.core.state.alerts]


def on(
    scenario: Callable[[Part], Awaitable[None]], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await scenario(Part(path, monkeypatch))

    asyncio.run(main())


def server(state: ServerState, **fields: Any) -> ServerStatus:
    return ServerStatus("20261129-1-vllm-aa", "vllm", state, "local", port=8000, **fields)


def test_by_default_only_servers_ring_and_no_reading_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig())
        assert [
            hear for hear in part.telemetry.on_reading if hear == part.alerts._check_rules
        ] == []
        part.core.update(servers=(server(ServerState.READY),))  # adopted: no news
        part.core.update(servers=(server(ServerState.UNKNOWN),))  # the link is lost
        part.core.update(servers=(server(ServerState.READY),))
        assert part.texts == []
        part.core.update(servers=(server(ServerState.CRASHED, reason="CUDA out of memory"),))
        (alert,) = part.core.state.alerts
        assert alert.text == "vllm :8000 ended unexpectedly: CUDA out of memory"
        assert alert.effects == {"bell"} and alert.message.startswith("local: vllm")
        assert part.timeline.history.events == []

    on(scenario, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("before", "now", "rule"),
    [
        (ServerState.STARTING, ServerState.READY, "server-ready"),
        (ServerState.STARTING, ServerState.FAILED, "server-failed"),
        (ServerState.READY, ServerState.CRASHED, "server-ended"),
        (ServerState.READY, ServerState.UNRESPONSIVE, "server-silent"),
        (ServerState.UNRESPONSIVE, ServerState.READY, None),
        (ServerState.READY, ServerState.STOPPED, None),
    ],
)
def test_what_became_of_a_server(
    before: ServerState,
    now: ServerState,
    rule: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig(title=ALL))
        part.core.update(servers=(server(before),))
        part.core.update(servers=(server(now),))
        part.core.update(servers=(server(now),))
        assert [alert.rule for alert in part.core.state.alerts] == ([rule] if rule else [])

    on(scenario, tmp_path, monkeypatch)


def test_hot_gpus_raise_one_alert_with_a_mark_that_says_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig(bell=(), mark=ALL, title=("temperature",)))
        for _ in range(15):
            part.read(86.0, 87.0, 86.0, simulated=True)
        (alert,) = part.core.state.alerts
        assert alert.message == "SIMULATED local: GPU0-2 is hot: 3 °C left until it slows down"
        assert alert.effects == {"mark", "title"} and alert.gpus == (0, 1, 2)
        marks = [(event.kind, event.text) for event in part.timeline.history.events]
        assert marks == [(EventKind.ALERT, alert.text)]
        row = next(row for row in part.alerts.rule_rows() if row.rule.name == "temperature")
        assert (row.state, row.where, row.value) == ("active", "GPU0-2", 3.0)
        assert [row.rule.name for row in part.alerts.rule_rows() if row.state == "active"] == [
            "temperature"
        ]
        part.read(50.0, 50.0, 50.0)
        assert [alert.phase for alert in part.core.state.alerts] == ["begin", "end"]
        assert part.core.state.alerts[-1].effects == {"title"}
        assert len(part.timeline.history.events) == 1

    on(scenario, tmp_path, monkeypatch)


def test_an_error_of_a_gpu_is_told_by_its_number_and_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig(bell=(), title=("gpu-error",)))
        for xid in (0, 0, 79, 79, 0, 0):
            part.read(50.0, xid=xid)
        (alert,) = part.core.state.alerts
        assert (alert.text, alert.phase) == ("GPU0 reported the error Xid 79", "once")

    on(scenario, tmp_path, monkeypatch)


def test_a_server_that_answers_now_and_then_does_not_ring_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig(bell=ALL))
        told = []
        for _ in range(14):
            part.now_s += 5.0
            part.core.update(servers=(server(ServerState.READY),))
            part.core.update(servers=(server(ServerState.UNRESPONSIVE),))
            told.append(len(part.texts))
        assert told[1] == told[11] == 1 and told[-1] == 2

    on(scenario, tmp_path, monkeypatch)


def test_an_alert_ends_when_its_server_is_gone_or_its_rule_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        limits = {"queue": AlertLimits(10.0, 2.0, 0.0)}
        part.alerts.apply_alerts_config(
            AlertsConfig(bell=(), title=("queue", "temperature"), limits=limits)
        )
        part.core.update(engine=EngineView("run-1", "vLLM :8000", {"waiting": 40.0}))
        for _ in range(12):
            part.read(88.0)
        assert [alert.rule for alert in part.core.state.alerts] == ["queue", "temperature"]
        part.core.update(engine=None)
        part.read(88.0)
        ended = part.core.state.alerts[-1]
        assert (ended.rule, ended.phase) == ("queue", "end")
        assert ended.text == "no longer watched: requests wait at the server"
        part.alerts.apply_alerts_config(AlertsConfig(bell=()))
        assert part.texts[-1] == "no longer watched: degrees left until the GPU slows down (GPU0)"
        assert len(part.texts) == 4

    on(scenario, tmp_path, monkeypatch)


def test_the_path_of_a_webhook_masks_no_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        url = "https://ntfy.example/unexpectedly"
        part.alerts.apply_alerts_config(AlertsConfig(bell=ALL, webhook_url=url))
        part.core.update(servers=(server(ServerState.READY),))
        part.core.update(servers=(server(ServerState.CRASHED, reason=f"read {url}"),))
        assert part.texts == ["vllm :8000 ended unexpectedly: read ***"]
        part.core.update(servers=(server(ServerState.READY),))
        hostile = f"\x1b]0;title\x07{'x' * 440}{url}{'y' * 9000}"
        part.core.update(servers=(server(ServerState.CRASHED, reason=hostile),))
        text = part.texts[-1]
        assert len(text) < 550 and text.endswith("more characters") and text.isprintable()
        assert "https" not in text

    on(scenario, tmp_path, monkeypatch)


def test_a_benchmark_is_told_but_not_each_one_of_a_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.fake_canned import canned_experiment

    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig(bell=ALL))
        part.core.update(bench=BenchState(running=True))
        part.core.update(bench=BenchState(stored_id=7))
        assert part.texts == ["the benchmark of a server has ended: result 7"]
        running = replace(canned_experiment(), id=3, state=SeriesState.RUNNING, verdict="")
        part.core.update(experiment=running)
        part.core.update(bench=BenchState(running=True))
        part.core.update(bench=BenchState(stored_id=8))
        ended = replace(running, state=SeriesState.DONE, verdict="B is faster by 3 %.")
        part.core.update(experiment=ended)
        part.core.update(experiment=replace(ended, id=2))  # an older one is shown
        assert part.texts[1:] == ["experiment 3: B is faster by 3 %."]

    on(scenario, tmp_path, monkeypatch)


def test_a_webhook_gets_the_alert_and_its_secrets_are_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        config = AlertsConfig(bell=(), webhook=ALL, webhook_url=URL, webhook_token=TOKEN)
        part.alerts.apply_alerts_config(config)
        sent: list[dict[str, Any]] = []
        hook = part.alerts.webhook
        assert hook is not None
        monkeypatch.setattr(hook, "send", lambda one: sent.append(json.loads(json.dumps(one))))
        for _ in range(12):
            part.read(88.0)
        assert sent[0]["text"] == "local: GPU0 is hot: 2 °C left until it slows down"
        assert (sent[0]["rule"], sent[0]["phase"], sent[0]["gpus"]) == ("temperature", "begin", [0])
        assert (sent[0]["value"], sent[0]["unit"], sent[0]["host"]) == (2.0, "°C left", "local")
        text = mask_text(f"POST {URL} with {TOKEN}", remembered_secrets())
        assert "s3cr3tpath" not in text and TOKEN not in text
        six = replace(config, webhook_url="http://me:s3cr3t@[::1]:9990/x")
        assert six.masked_webhook_url == "http://[::1]:9990/***"
        masked = str(config.with_masked_secrets)
        assert "https://hooks.example/***" in masked
        assert "s3cr3tpath" not in masked and TOKEN not in masked

    on(scenario, tmp_path, monkeypatch)


def test_one_key_turns_all_rules_on_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(part: Part) -> None:
        part.config.path.write_text('# mine\n[alerts]\nwebhook_url = "https://x.example/"\n')
        part.alerts.switch_all(True)
        assert part.alerts.are_all_on
        assert ConfigStore(part.config.path).config.alerts.mark == ALL
        part.alerts.raise_test_alert()
        assert part.core.state.alerts[-1].effects == {"bell", "mark", "title"}
        part.alerts.switch_all(False)
        assert part.alerts.config.bell == BELL and not part.alerts.are_all_on
        part.config.path.write_text('# mine\n[alerts]\nbell = ["queue"]\n')
        part.alerts.switch_all(True)
        part.alerts.switch_all(False)
        assert part.alerts.config.bell == ("queue",) and part.alerts.config.mark == ()
        assert "# mine" in part.config.path.read_text()

    on(scenario, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("alerts", "problem"),
    [
        ({effect: ["all", "kv-cache"] for effect in EFFECTS}, None),
        ({"bell": ["queue", "fire"]}, "fire is no rule: one of all, heat-slowdown"),
        ({"bell": "all"}, None),
        ({"bell": "queue"}, "a list is expected"),
        ({"webhook_url": "ftp://x/s3cr3t"}, "an address such as https://HOST/PATH is expected"),
        ({"webhook_url": "https://[::1/s3cr3t"}, "an address such as"),
        ({"webhook_url": "https://x/\ns3cr3t"}, "an address such as"),
        ({"webhook_token": "s3cr3t\r\nX: y"}, "text of ASCII characters"),
        ({"limits": {"kv-cache": {"begin": 80}}}, "begin (80) must be above end (85)"),
        ({"limits": {"temperature": {"end": 2}}}, "begin (5) must be below end (2)"),
        ({"limits": {"kv-cache": {"begin": 101}}}, "a number from 0 to 100 is expected"),
        ({"limits": {"gpu-lost": {"for_s": 5}}}, None),
    ],
)
def test_a_wrong_setting_is_named_without_a_secret(
    alerts: dict[str, Any], problem: str | None
) -> None:
    config, problems = check_config({"alerts": alerts})
    assert [text for _, text in problems if text is not None] == (
        [text for _, text in problems if problem in (text or "")] if problem else []
    )
    assert bool(problems) is (problem is not None)
    assert "s3cr3t" not in str(problems)
    limits = {**{name: rule.limits for name, rule in RULES.items()}, **config.alerts.limits}
    assert all(one is None or one.begin != one.end for one in limits.values())


@pytest.mark.parametrize(
    ("what", "rules"),
    [
        ("a benchmark of run r1", ["benchmark-done"]),
        ("experiment 7", ["series-done"]),
        ("a comparison of answers", []),
    ],
)
def test_the_end_of_what_a_command_measures_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, rules: list[str]
) -> None:
    """An experiment that a command ran in a shell ended without an alert."""

    async def scenario(part: Part) -> None:
        part.alerts.apply_alerts_config(AlertsConfig(mark=ALL))
        owner = MeasurementOwner(what, "ada", "elsewhere", 1.0, 42)
        part.core.update_host(measured_by=owner)
        assert not part.texts
        part.core.update_host(measured_by=None)
        assert [alert.rule for alert in part.core.state.alerts] == rules
        assert part.texts == [f"{what} by ada from elsewhere has ended"] * len(rules)

    on(scenario, tmp_path, monkeypatch)
