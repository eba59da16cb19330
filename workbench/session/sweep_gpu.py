"""A GPU setting over several values with the running server: set, settle under load, measure, and back to what was
there at the start, whatever happens. The journal and the guard are the net below that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.gpu.settings.contrast import CAPS
from workbench.gpu.settings.owners import owner_facts
from workbench.model.errors import BenchError, HostError, InputError, SettingsError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.model.settings import ClockRange, GpuSettings, InForce, gpu_settings_from
from workbench.session.driving import REQUESTS
from workbench.session.sweep_run import Ended, SweepRun, undisturbed

if TYPE_CHECKING:
    from workbench.gpu.settings.journal import JournalEntry
    from workbench.model.bench import BenchResult
    from workbench.model.settings import SettingsReport
    from workbench.session.gpu_settings import Settings
    from workbench.session.sweeping import Sweeping

MEASURE_S = 10.0  # of each value, where the person says nothing: power is a mean over 1 s
SETTLE_S = 30.0  # at most: a card's temperature moves with a time constant of about 20 to 40 s
RESTORE_S = 60.0  # so long a cut link is waited for; by then the guard has given back
_AGAIN_S = 1.0
WATTS_EQUAL = 0.5
PAIRS = 3  # of the value that is named against the start
BOUND_SHARE = 0.05  # of the readings, in which the driver names the power limit
DRAWN_SHARE = 0.97  # of the limit, from which it is drawn
_IN_A_ROW = 2  # values that could not be set, after which no more are tried
NAMES = {
    "power_limit_w": ("power limit", "W"),
    "gpu_clocks": ("SM clock lock", "MHz"),
    "memory_clocks": ("memory clock lock", "MHz"),
}
_WORST = (
    InForce.NO_EFFECT,
    InForce.CHANGED,
    InForce.CAPPED,
    InForce.NOT_CHECKED,
    InForce.CONSISTENT,
    InForce.YES,
)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the sweep: `wanted` for each GPU."""

    label: str
    x: float
    wanted: GpuSettings


@dataclass(frozen=True, slots=True)
class Start:
    """`settings` bring a GPU back to what it had; `entry`: what the journal said of it, where it was altered."""

    settings: GpuSettings
    entry: JournalEntry | None = None
    unknown: bool = False  # a lock of somebody else may have been on, which no driver tells

    @classmethod
    def stored(cls, data: Mapping[str, Any]) -> Start:
        """Of what `asdict` gave."""
        from workbench.gpu.settings.journal import JournalEntry

        entry = JournalEntry(**data["entry"]) if data["entry"] else None
        return cls(gpu_settings_from(data["settings"]), entry, bool(data["unknown"]))


def values_of(setting: str, texts: Sequence[str]) -> tuple[Value, ...]:
    """ "350" in watts; "1500" or "210-1500" in MHz. InputError for what is neither, or is there twice."""
    if setting not in NAMES:
        raise InputError(f"{setting!r} is no setting to sweep", next_step=f"one of {', '.join(NAMES)}")
    found = tuple(_power(t) if setting == "power_limit_w" else _clocks(setting, t) for t in texts)
    if len(found) < 2:
        raise InputError("a sweep needs two values or more", next_step="for example 300,400,500")
    twice = next((v.label for i, v in enumerate(found) if v.label in [o.label for o in found[:i]]), None)
    if twice:
        raise InputError(f"{twice} is there twice", next_step="give each value once")
    return found


def _power(text: str) -> Value:
    try:
        watts = float(text.strip().removesuffix("W").strip())
    except ValueError:
        watts = 0.0
    if not 0 < watts < 1e5:
        raise InputError(f"{text!r} is no power limit in watts", next_step="for example 300,350,400")
    return Value(f"{watts:g} W", watts, GpuSettings(power_limit_w=watts))


def _clocks(setting: str, text: str) -> Value:
    low, dash, high = text.strip().partition("-")
    if len(text) > 20 or not low.isdecimal() or (dash and not high.isdecimal()) or int(low) > int(high or low):
        raise InputError(f"{text!r} is neither MHZ nor MIN-MAX", next_step="for example 1500,2000,210-2400")
    span = ClockRange(int(low), int(high or low))
    label = f"{low}-{high} MHz" if dash else f"{low} MHz"
    return Value(label, float(span.max_mhz), _settings(setting, span))


def _settings(setting: str, value: Any) -> GpuSettings:
    return GpuSettings(**{setting: value})


def shape_of(bench: Mapping[str, Any]) -> dict[str, Any]:
    """By time where nothing else is asked for, so that every value is measured alike however slow it is."""
    given = {name: value for name, value in bench.items() if value is not None}
    if "requests" in given or "command" in given:
        return given
    return {**given, "seconds": given.get("seconds", MEASURE_S), "requests": REQUESTS}


@dataclass
class GpuSweep:
    """`start`: what each GPU had before the first change, by index. `target`: (run id, None) or (None, URL)."""

    session: Sweeping
    run: SweepRun
    setting: str
    values: Sequence[Value]
    start: Mapping[int, Start]
    target: tuple[str | None, str | None]
    bench: Mapping[str, Any]
    settle_s: float = SETTLE_S
    pairs: int = PAIRS
    runs: int = 1
    password: str | None = field(default=None, repr=False)
    _touched: bool = False
    _words: int | None = None  # of a prompt: the same in all runs of the pairs
    _read_back: tuple[InForce, ...] = ()  # of the value that is on: what setting it has shown

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(self.start)

    async def go(self) -> None:
        unknown = [f"GPU{gpu}" for gpu, start in self.start.items() if start.unknown]
        if unknown:
            self.run.note(f"{', '.join(unknown)}: a lock of before cannot be read, so at the end it is the default")
        in_a_row = 0
        self.run.to_pair = 2 * self.pairs
        await self._write_start()
        try:
            for index in self.run.missing:
                self.session.going_on()
                value = self.values[index]
                why = await self._set(value)
                if why is None:
                    in_a_row = 0
                    await self._one(index, value)
                    continue
                self.run.point(index, state="failed", error=why)
                await self.run.save()
                in_a_row += 1
                if in_a_row >= _IN_A_ROW:
                    raise Ended(f"{in_a_row} values in a row could not be set: {why}")
            await self._compare_clocks()
            await self._confirm()
        finally:
            if self._touched:
                await undisturbed(self._restore())

    async def _write_start(self) -> None:
        """What is there now, on disk before it is changed: whoever resumes a sweep that was killed knows it."""
        uuids = {info.index: info.uuid for info in (await self.session.reading()).infos}
        owners = [*(self.run.sweep.start or {}).get("owners", ()), owner_facts()]
        gpus = {uuids[gpu]: asdict(start) for gpu, start in self.start.items()}
        self.run.change(start={"owners": owners, "gpus": gpus})
        await self.run.save()

    # ---- one value

    async def _set(self, value: Value) -> str | None:
        """None when it is set on every GPU, else why not. SettingsError and HostError are reasons too: the next value
        may be taken; the link's loss ends the sweep by the measurement's own error."""
        self._touched = True
        try:
            report = await self._apply(dict.fromkeys(self.gpus, value.wanted))
        except SettingsError as error:
            return error.message
        self._read_back = tuple(o.in_force for o in report.outcomes)
        failed = next((o for o in report.outcomes if not o.ok), None)
        return f"GPU{failed.command.gpu_index}: {failed.message}" if failed else None

    async def _apply(self, wanted: Mapping[int, GpuSettings]) -> SettingsReport:
        by_gpu = {str(gpu): settings for gpu, settings in wanted.items()}
        return await self.session.apply_gpus(by_gpu, password=self.password)

    async def _one(self, index: int, value: Value) -> None:
        self.run.point(index, state="measuring")
        if self.settle_s > 0:
            try:
                moving = await self._settle()
            except BenchError as error:
                self._cancelled(error)
                self.run.point(index, state="failed", error=error.message)
                await self.run.save()
                return await self._server_goes_on(error.message)
            if moving:
                self.run.note(f"{value.label}: not settled after {self.settle_s:.0f} s ({moving})")
        results = await self.run.measured(index, self._measure, self.runs)
        if not results:
            return await self._server_goes_on(self.run.sweep.points[index].error or "")
        bound = [self._bound(result, value) for result in results]
        self.run.point(index, in_force=self._in_force(results), bound=None if None in bound else any(bound))
        for result in results:
            if result.summary.tok_per_joule is None:
                self.run.note(f"{value.label}: no tok/J ({result.summary.absent.get('tok_per_joule', 'not measured')})")
        await self._still_set(index, value)
        await self.run.save()
        return None

    def _cancelled(self, error: WorkbenchError) -> None:
        from workbench.bench.runner import BenchCancelled

        if isinstance(error, BenchCancelled):
            raise error

    async def _measure(self, **more: Any) -> int:
        run_id, url = self.target
        if run_id is not None:
            return await self.session.bench_run(run_id, **{**self.bench, **more})
        assert url is not None
        return await self.session.bench_url(url, **{**self.bench, **more})

    async def _settle(self) -> str | None:
        """Load the server with the shape that is measured until nothing moves any more; else what still does."""
        from workbench.gpu.telemetry.steady_state import WINDOW_S, moving
        from workbench.session.driving import drive
        from workbench.session.meter import Meter

        said: list[str | None] = [f"it takes {2 * WINDOW_S:g} s to tell"]
        aimed = self.session.aim(*self.target, dict(self.bench))
        async with aimed as (spec, _, env), Meter(self.session.host) as meter:

            def settled(loaded_s: float) -> bool:
                now = time.monotonic()
                if loaded_s >= 2 * WINDOW_S:
                    said[0] = moving(meter.moments(now - 2 * WINDOW_S, now), self.gpus, now)
                return loaded_s >= self.settle_s or said[0] is None

            await drive(spec, env, self.session.cancelled, settled)
        return said[0]

    def _bound(self, result: BenchResult, value: Value) -> bool | None:
        """Whether a power limit limited anything: the driver said so, or a GPU drew it."""
        gpu, limit_w = result.summary.gpu, value.wanted.power_limit_w
        if gpu is None or limit_w is None:
            return None
        named = sum(share for name, share in gpu.event_reasons.items() if CAPS.get(name) == "power")
        drawn = [w for w in gpu.power_w_each if w is not None]
        if named >= BOUND_SHARE:
            return True
        return any(w >= DRAWN_SHARE * limit_w for w in drawn) if drawn else None

    # ---- the value that is named, against the start

    async def _confirm(self) -> None:
        from workbench.bench import knee
        from workbench.session.sweep_pairs import compared

        best = knee.of_setting(self.run.sweep.points).index
        if best is None or self.pairs < 1:
            return self.run.note("nothing was compared in pairs" + ("" if self.pairs < 1 else ": no value is named"))
        label = self.run.sweep.points[best].label
        try:
            await compared(self.run, label, self.pairs, lambda arm, pair: self._of_pair(arm, pair, self.values[best]))
        except WorkbenchError as error:
            self._cancelled(error)
            self.run.note(f"{label} was not compared in pairs: {error.message}")
        return None

    async def _of_pair(self, arm: str, pair: int, value: Value) -> BenchResult:
        wanted = {gpu: value.wanted if arm == "B" else start.settings for gpu, start in self.start.items()}
        report = await self._apply(wanted)
        if failed := next((o for o in report.outcomes if not o.ok), None):
            raise SettingsError(f"{failed.command.where}: {failed.message}")
        if self.settle_s > 0:
            await self._settle()
        result = await self.session.result(await self._measure(seed=pair, prompt_words=self._words))
        self._words = self._words or result.spec.prompt_words
        return result

    async def _compare_clocks(self) -> None:
        """A point that proved nothing when it was measured may do so beside the later ones."""
        from workbench.gpu.settings.contrast import LOCKS, contrast

        if self.setting not in LOCKS:
            return
        known = await self.session.known_clocks("")
        uuids = {info.uuid for info in (await self.session.reading()).infos if info.index in self.gpus}
        mine = [c for c in known.clocks if c.setting == self.setting and c.gpu_uuid in uuids]
        for index, (point, value) in enumerate(zip(self.run.sweep.points, self.values, strict=True)):
            lock = str(getattr(value.wanted, self.setting))
            newest = {c.gpu_uuid: c for c in mine if c.lock == lock}
            shown = [c for c in newest.values() if contrast(c, mine) is not None]
            if point.in_force == InForce.CONSISTENT and len(shown) == len(uuids):
                self.run.point(index, in_force=str(InForce.YES))

    def _in_force(self, results: Sequence[BenchResult]) -> str | None:
        """The worst that the loads have shown of it; of a value that was there at the start, what the driver says."""
        told = [r.conditions.in_force.get(f"gpu{gpu}.{self.setting}") for r in results for gpu in self.gpus]
        told = told if any(told) else [str(v) for v in self._read_back]
        return next((str(v) for v in _WORST if str(v) in told), None)

    async def _server_goes_on(self, why: str) -> None:
        """After a point that failed: only a server that still answers is worth the next."""
        run_id, _ = self.target
        if run_id is None:
            return
        state = self.session.supervisor.status(run_id).state
        if state is not ServerState.READY:
            raise Ended(f"the server is {state}: {why}")

    async def _still_set(self, index: int, value: Value) -> None:
        """The guard may have given the setting back meanwhile: what was measured is then not this value."""
        asked = getattr(value.wanted, self.setting)
        await self.session.read_alterations()
        locks = {a.gpu_index: str(a.now) for a in self.session.state.alterations if a.setting == self.setting}
        for gpu in self.gpus:
            if self.setting == "power_limit_w":
                sample = next((s for s in (await self.session.reading()).gpus if s.index == gpu), None)
                told = sample.power_limit_w if sample else None
                kept = told is None or abs(told - asked) < WATTS_EQUAL
            else:
                kept = locks.get(gpu) == str(asked)
            if not kept:
                why = f"GPU{gpu}: the setting was given back while it was measured (by its guard, or somebody else)"
                self.run.point(index, state="failed", error=why)
                raise Ended(why)

    # ---- back to the start

    async def _restore(self) -> None:
        """Each GPU as it was at the start. With a cut link it is tried until the link is back or RESTORE_S is over."""
        self.run.change(left_s=None)
        until = time.monotonic() + RESTORE_S
        left = list(self.gpus)
        why = ""
        while left:
            try:
                why = await give_back(self.session, left[0], self.start[left[0]], self.password)
                if why:
                    break
                left.pop(0)
            except HostError as error:
                why = error.message
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(_AGAIN_S)
            except WorkbenchError as error:
                why = error.message
                break
        if not left:
            return self.run.change(start=None)
        gpus = ", ".join(f"GPU{gpu}" for gpu in left)
        text = f"{gpus}: {NAMES[self.setting][0]} is not back as it was at the start ({why})"
        self.run.change(error=text)
        self.session.notify(Level.ERROR, text, "workbench gpu revert; its guard gives it back too")
        return None


async def give_back(session: Settings, gpu: int, start: Start, password: str | None) -> str:
    """Why not; "" when it is as it was. A setting of ours that was on before is journalled as it was then: whose it
    is, and whether its guard waits for a heartbeat."""
    from workbench.gpu.settings import journal

    report = await session.apply_gpus({str(gpu): start.settings}, password=password)
    failed = next((o.message or "refused" for o in report.outcomes if not o.ok), "")
    if not failed and start.entry is not None:
        async with journal.locked(session.host) as held:
            await held.save(held.journal.back_to(start.entry.key, start.entry))
    return failed


async def start_of(session: Settings, setting: str, gpus: Sequence[int]) -> dict[int, Start]:
    """What each GPU has now. SettingsError where that cannot be known."""
    from workbench.gpu.settings import journal
    from workbench.gpu.settings.revert import LOCKS, UNKNOWN

    state = await journal.read(session.host)
    records = state.records()
    telemetry = await session.reading()
    found = {}
    for gpu in gpus:
        info = telemetry.info(gpu)
        ours = next((r.entry for r in records if info and not r.gone and r.entry.key == (info.uuid, setting)), None)
        if setting == "power_limit_w":
            sample = next((s for s in telemetry.gpus if s.index == gpu), None)
            if sample is None or sample.power_limit_w is None:
                why = sample.absent.get("power_limit_w", "not given") if sample else "no reading"
                raise SettingsError(
                    f"GPU{gpu}: the power limit before is not known ({why}); nothing was changed",
                    host=session.host.name,
                )
            settings = GpuSettings(power_limit_w=sample.power_limit_w)
        elif ours is not None and "," in str(ours.now):
            low, _, high = str(ours.now).partition(",")
            settings = _settings(setting, ClockRange(int(low), int(high)))
        else:
            settings = _settings(f"reset_{setting}", True)
        known = state.known_lock(info.uuid, setting)[0] if info and setting in LOCKS else None
        found[gpu] = Start(settings, ours, known == UNKNOWN)
    return found
