"""Alert rules and alerts. A rule compares a value of the host, its GPUs or its engine with two
thresholds, or names an event. advisor/alert_watch.py decides when an alert begins and ends."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.model.counts import format_four_digits
from workbench.model.lazy_dataclass import dataclass

ALL = "all"  # stands for every rule in a list of rules
BEGIN, END, ONCE = "begin", "end", "once"
# what an alert can do, as config.toml names it
EFFECTS = ("bell", "mark", "desktop", "title", "webhook")
KEPT = 50  # alerts in the state


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """The thresholds of a rule. An alert begins when the value has been at `begin` or beyond for
    `for_s` seconds, and ends when it has come back to `end`. "Beyond" means higher if `begin` is
    above `end`, otherwise lower."""

    begin: float
    end: float
    for_s: float

    @property
    def high_value_starts_alert(self) -> bool:
        """Whether a high value begins an alert; if not, a low one does."""
        return self.begin > self.end


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A rule that can raise an alert. `text` is the message when the alert begins, with {where} and
    {value}; `over` is the message when it ends, "" if there is none. A rule without `limits` is an
    event, which only happens and has a text of its own. `unit` follows the value; the value of a
    rule without a unit is 1 if its condition holds, else 0. `needs` names what the host must have
    for the rule. If `average_s` is above 0, the value is the share of time in percent in which the
    condition held, averaged over about this many seconds."""

    name: str  # in config.toml
    title: str
    text: str = ""
    over: str = ""
    limits: AlertLimits | None = None
    unit: str = ""
    needs: str = ""
    average_s: float = 0.0
    of_gpu: bool = False  # the value is one of each GPU
    prefix: str = ""  # in front of the value of a condition, which is then the number of an error
    marked: bool = False  # whether the time axis has a mark of the event anyway

    @property
    def has_thresholds(self) -> bool:
        """Whether the rule has thresholds that the user can set."""
        return self.limits is not None and bool(self.unit)

    def value_text(self, value: float | None) -> str:
        """Return a value with its unit or its prefix. "" for None, and for the value of a rule that
        has neither."""
        if value and self.prefix:
            return f"{self.prefix} {value:.0f}"
        if value is None or not self.unit:
            return ""
        number = f"{value:.0f}" if abs(value) >= 10 else format_four_digits(round(value, 1))
        return f"{number} {self.unit}"


def _percentage_rule(name: str, title: str, text: str) -> AlertRule:
    return AlertRule(
        name,
        title,
        f"{{where}} {text} in {{value}}",
        f"{{where}} no longer {text}",
        AlertLimits(30.0, 5.0, 0.0),
        "% of the time",
        "the driver's reasons for lower clocks",
        average_s=15.0,
        of_gpu=True,
    )


_RULES = (
    _percentage_rule("heat-slowdown", "heat lowers the clocks", "slowed down by heat"),
    _percentage_rule(
        "hardware-slowdown", "a hardware brake lowers the clocks", "slowed down by a hardware brake"
    ),
    AlertRule(
        "hidden-clock-cap",
        "a clock is capped without a reason",
        "{where} runs at a low clock under load, and the driver names no reason",
        "{where} no longer runs at a low clock",
        AlertLimits(1.0, 0.0, 30.0),
        needs="the utilization of a GPU under load",
        of_gpu=True,
    ),
    AlertRule(
        "temperature",
        "degrees left until the GPU slows down",
        "{where} is hot: {value} until it slows down",
        "{where} is cooler again: {value} until it slows down",
        AlertLimits(5.0, 10.0, 10.0),
        "°C left",
        "the temperature at which the driver slows the GPU down",
        of_gpu=True,
    ),
    AlertRule(
        "gpu-memory",
        "free memory of a GPU",
        "the memory of {where} is full: {value}",
        "the memory of {where} has room again: {value}",
        AlertLimits(2.0, 4.0, 30.0),
        "% free",
        "a GPU with memory of its own",
        of_gpu=True,
    ),
    AlertRule(
        "gpu-lost",
        "a GPU can no longer be read",
        "{where} can no longer be read: it is lost, or the driver hangs",
        "{where} can be read again",
        AlertLimits(1.0, 0.0, 0.0),
        needs="a GPU",
        of_gpu=True,
    ),
    AlertRule(
        "gpu-error",
        "the driver reports an error of a GPU (Xid)",
        "{where} reported the error {value}",
        limits=AlertLimits(1.0, 0.0, 0.0),
        prefix="Xid",
        needs="a driver that reports errors as events",
        of_gpu=True,
    ),
    AlertRule(
        "pcie-errors",
        "the PCIe link sends damaged packets again",
        "the PCIe link of {where} sends damaged packets again: {value}",
        "the PCIe link of {where} is sound again",
        AlertLimits(30.0, 1.0, 10.0),
        "a minute",
        "a PCIe link whose driver counts them",
        of_gpu=True,
    ),
    AlertRule(
        "host-memory",
        "available memory of the host",
        "the memory of the host is full: {value}",
        "the memory of the host has room again: {value}",
        AlertLimits(5.0, 8.0, 10.0),
        "% available",
        "/proc/meminfo",
    ),
    AlertRule(
        "memory-pressure",
        "the host's processes wait for memory",
        "all processes of the host wait for memory in {value}",
        "the processes of the host no longer wait for memory",
        AlertLimits(10.0, 2.0, 10.0),
        "% of the time",
        "/proc/pressure/memory",
    ),
    AlertRule(
        "disk-pressure",
        "the host's processes wait for the disk",
        "all processes of the host wait for the disk in {value}",
        "the processes of the host no longer wait for the disk",
        AlertLimits(60.0, 20.0, 30.0),
        "% of the time",
        "/proc/pressure/io",
    ),
    AlertRule(
        "prochot",
        "the board holds its processors down",
        "the board holds its processors down (PROCHOT)",
        "the board no longer holds its processors down",
        AlertLimits(1.0, 0.0, 5.0),
        needs="a DGX Spark with the kernel module spark_hwmon",
    ),
    AlertRule(
        "queue",
        "requests wait at the server",
        "{value} wait at the server",
        "the queue at the server is short again: {value} wait",
        AlertLimits(10.0, 2.0, 15.0),
        "requests",
        "a server whose counters can be read",
    ),
    AlertRule(
        "kv-cache",
        "the KV cache is full",
        "the KV cache of the server is {value}",
        "the KV cache of the server has room again: it is {value}",
        AlertLimits(95.0, 85.0, 15.0),
        "% full",
        "a server whose counters can be read",
    ),
    AlertRule("server-ready", "a server becomes READY", marked=True),
    AlertRule("server-failed", "the start of a server fails", marked=True),
    AlertRule("server-ended", "a server ends unexpectedly", marked=True),
    AlertRule("server-silent", "a server no longer answers"),
    AlertRule("benchmark-done", "a benchmark ends", marked=True),
    AlertRule("series-done", "an experiment, sweep or tune ends"),
)
RULES: Mapping[str, AlertRule] = {rule.name: rule for rule in _RULES}


def alert_limits_by_rule(user_limits: Mapping[str, AlertLimits]) -> Mapping[str, AlertLimits]:
    """Return the limits of each rule with limits, by the rule's name: those that the user has set,
    `user_limits`, else the rule's own."""
    return {
        n: user_limits.get(n, rule.limits) for n, rule in RULES.items() if rule.limits is not None
    }


# as long as nothing is configured
BELL = ("server-ready", "server-failed", "server-ended")


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that happened and that the user asked to be told. `phase` is "begin" or "end" of a
    condition, or "once" for an event. `effects` are the effects that this alert has now. `number`
    grows with each alert."""

    number: int
    unix_s: float
    rule: str
    phase: str
    text: str
    host: str
    simulated: bool = False
    effects: frozenset[str] = frozenset()
    gpus: tuple[int, ...] = ()
    value: float | None = None

    @property
    def message(self) -> str:
        """The alert as text for a place outside the screen: with the host in front, and SIMULATED
        before that for simulated data."""
        return f"{'SIMULATED ' if self.simulated else ''}{self.host}: {self.text}"


@dataclass(frozen=True, slots=True)
class RuleView:
    """The state of a rule now. `effects` are those that are on for it; a rule without any is off.
    `state` is "quiet", "pending", "active", "ended", "happened" for an event, or "" if the rule is
    not watched. `since_s` is how many seconds ago the state began; None if that is not known."""

    rule: AlertRule
    limits: AlertLimits | None = None
    effects: tuple[str, ...] = ()
    state: str = ""
    since_s: float | None = None
    where: str = ""
    value: float | None = None
