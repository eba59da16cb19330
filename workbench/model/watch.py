"""Watches: upgrades that are judged at night, each against the version that a preset pins."""

from __future__ import annotations

from dataclasses import field

from workbench.model.lazy_dataclass import dataclass

SPEED, START, MEMORY, ANSWERS = "speed", "start time", "KV tokens", "answers"

ALARM, QUIET, FAILED, UNFINISHED = "alarm", "no loss shown", "failed", "unfinished"


@dataclass(frozen=True, slots=True)
class Watch:
    """One upgrade that is watched. `candidate` is "image:NAME" or "venv:PATH", and `nightly` the
    time of the day at which it runs, as "HH:MM". `variables` are values for variables of the
    preset."""

    preset: str
    candidate: str
    nightly: str
    host: str | None = None  # None: this machine
    simulate: str | None = None
    variables: tuple[str, ...] = ()  # "name=value"
    sets: tuple[str, ...] = ()  # "flag=value", of both arms
    requests: int | None = None  # of each benchmark; None: as the preset says
    quality: bool = True  # whether the answers are compared too

    @property
    def host_text(self) -> str:
        """The name of the host on which the watch starts servers."""
        parts = [self.host] if self.host else []
        if self.simulate:
            parts.append(f"sim:{self.simulate}")
        return "/".join(parts or ["local"])

    @property
    def watch_name(self) -> str:
        """What identifies the watch: the preset, the candidate and the host."""
        return f"{self.preset} {self.candidate} on {self.host_text}"


@dataclass(frozen=True, slots=True)
class Loss:
    """By how much the candidate is worse in one measure, in percent of the pinned arm, over the
    pairs of both experiments of the night; below 0 if it is better. `p` is the chance of a loss
    this large between equal arms. `alarm` says whether it is an alarm."""

    measure: str
    loss_pct: float
    pairs: int
    p: float | None = None
    repeated: bool = False
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class NightEntry:
    """One watch in one night: its experiments, what came of it, and what the engines of the pinned
    arm and of the candidate say that they use, where they differ."""

    watch: Watch
    state: str = UNFINISHED  # ALARM, QUIET, FAILED or UNFINISHED
    first_id: int | None = None
    second_id: int | None = None
    losses: tuple[Loss, ...] = ()
    verdict: str = ""  # of the first experiment
    quality: str = ""
    error: str = ""
    pinned_version: str = ""
    version: str = ""  # of the candidate
    pinned_speed: float | None = None  # means of the metric of the experiments
    speed: float | None = None
    chosen: tuple[tuple[str, str, str], ...] = ()  # name, pinned, candidate
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Night:
    """One run of the watches. `id` is its number."""

    id: int
    unix_s: float
    entries: tuple[NightEntry, ...] = ()
    done: bool = False
    took_s: float = field(default=0.0)

    @property
    def alarm_entries(self) -> tuple[NightEntry, ...]:
        return tuple(entry for entry in self.entries if entry.state == ALARM)
