"""The page of the alerts, and what an alert does to the terminal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.model.alerts import RULES, Alert, RuleView
from workbench.store.config_schema import AlertsConfig
from workbench.tui import alert_signals, textual_private
from workbench.tui.alert_signals import desktop_notification_problem, notification_sequence
from workbench.tui.pages.alerts import rule_state_text

HOT = Alert(
    3,
    1_795_845_600.0,
    "temperature",
    "begin",
    "GPU0-3 is hot: 3 °C left until it slows down",
    "box",
    effects=frozenset({"bell", "desktop", "title"}),
)
EFFECTS = ("bell", "mark", "title")


def views() -> list[RuleView]:
    """Return the state of each rule: one is active, one pending, one off, some have no value."""
    told = {
        "temperature": RuleView(
            RULES["temperature"],
            RULES["temperature"].limits,
            EFFECTS,
            "active",
            31.0,
            "GPU0-3",
            3.0,
        ),
        "queue": RuleView(
            RULES["queue"], RULES["queue"].limits, EFFECTS, "pending", 4.0, "", 144.0
        ),
        "gpu-lost": RuleView(RULES["gpu-lost"], RULES["gpu-lost"].limits),
        "server-ready": RuleView(RULES["server-ready"], None, EFFECTS, "happened", 75.0),
    }
    return [told.get(n, RuleView(rule, rule.limits, EFFECTS)) for n, rule in RULES.items()]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_page_begins_with_what_is_wrong_now(drive: Any, size: tuple[int, int]) -> None:
    async def scenario(d: Any) -> None:
        d.session.alerts.rule_rows = views
        d.session.alerts.config = AlertsConfig(webhook=("all",))
        d.session.push(alerts=(HOT,))
        await d.press("exclamation_mark")
        text = d.text
        assert "Alerts of four-pcie" in text and "no webhook_url is set" in text
        rows = [row for row in text.splitlines() if "for 31s" in row or "of 15s" in row]
        assert "active for 31s: GPU0-3 3 °C left" in rows[0]
        assert "pending for 4s of 15s: 144 requests" in rows[1]
        assert text.index("active for") < text.index("heat-slowdown")
        assert ("bell mark title" in rows[0]) is (size[0] == 120)
        await d.press("end")
        assert "series-done" in d.text
        await d.press("t")
        assert d.session.called("test_alert")

    drive(scenario, size=size)


def test_an_event_rule_without_an_alert_does_not_say_that_nothing_happened() -> None:
    """It was off when its event happened."""
    view = RuleView(RULES["server-ready"], None, EFFECTS)
    assert rule_state_text(view) == "not among the last alerts"


def test_new_alerts_ring_once(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(d: Any) -> None:
        rung: list[str] = []
        monkeypatch.setattr(d.app, "bell", lambda: rung.append("bell"))
        monkeypatch.setattr(
            alert_signals, "write_control_sequence", lambda app, text: rung.append(text)
        )
        monkeypatch.delenv("TMUX", raising=False)
        monkeypatch.delenv("STY", raising=False)
        d.session.push(alerts=(HOT,))
        await d.until(lambda: len(rung) == 3, "an alert")
        assert rung[0] == "bell" and rung[1].startswith("\x1b]9;Workbench: box: GPU0-3 is hot")
        assert rung[2].startswith("\x1b[22;2t\x1b]2;box: GPU0-3 is hot")
        over = Alert(4, 0.0, "temperature", "end", "cooler", "box", effects=frozenset({"title"}))
        d.session.push(alerts=(HOT, over))
        await d.until(lambda: len(rung) == 4, "the end of the alert")
        assert rung[3] == "\x1b[23;2t"

    drive(scenario)


def test_the_title_names_what_is_still_active(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(
        alert_signals, "write_control_sequence", lambda app, text: written.append(text)
    )
    signals = alert_signals.AlertSignals(SimpleNamespace(app=None))  # type: ignore[arg-type]
    title = frozenset({"title"})
    told = [
        Alert(1, 0.0, "temperature", "begin", "GPU0 is hot", "box", False, title, (0,)),
        Alert(2, 0.0, "temperature", "begin", "GPU1 is hot", "box", False, title, (1,)),
        Alert(3, 0.0, "temperature", "end", "GPU1 is cooler", "box", False, title, (1,)),
    ]
    for number in range(3):
        signals.signal_new_alerts(told[: number + 1])
    assert "box: GPU1 is hot" in written[1] and "box: GPU0 is hot" in written[2]
    signals.restore_window_title()
    assert written[-1] == "\x1b[23;2t"


def test_a_title_of_simulated_data_says_so_and_no_text_controls_the_terminal() -> None:
    alert = Alert(1, 0.0, "queue", "begin", "12 wait\x1b]0;x\x07", "box\r\n", simulated=True)
    text = notification_sequence(alert.message, {})
    assert text == "\x1b]9;SIMULATED box : 12 wait\x07"
    inside = notification_sequence("hot", {"TMUX": "/tmp/x,1,0"})
    assert inside == "\x1bPtmux;\x1b\x1b]9;hot\x07\x1b\\"
    assert notification_sequence("hot", {"STY": "1.x"}) == ""


@pytest.mark.parametrize(
    ("env", "said", "problem"),
    [
        ({}, None, ""),
        ({"STY": "1"}, None, alert_signals.NOT_IN_SCREEN),
        ({"TMUX": "x"}, "off", alert_signals.TMUX_IS_CLOSED),
        ({"TMUX": "x"}, "on", ""),
        ({"TMUX": "x"}, None, ""),  # an older tmux passes everything on
    ],
)
def test_why_no_notification_can_arrive(
    env: dict[str, str], said: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(arguments: object) -> str | None:
        return said

    monkeypatch.setattr(alert_signals, "run_tmux_and_read_output", ask)
    assert asyncio.run(desktop_notification_problem(env)) == problem


def test_a_control_sequence_goes_to_the_driver() -> None:
    written: list[str] = []
    app = SimpleNamespace(_driver=SimpleNamespace(write=written.append), is_headless=False)
    textual_private.write_control_sequence(app, "\x1b]2;x\x07")  # type: ignore[arg-type]
    textual_private.write_control_sequence(app, "")  # type: ignore[arg-type]
    assert written == ["\x1b]2;x\x07"]
