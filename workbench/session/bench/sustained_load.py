"""A load on a server, under which GPU settings settle or are checked. The load stores no result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.errors import BenchError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress, BenchSpec

MAX_REQUESTS = 20_000  # more than a server answers in the time: 2,000 per second for 10 s
_POLL_INTERVAL_S = 0.1
_FIRST_TOKEN_TIMEOUT_S = 120.0  # without a token for this long, the load is given up


@dataclass(frozen=True, slots=True)
class DrivenLoad:
    """The outcome of a load. `t0_s` and `t1_s` are its begin and end in time.monotonic() of this
    process."""

    t0_s: float
    t1_s: float
    output_tok_s: float


async def drive_load(
    spec: BenchSpec,
    env: Mapping[str, str],
    cancel: asyncio.Event,
    has_run_enough: Callable[[float], bool],
    on_progress: Callable[[BenchProgress], None] = lambda progress: None,
) -> DrivenLoad:
    """Load the server with the shape of `spec` until `has_run_enough(seconds under load)` is true,
    then drop the requests in flight. Return the outcome. Raises BenchCancelled when `cancel` is
    set, and BenchError if the server answers nothing or the load ends by itself."""
    from workbench.bench import runner

    newest: list[BenchProgress] = []
    began: list[float] = []

    def record_progress(progress: BenchProgress) -> None:
        if not began and (progress.output_tokens or progress.streaming >= spec.concurrency):
            began.append(time.monotonic())
        newest[:] = [progress]
        on_progress(progress)

    end = asyncio.Event()
    spec = replace(
        spec,
        requests=max(spec.requests, MAX_REQUESTS),
        warmup=0,
        seconds=None,
        until_steady=False,
        command=(),
    )
    load = asyncio.create_task(
        runner.run_load(spec, on_progress=record_progress, cancel=end, env=env)
    )
    started = time.monotonic()
    try:
        while not load.done():
            if cancel.is_set():
                raise runner.BenchCancelled(
                    "the load was cancelled", next_step="nothing was stored; repeat the command"
                )
            if began and has_run_enough(time.monotonic() - began[0]):
                break
            _raise_if_silent(spec, newest[-1] if newest else None, time.monotonic() - started)
            await asyncio.wait({load}, timeout=_POLL_INTERVAL_S)
        if load.done():
            errors = dict(load.result().summary.errors)
            raise BenchError(
                f"the load on the server ended too early: {errors or 'no request was answered'}",
                next_step="look for the cause in the server's log: workbench logs",
            )
        last = newest[-1]
        return DrivenLoad(began[0], time.monotonic(), last.output_tok_s)
    finally:
        end.set()
        with suppress(WorkbenchError):  # BenchCancelled: the normal end
            await load


def _raise_if_silent(spec: BenchSpec, progress: BenchProgress | None, waited_s: float) -> None:
    """Raise BenchError if all requests failed, or if the server has returned no token after
    _FIRST_TOKEN_TIMEOUT_S seconds."""
    if progress is not None:
        if progress.output_tokens or progress.streaming:
            return
        if progress.failed >= spec.concurrency and not progress.done:
            raise BenchError(
                f"the server answered none of {progress.failed} requests",
                next_step="run `workbench bench`, which lists the errors by kind",
            )
    if waited_s > _FIRST_TOKEN_TIMEOUT_S:
        raise BenchError(
            f"the server returned no token within {_FIRST_TOKEN_TIMEOUT_S:.0f} s",
            next_step="look for the cause in the server's log: workbench logs",
        )
