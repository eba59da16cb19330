"""The alerts of a session: which rules are on, what state they are in, and what they raised."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.model.alerts import (
    ALL,
    EFFECTS,
    END,
    KEPT,
    ONCE,
    RULES,
    Alert,
    RuleView,
    alert_limits_by_rule,
)
from workbench.model.counts import gpus_text
from workbench.model.secrets import mask_text, remember_secrets, remembered_secrets
from workbench.model.timeline import EventKind
from workbench.model.untrusted_text import clean_text
from workbench.session.alerts.events import WATCHED_FIELDS, EventWatch
from workbench.store.config import ConfigStore
from workbench.store.config_schema import AlertsConfig

if TYPE_CHECKING:
    from workbench.advisor.alert_watch import AlertChange, AlertWatch
    from workbench.model.gpu import Telemetry
    from workbench.session.alerts.webhook import Webhook
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.history.timeline import Timeline
    from workbench.session.state import SessionState
    from workbench.session.state_holder import StateHolder

_FOLLOWED_FIELDS = WATCHED_FIELDS | {"gpu_findings"}
_MAX_TEXT_CHARACTERS = 500  # chat services refuse texts that are much longer
TEST_RULE = "test"  # the rule of an alert that the user asked for
SWITCHED_EFFECTS = ("bell", "mark", "title")  # the effects that `switch_all` sets
_RULES_MARKED_ELSEWHERE = frozenset(rule.name for rule in RULES.values() if rule.marked)


class Alerts:
    """Raises the alerts that config.toml asks for, on the session's host, and puts them into
    `state.alerts`. The screen rings for them; the mark and the webhook are made here. Without a
    measured rule that is on, no reading costs anything."""

    def __init__(
        self, core: StateHolder, telemetry: TelemetryWatch, timeline: Timeline, config: ConfigStore
    ) -> None:
        self._core, self._telemetry, self._timeline = core, telemetry, timeline
        self._store = config
        self._number = 0
        self._watch: AlertWatch | None = None
        self._capped: frozenset[int] = frozenset()
        self._before: dict[str, list[str]] = {}  # what `switch_all` replaced in config.toml
        self.webhook: Webhook | None = None
        self.apply_alerts_config(AlertsConfig())
        core.subscribe(self._raise_alerts_of_change)

    def apply_alerts_config(self, config: AlertsConfig) -> None:
        """Raise alerts as `config` says from now on."""
        if self._watch is not None and self._core.state.telemetry is not None:
            for change in self._watch.end_all_alerts(time.monotonic()):
                if change.rings:
                    self._raise_alert_of_change(change, self._core.state.telemetry)
        self.config = config
        remember_secrets(config.secrets)
        self.webhook = None
        if config.webhook_url:
            from workbench.session.alerts.webhook import Webhook

            self.webhook = Webhook(config.webhook_url, config.webhook_token, self._core.spawn)
        self._effects = {name: self._enabled_effects_of_rule(name) for name in RULES}
        self._restart_alert_watch()

    def _enabled_effects_of_rule(self, rule: str) -> tuple[str, ...]:
        """Return the effects that are on for a rule."""
        on = [e for e in EFFECTS if not {rule, ALL}.isdisjoint(getattr(self.config, e))]
        if self.webhook is None and "webhook" in on:
            on.remove("webhook")
        return tuple(on)

    def _restart_alert_watch(self) -> None:
        """Begin to watch the host with the rules that are on, as if nothing were known of it. What
        the watch before has seen is forgotten."""
        every = alert_limits_by_rule(self.config.limits)
        limits = {name: limits for name, limits in every.items() if self._effects[name]}
        self._host, self._watch = self._core.host, None
        self._events = EventWatch(self._core.state)
        if self._check_rules in self._telemetry.on_reading:
            self._telemetry.on_reading.remove(self._check_rules)
        if limits:
            from workbench.advisor.alert_watch import AlertWatch

            self._watch = AlertWatch(limits)
            self._capped = _gpus_with_unexplained_clock_cap(self._core.state)
            self._telemetry.on_reading.append(self._check_rules)

    # ---- what happens

    def _check_rules(self, telemetry: Telemetry) -> None:
        from workbench.advisor.alert_rules import LiveFacts

        if self._watch is None:
            return
        values: Mapping[str, float] = {}
        server = ""
        if (engine := self._core.state.engine) is not None:
            values, server = engine.values, engine.server
        facts = LiveFacts(telemetry, values, self._capped, server)
        interval_s = self._core.state.telemetry_interval_s
        for change in self._watch.update_alerts(time.monotonic(), interval_s, facts):
            if change.rings:
                self._raise_alert_of_change(change, telemetry)

    def _raise_alerts_of_change(self, state: SessionState, changed: frozenset[str]) -> None:
        if changed.isdisjoint(_FOLLOWED_FIELDS):
            return
        if self._core.host is not self._host:
            self._restart_alert_watch()
            return
        if "gpu_findings" in changed and self._watch is not None:
            self._capped = _gpus_with_unexplained_clock_cap(state)
        for rule, text in self._events.events_of_change(state, changed):
            self._raise_alert(rule, ONCE, text, self._effects[rule])

    def _raise_alert_of_change(self, change: AlertChange, telemetry: Telemetry) -> None:
        rule, has_ended = RULES[change.rule], change.phase == END
        if has_ended and not rule.over:
            return
        gpus: tuple[int, ...] = ()
        where = ""
        if rule.of_gpu:
            gpus, where = change.indexes, _gpus_text(change.indexes, telemetry)
        form, effects = rule.text, self._effects[rule.name]
        if has_ended:  # nobody is called for it
            effects = tuple(effect for effect in effects if effect in ("title", "webhook"))
            form = rule.over
            if change.value is None:
                form = f"no longer watched: {rule.title}"
                if where:
                    form += " ({where})"
        text = form.format(where=where, value=rule.value_text(change.value))
        phase = change.phase if rule.over else ONCE
        self._raise_alert(rule.name, phase, text, effects, gpus, change.value)

    def _raise_alert(
        self,
        rule: str,
        phase: str,
        text: str,
        effects: Sequence[str],
        gpus: tuple[int, ...] = (),
        value: float | None = None,
    ) -> None:
        """Add an alert with these effects to the state, and make its mark and its webhook. Without
        an effect, do nothing."""
        if not effects:
            return
        self._number += 1
        alert = Alert(
            number=self._number,
            unix_s=time.time(),
            rule=rule,
            phase=phase,
            # cut after it is masked: half a secret would not be recognized
            text=clean_text(
                mask_text(clean_text(text), remembered_secrets()), _MAX_TEXT_CHARACTERS
            ),
            host=self._core.host.name,
            simulated=self._core.state.simulated,
            effects=frozenset(effects),
            gpus=gpus,
            value=value,
        )
        if "mark" in effects and rule not in _RULES_MARKED_ELSEWHERE:
            self._timeline.add_event(EventKind.ALERT, alert.text, unix_s=alert.unix_s)
        if "webhook" in effects and self.webhook is not None:
            self.webhook.send(_webhook_document(alert))
        self._core.update(alerts=(*self._core.state.alerts, alert)[-KEPT:])

    # ---- for the page

    def rule_rows(self) -> list[RuleView]:
        """Return the state of each rule now, in the order of the table."""
        return [self._row_of_rule(name) for name in RULES]

    def _row_of_rule(self, name: str) -> RuleView:
        rule, effects = RULES[name], self._effects[name]
        watch = self._watch.rules.get(name) if self._watch else None
        if watch is not None:
            now = watch.current_state(time.monotonic())
            where = gpus_text(now.indexes) if now.indexes and rule.of_gpu else ""
            return RuleView(
                rule, watch.limits, effects, now.state, now.since_s, where, now.worst_value
            )
        limits = self.config.limits.get(name, rule.limits)
        for alert in reversed(self._core.state.alerts):
            if alert.rule == name:
                ago_s = time.time() - alert.unix_s
                return RuleView(rule, limits, effects, "happened", ago_s)
        return RuleView(rule, limits, effects, "", None)

    def raise_test_alert(self) -> None:
        """Raise a test alert that has each effect which any rule has. Do nothing if every rule is
        off."""
        used = sorted(set().union(*self._effects.values()))
        self._raise_alert(TEST_RULE, ONCE, "this is a test of the alerts", used)

    @property
    def are_all_on(self) -> bool:
        """Whether all rules ring, mark and show in the title, as `switch_all` sets them."""
        return all(getattr(self.config, effect) == (ALL,) for effect in SWITCHED_EFFECTS)

    def switch_all(self, on: bool) -> None:
        """Write to config.toml that all rules ring, mark and show in the title. With `on` False,
        restore what these three were before this session turned them on, otherwise their defaults.
        Raises StoreError if the file cannot be written."""
        if on:  # the file is read again: the user may have changed it since
            now, usual = ConfigStore(self._store.path).config.alerts, AlertsConfig()
            self._before = {}
            for effect in SWITCHED_EFFECTS:
                rules = getattr(now, effect)
                if rules != getattr(usual, effect):
                    self._before[effect] = list(rules)
        for effect in SWITCHED_EFFECTS:
            self._store.set(("alerts", effect), [ALL] if on else self._before.get(effect))
        self.apply_alerts_config(self._store.config.alerts)


def _gpus_with_unexplained_clock_cap(state: SessionState) -> frozenset[int]:
    """Return the indices of the GPUs whose clock something caps that the driver does not name, as
    a load has shown."""
    from workbench.gpu.settings.clock_contrasts import UNNAMED

    return frozenset(index for index, text in state.gpu_findings if UNNAMED in text)


def _gpus_text(indexes: Sequence[int], telemetry: Telemetry) -> str:
    text = gpus_text(indexes)
    info = telemetry.info(indexes[0]) if indexes else None
    mig_text = info.mig_text if info else ""
    return f"{text} ({mig_text})" if mig_text else text


def _webhook_document(alert: Alert) -> Mapping[str, object]:
    """Return the JSON object that a webhook sends about an alert. Slack, Mattermost and others show
    its field "text"."""
    kept = asdict(alert)
    rule = RULES.get(alert.rule)
    return {
        "text": alert.message,
        "rule": alert.rule,
        "phase": alert.phase,
        "what": alert.text,
        **{name: kept[name] for name in ("host", "simulated", "unix_s", "gpus", "value")},
        "unit": rule.unit if rule is not None else "",
    }
