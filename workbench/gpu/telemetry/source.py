"""The telemetry of one host: starts the agent, receives its readings, restarts it, and never waits
for a hung agent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from workbench.gpu import remote_programs
from workbench.gpu.telemetry.agent_messages import AgentMessageDecoder, HungCall, decode_hung_call
from workbench.gpu.telemetry.outer_processes import OuterProcesses
from workbench.gpu.telemetry.reading_buffer import Moment, MomentBuffer
from workbench.hosts.base import CommandNotFound, Host, Stream
from workbench.hosts.python_programs import TOO_OLD, can_start_python
from workbench.hosts.task_cancellation import cancel_and_wait
from workbench.model.errors import HostError
from workbench.model.gpu import DriverStatus, Telemetry
from workbench.model.untrusted_text import NAME_CHARS, clean_json

# for nvidia-smi in place of NVML's library: with 8 GPUs and persistence mode off it takes up to
# 10 s (coderkang.top), and the agent that waits meanwhile is given up after 10 s
NVIDIA_SMI_TIMEOUT_S = 9.0
HUNG_CALL_S = 3.0  # a driver call that takes longer is said to hang
# An agent whose driver call has not returned for this long is left behind, and another started: the
# next one is listened to for longer, since each that is left in the driver costs memory on the host
# for as long as it hangs.
ABANDON_RANGE_S = (60.0, 600.0)
SILENT_AGENT_S = 10.0  # an agent that says nothing at all, beside its interval
BACKOFF_RANGE_S = (0.5, 15.0)
SILENT_BACKOFF_RANGE_S = (30.0, 600.0)  # an agent that says nothing may be stuck in the driver too
NOTHING_TO_READ_WITH = (
    "GPUs cannot be read: this host has neither a python3 that runs the agent nor nvidia-smi"
)
CHECKS_PER_LIMIT = 4  # within a time limit, so that a pause of this process is noticed
PAUSED_PROCESS_S = 1.0  # a timer that is so late was held up by a pause of this process
MAX_CLOCK_DRIFT = 0.0005  # seconds per second by which the host's clock may run apart from ours


class TelemetryAbandonedError(Exception):
    """Raised if the agent or nvidia-smi did not answer and was abandoned. The text of the exception
    is the reason."""


class DriverHungError(TelemetryAbandonedError):
    """Raised if a driver call has hung for so long that the agent was abandoned. A new agent may
    then be started."""


class SilenceTimeout:
    """A time limit for the silence of another process. Like `asyncio.timeout`, it raises
    TimeoutError, but a time in which this process itself was paused does not count: after a pause,
    nothing has been read yet of what the other process wrote meanwhile."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + limit_s
        self._look_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def renew(self, limit_s: float) -> None:
        """Begin the limit anew, now with `limit_s` seconds, because the other process has said
        something."""
        self._limit_s = limit_s
        self._until = self._loop.time() + limit_s
        if self._timer is not None:  # a look that nothing needs would wake the process
            self._timer.cancel()
            self._schedule_check()

    async def __aenter__(self) -> SilenceTimeout:
        await self._timeout.__aenter__()
        self._schedule_check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _schedule_check(self) -> None:
        self._look_at = min(self._until, self._loop.time() + self._limit_s / CHECKS_PER_LIMIT)
        self._timer = self._loop.call_at(self._look_at, self._check_silence)

    def _check_silence(self) -> None:
        now = self._loop.time()
        if now - self._look_at > PAUSED_PROCESS_S:
            self._until = now + self._limit_s
        if now >= self._until:
            self._timeout.reschedule(now)
        else:
            self._schedule_check()


class TelemetrySource:
    """The readings of one host. `on_telemetry` is called in the event loop with each reading. With
    `keep`, past readings are stored, so that `readings_between` can return them."""

    def __init__(
        self,
        host: Host,
        interval_s: float = 1.0,
        on_telemetry: Callable[[Telemetry], None] | None = None,
        *,
        hung_s: float = HUNG_CALL_S,
        agent_options: Mapping[str, float] | None = None,
        abandon_s: float = ABANDON_RANGE_S[0],
        silent_s: float = SILENT_AGENT_S,
        keep: bool = True,
    ) -> None:
        self.host = host
        self.interval_s = interval_s
        self._moments = MomentBuffer() if keep else None
        self._places = OuterProcesses(host)
        self.latest: Telemetry | None = None
        self._on_telemetry = on_telemetry
        self._agent_options = {"hung_s": hung_s, **(agent_options or {})}
        self._abandon_first_s = self._abandon_s = abandon_s
        self._silent_s = silent_s
        self._arrived: float | None = None
        self._offset: tuple[float, float] | None = None  # (ours - the agent's clock, when)
        self._problem: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        # the GPUs of this host, if the driver shows more
        self._given: tuple[str, ...] | None = None
        self.launched = asyncio.Event()  # the agent has been started on the host for the first time
        self._fallback = False  # nvidia-smi instead of the agent
        self._fallback_tried = False
        self._hopeless = False  # neither way of reading works on this host

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"telemetry {self.host.name}")

    async def close(self) -> None:
        """End the agent by closing its stdin. An agent that does not end within 2 s is left
        alone."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
        await self._places.close()
        self._close_stream_in_background()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=2.0)

    @property
    def age_s(self) -> float | None:
        """The seconds since the last reading arrived; None before the first."""
        return None if self._arrived is None else time.monotonic() - self._arrived

    @property
    def problem(self) -> str | None:
        """Why readings are late or missing, as text for the user; None if they arrive on time."""
        if self._problem is not None:
            return self._problem
        return self.lateness_text or None

    @property
    def lateness_text(self) -> str:
        """For how many seconds no reading has arrived, as text. "" if the next one is not late."""
        age_s = self.age_s or 0.0
        if age_s <= 3 * self.interval_s + 2:
            return ""
        return f"no reading for {age_s:.0f} s"

    async def set_interval(self, interval_s: float) -> None:
        self.interval_s = interval_s
        if self._fallback:
            self._close_stream_in_background()  # nvidia-smi takes its interval at start; the next one begins at once
        else:
            await self._send_agent_request({"interval_s": interval_s})

    async def request_full_reading(self) -> None:
        """Ask the agent to read everything now, also the values that it reads rarely. Call this for
        example after a change of a setting. Do nothing if no agent runs."""
        await self._send_agent_request({"refresh": True})

    def readings_between(self, t0_s: float, t1_s: float) -> tuple[Moment, ...]:
        """Return the readings between `t0_s` and `t1_s` (time.monotonic() of this process), and
        also the last one before and the first one after. () without `keep`."""
        return self._moments.readings_between(t0_s, t1_s) if self._moments is not None else ()

    async def wait_for_first_reading(self, timeout_s: float = 20.0) -> Telemetry:
        """Return the first complete reading, or one that reports the driver's problem. If none is
        complete within `timeout_s`, return the latest. Raises HostError if none has arrived."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (self._hopeless or self._is_latest_complete()):
                    self._changed.clear()
                    await self._changed.wait()
        if self.latest is not None:
            return self.latest
        why = (
            NOTHING_TO_READ_WITH
            if self._hopeless
            else f"no telemetry within {timeout_s:.0f} s: {self._missing_reading_reason}"
        )
        raise HostError(
            why,
            host=self.host.name,
            next_step="workbench doctor shows what is missing on that host",
        )

    def _is_latest_complete(self) -> bool:
        if self.latest is None:
            return False
        if self._given == ():
            return True  # this host has none of the GPUs that the driver shows
        status = self.latest.driver.status
        if status is DriverStatus.OK:
            return bool(self.latest.infos)
        return status is not DriverStatus.HUNG

    @property
    def _missing_reading_reason(self) -> str:
        if not self._problem:
            return self._why_silent
        if not self._fallback:
            return self._problem
        return f"{self._problem}, {self._why_silent}"

    @property
    def _why_silent(self) -> str:
        if self._fallback:
            return "nvidia-smi has printed nothing"
        if self._stream is None:
            return "the host's login shell has not started the telemetry agent"
        return "the telemetry agent was started and sent no reading"

    async def _send_agent_request(self, request: dict[str, Any]) -> None:
        if self._stream is not None and not self._fallback:
            # a dead agent is started anew with the present interval
            with suppress(HostError, OSError):
                await self._stream.write(json.dumps(request).encode() + b"\n")

    def _close_stream_in_background(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            task = asyncio.create_task(_close_stream(stream))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _run(self) -> None:
        short, silent = BACKOFF_RANGE_S[0], SILENT_BACKOFF_RANGE_S[0]
        while True:
            began = time.monotonic()
            pause = short
            try:
                agent = not self._fallback
                await (self._follow_agent() if agent else self._follow_nvidia_smi())
                if agent and self._fallback:
                    continue
                self._problem = self._problem or "telemetry ended; starting it again"
            except DriverHungError as why:
                self._problem = str(why)
                self._abandon_s = min(self._abandon_s * 2, ABANDON_RANGE_S[1])
            except TelemetryAbandonedError as why:
                self._problem = f"{why}; the next one starts in {silent:.0f} s"
                pause, silent = silent, min(silent * 2, SILENT_BACKOFF_RANGE_S[1])
            except (HostError, OSError) as error:
                self._problem = getattr(error, "message", None) or str(error)
            finally:
                self._close_stream_in_background()
            if time.monotonic() - began > 10 and pause == short:
                pause = short = BACKOFF_RANGE_S[0]
                silent = SILENT_BACKOFF_RANGE_S[0]
            self._changed.set()
            await asyncio.sleep(pause)
            short = min(short * 2, BACKOFF_RANGE_S[1])

    async def _follow_agent(self) -> None:
        self._given = await self.host.read_job_gpus()
        try:
            orders = {"interval_s": self.interval_s, **self._agent_options}
            stream = await remote_programs.AGENT_PROGRAM.stream(self.host, orders)
        except CommandNotFound:
            return await self._switch_to_nvidia_smi("no python3 on the host")
        self.launched.set()
        self._stream = stream
        decoder = AgentMessageDecoder()
        self._offset = None
        try:
            async with SilenceTimeout(
                self._silent_s + HUNG_CALL_S
            ) as patience:  # python3 has to start
                async for line in stream.lines():
                    document = _parse_agent_line(line)
                    if document is None:
                        continue
                    patience.renew(self._silent_s + self.interval_s)
                    if await self._handle_message_and_should_fall_back(document, decoder):
                        return None
        except TimeoutError:
            raise TelemetryAbandonedError(
                f"the telemetry agent sent nothing for {self._silent_s:.0f} s; Workbench gave up "
                "on it"
            ) from None
        return await self._handle_agent_end(stream)

    async def _handle_message_and_should_fall_back(
        self, document: dict[str, Any], decoder: AgentMessageDecoder
    ) -> bool:
        try:
            if "hung" in document:
                self._handle_hung_call(decode_hung_call(document), decoder)
                return False
            reading = decoder.decode_message(document)
        except ValueError as error:  # whatever answers there is no agent of ours
            raise HostError(
                f"the telemetry agent sent an invalid reading: {error}", host=self.host.name
            ) from None
        if reading is None:
            if decoder.driver.status is DriverStatus.NO_LIBRARY and "driver" in document:
                return await self._can_use_nvidia_smi(decoder)
            return False
        self._publish(reading, self._reading_time_s(reading.t_s))
        return False

    def _handle_hung_call(self, call: HungCall, decoder: AgentMessageDecoder) -> None:
        where = "driver hung" if call.gpu is None else f"driver hung at GPU{call.gpu}"
        message = f"{where}: {call.function} has not returned for {call.for_s:.0f} s"
        self._problem = message
        self.latest = _select_given_gpus(
            self._given, decoder.reading_of_hung_driver(message, call.gpu)
        )
        self._notify_listener(self.latest)
        self._changed.set()
        if call.for_s >= self._abandon_s:
            raise DriverHungError(message + "; Workbench gave up on its telemetry agent")

    async def _handle_agent_end(self, stream: Stream) -> None:
        """Handle the end of the agent's output. If python3 cannot run the agent, switch to
        nvidia-smi; otherwise note why the agent ended, and it is started again."""
        try:
            code = await asyncio.wait_for(stream.wait(), 2)
            said = (await stream.stderr_tail()).strip().splitlines()
        except TimeoutError:
            raise TelemetryAbandonedError(
                "the telemetry agent closed its output but did not end; Workbench gave up on it"
            ) from None
        if code in (TOO_OLD, 126, 127):
            return await self._switch_to_nvidia_smi("python3 on the host is missing or too old")
        if code and not await self._can_start_python():
            return await self._switch_to_nvidia_smi("python3 on the host does not start")
        self._problem = f"the telemetry agent ended with {code}" + (f": {said[-1]}" if said else "")
        return None

    async def _can_start_python(self) -> bool:
        try:
            return await can_start_python(self.host)
        except HostError:  # the link is lost: the agent is started again when it is back
            return True

    async def _switch_to_nvidia_smi(self, why: str) -> None:
        self._fallback = True
        self._problem = f"{why}: reading with nvidia-smi"

    async def _can_use_nvidia_smi(self, decoder: AgentMessageDecoder) -> bool:
        """Return whether nvidia-smi can read the GPUs although NVML's library is missing, as in
        some containers. It is tried only once; later calls return False. If it does not answer in
        time, `decoder` gets a driver that hangs."""
        if self._fallback_tried:
            return False
        from workbench.gpu.telemetry.nvidia_smi_stream import NvidiaSmiFollower

        self._fallback_tried = True
        try:
            async with asyncio.timeout(NVIDIA_SMI_TIMEOUT_S):
                self._fallback = await NvidiaSmiFollower(self.host, self.interval_s).probe() is None
        except HostError:
            self._fallback = False
        except TimeoutError:
            self._fallback = False
            message = f"nvidia-smi did not answer in {NVIDIA_SMI_TIMEOUT_S:g} s, and libnvidia-ml.so.1 was not found"
            decoder.driver = replace(
                decoder.driver, status=DriverStatus.HUNG, message=message, source="nvidia-smi"
            )
        return self._fallback

    async def _follow_nvidia_smi(self) -> None:
        from workbench.gpu.telemetry.nvidia_smi_stream import NvidiaSmiFollower

        follower = NvidiaSmiFollower(self.host, self.interval_s, await self._is_host_simulated())

        def record_stream(stream: Any) -> None:
            self._stream = stream

        try:
            async with SilenceTimeout(60.0) as patience:
                async for reading in follower.readings(record_stream):
                    patience.renew(self._silent_s + 3 * self.interval_s)
                    self._publish(reading, time.monotonic())
        except TimeoutError:
            raise TelemetryAbandonedError(
                f"nvidia-smi printed nothing for {self._silent_s:.0f} s; Workbench gave up on it"
            ) from None
        except CommandNotFound:
            self._hopeless = True
            raise HostError(NOTHING_TO_READ_WITH, host=self.host.name) from None

    async def _is_host_simulated(self) -> bool:
        return (await self.host.facts()).simulated is not None

    def _reading_time_s(self, agent_s: float) -> float:
        """Return when the agent made a reading, in time.monotonic() of this process. `agent_s` is
        that time on the agent's clock. The difference between the clocks is taken from the fastest
        delivery so far, so that a late delivery gives no wrong time. It may grow slowly, because
        the clocks drift apart."""
        now = time.monotonic()
        offset = now - agent_s
        if self._offset is not None:
            best, when = self._offset
            offset = min(offset, best + MAX_CLOCK_DRIFT * (now - when))
        self._offset = (offset, now)
        return agent_s + offset

    def _publish(self, reading: Telemetry, at_s: float) -> None:
        self.latest = reading = self._places.add_names_and_containers(
            _select_given_gpus(self._given, reading)
        )
        self._arrived = time.monotonic()
        self._problem = None
        self._abandon_s = self._abandon_first_s
        if self._moments is not None:
            self._moments.add_reading(reading, at_s)
        self._changed.set()
        self._notify_listener(reading)

    def _notify_listener(self, reading: Telemetry) -> None:
        """Call `on_telemetry`. An exception there must not end the readings, so it only becomes the
        text of `problem`."""
        if self._on_telemetry is None:
            return
        try:
            self._on_telemetry(reading)
        except Exception as error:
            self._problem = f"a defect in Workbench: {type(error).__name__}: {error}"


def _select_given_gpus(given: tuple[str, ...] | None, reading: Telemetry) -> Telemetry:
    """Return the reading with only those GPUs that `given` names by index or by the beginning of
    the UUID. If `given` is None, return the reading as it is."""
    if given is None:
        return reading
    infos = tuple(
        info for info in reading.infos if str(info.index) in given or info.uuid.startswith(given)
    )
    indices = {info.index for info in infos}
    gpus = tuple(sample for sample in reading.gpus if sample.index in indices)
    return replace(reading, infos=infos, gpus=gpus)


def _parse_agent_line(line: bytes) -> dict[str, Any] | None:
    """Return a line of the agent's output as a JSON object; None for other text, such as the output
    of a login script."""
    if not line.startswith(b"{"):
        return None
    try:
        found = clean_json(line, NAME_CHARS)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


async def _close_stream(stream: Stream) -> None:
    with suppress(Exception):  # it is being abandoned: there is nothing left to do about it
        await stream.close()
