"""The schema of config.toml: its settings with their defaults, and the check of a document against
it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlsplit

from workbench.model.alerts import ALL, BELL, EFFECTS, RULES, AlertLimits, AlertRule
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import MASK
from workbench.model.untrusted_text import clean_text
from workbench.store.toml_schema import (
    UNUSABLE,
    Kind,
    Problem,
    add_problem,
    check_text,
    choice_checker,
    map_checker,
    number_checker,
    table_checker,
)

_PLAIN_ADDRESS = re.compile("[!-~]+")  # without spaces
THEMES = ("dark", "light", "high-contrast", "256")


@dataclass(frozen=True, slots=True)
class Ui:
    refresh_s: float = 1.0
    theme: str = THEMES[0]


@dataclass(frozen=True, slots=True)
class GpuConfig:
    heartbeat_s: float = 30.0  # the guard reverts GPU settings after this long without a heartbeat


@dataclass(frozen=True, slots=True)
class ResultsConfig:
    keep_samples: int = 2000  # newest results whose requests are kept, at most 20 KB each


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """What alerts do. Each effect has the names of its rules, or "all". `limits` has the thresholds
    of the rules for which the file sets some."""

    bell: tuple[str, ...] = BELL
    mark: tuple[str, ...] = ()
    desktop: tuple[str, ...] = ()
    title: tuple[str, ...] = ()
    webhook: tuple[str, ...] = ()
    webhook_url: str = ""
    webhook_token: str = ""
    limits: Mapping[str, AlertLimits] = field(default_factory=dict)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be masked wherever it could be shown: the token, and all of the address behind
        its host, which is the only password of many services."""
        parts = urlsplit(self.webhook_url)
        # with its slash: without it, a path such as "/server" would mask a word in every text
        rest = self.webhook_url.partition(parts.netloc)[2] if parts.netloc else ""
        found = (self.webhook_token, self.webhook_url, rest, parts.password)
        return tuple(filter(None, found))

    @property
    def masked_webhook_url(self) -> str:
        """The address of the webhook without its secrets, such as "https://HOST/***"."""
        parts = urlsplit(self.webhook_url)
        if not parts.hostname:
            return ""
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}/{MASK}"

    @property
    def with_masked_secrets(self) -> AlertsConfig:
        """This configuration with its secrets masked, to show it."""
        token = MASK if self.webhook_token else ""
        return replace(self, webhook_url=self.masked_webhook_url, webhook_token=token)


@dataclass(frozen=True, slots=True)
class Remembered:
    value: str
    run: str  # id of the newest READY run with this value


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of config.toml. `executables` maps a host name and an engine to the program that
    starts the engine on that host, quoted as for a shell. `remembered` maps a host name, a preset
    id and a variable to the value in the newest run whose server became ready."""

    ui: Ui = field(default_factory=Ui)
    gpu: GpuConfig = field(default_factory=GpuConfig)
    results: ResultsConfig = field(default_factory=ResultsConfig)
    alerts: AlertsConfig = field(default_factory=AlertsConfig)
    executables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remembered: Mapping[str, Mapping[str, Mapping[str, Remembered]]] = field(default_factory=dict)


def _check_web_address(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Check an address that alerts are sent to. The problem does not quote it, because such an
    address often contains a secret."""
    expected = "an address such as https://HOST/PATH is expected"
    if not isinstance(value, str):
        return add_problem(path, expected, problems)
    try:
        parts = urlsplit(value)
        is_web = parts.scheme in ("https", "http") and parts.hostname and parts.port != 0
    except ValueError:  # such as a port that is no number
        is_web = False
    if not is_web or not _PLAIN_ADDRESS.fullmatch(value):
        return add_problem(path, expected, problems)
    return value


def _check_header_text(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Check a text that is sent in the header of a request."""
    if isinstance(value, str) and value.isascii() and value.isprintable():
        return value
    return add_problem(path, "text of ASCII characters without line breaks is expected", problems)


def _threshold_checker(rule: AlertRule, default: AlertLimits) -> Kind:
    """Return a function that checks the thresholds of a rule. A threshold that is not set has its
    default."""
    is_above = default.high_value_starts_alert
    kinds = {"for_s": number_checker(0, 86_400)}
    if rule.has_thresholds:
        measured = number_checker(0, 100 if rule.unit.startswith("%") else 1_000_000)
        kinds = {"begin": measured, "end": measured, **kinds}
    check_table = table_checker(dict, kinds)

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        found = check_table(value, path, problems)
        if found is UNUSABLE:
            return UNUSABLE
        limits = replace(default, **found)
        if limits.begin != limits.end and limits.high_value_starts_alert == is_above:
            return limits
        side = "above" if is_above else "below"
        text = f"begin ({limits.begin:g}) must be {side} end ({limits.end:g})"
        return add_problem(path, text, problems)

    return check


_RULE_NAMES = (ALL, *RULES)


def _check_rule_names(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Check a list of rules. The text "all" is a list of one. The first wrong name is quoted."""
    names = [value] if value == ALL else value
    if not isinstance(names, list):
        return add_problem(path, "a list is expected", problems)
    for name in names:
        if name not in _RULE_NAMES:
            expected = f"one of {', '.join(_RULE_NAMES)} is expected"
            text = f"{clean_text(str(name), 40)} is no rule: {expected}"
            return add_problem(path, text, problems)
    return tuple(names)


_LIMITS = {
    rule.name: _threshold_checker(rule, rule.limits)
    for rule in RULES.values()
    if rule.limits is not None
}
_CONFIG = table_checker(
    Config,
    {
        "ui": table_checker(
            Ui, {"refresh_s": number_checker(0.2, 60), "theme": choice_checker(*THEMES)}
        ),
        "gpu": table_checker(GpuConfig, {"heartbeat_s": number_checker(1, 3600)}),
        "results": table_checker(ResultsConfig, {"keep_samples": number_checker(0, 1_000_000)}),
        "alerts": table_checker(
            AlertsConfig,
            {
                **dict.fromkeys(EFFECTS, _check_rule_names),
                "webhook_url": _check_web_address,
                "webhook_token": _check_header_text,
                "limits": table_checker(dict, _LIMITS),
            },
        ),
        "executables": map_checker(map_checker(check_text)),
        "remembered": map_checker(
            map_checker(
                map_checker(
                    table_checker(
                        Remembered, {"value": check_text, "run": check_text}, required=True
                    )
                )
            )
        ),
    },
)


def check_config(document: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """Return the configuration that `document` (parsed TOML) describes, and its problems. A setting
    with an invalid value gets its default value."""
    problems: list[Problem] = []
    return _CONFIG(dict(document), (), problems), problems
