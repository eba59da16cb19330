"""A simulated engine on a clock of its own: the launch options, the memory and the scheduler of
workbench/sim, without processes and without waiting. A run of a benchmark takes milliseconds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from workbench.model.slo import Limit, LimitAttained
from workbench.sim import engines, launch_options, memory_fit, profiles
from workbench.sim.driver_state import SimState
from workbench.sim.flag_parser import ArgumentsRejected
from workbench.sim.memory_fit import Failure
from workbench.sim.scheduler import Replica
from workbench.sim.scheduler import Sequence as Request
from workbench.sim.step_time import ModelReplica


class NotStarted(Exception):
    """Raised when a server does not start. Its text is the reason in the engine's own words."""


@dataclass(frozen=True)
class Load:
    """A closed loop: each of `users` sends its next request when its last one has ended."""

    users: int
    requests: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Run:
    """What a run measured. The TTFTs are of all requests."""

    tok_s: float
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]

    duration_s: float

    @property
    def ttft_p50_ms(self) -> float:
        return median(self.ttft_ms)

    def latencies_ms(self, limit: Limit) -> tuple[float, ...]:
        """Return the latencies of all requests that a limit is about."""
        return {"ttft": self.ttft_ms, "tpot": self.tpot_ms}[limit.latency]

    def goodput(self, limits: Sequence[Limit]) -> float:
        """Return how many requests a second kept all limits."""
        each = zip(*(self.latencies_ms(limit) for limit in limits), strict=True)
        most = [limit.most_ms for limit in limits]
        kept = sum(all(ms <= top for ms, top in zip(one, most, strict=True)) for one in each)
        return kept / self.duration_s


def attained(run: Run, limit: Limit) -> LimitAttained:
    """Return how many of the requests of a run kept a limit."""
    found = sorted(run.latencies_ms(limit))
    kept = sum(ms <= limit.most_ms for ms in found)
    reached = found[min(len(found) - 1, math.ceil(limit.percent / 100 * len(found)) - 1)]
    kept_pct = 100 * kept / len(found)
    return LimitAttained(str(limit), limit.percent, kept_pct, reached, limit.most_ms)


@dataclass
class VirtualServer:
    """A server of the arguments `argv`, the program included, on a simulated host. Servers that are
    started alike differ by `server_pct` percent (standard deviation), and runs by `run_pct`."""

    profile: str
    engine: str
    argv: Sequence[str]
    state_dir: Path
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    server_pct: float = 0.0
    run_pct: float = 0.0

    def __post_init__(self) -> None:
        """Start the server. Raises NotStarted if the engine would not start."""
        kind = engines.load_engine(self.engine)
        words = list(self.argv[1:])
        state = SimState(str(self.state_dir), profiles.get_profile(self.profile))
        try:
            self.launch = launch_options.read_launch_options(
                kind, kind.select_flag_arguments(words)
            )
            self.fit = memory_fit.fit_server_on_gpus(self.launch, state)
        except (ArgumentsRejected, Failure) as failure:
            raise NotStarted(str(failure)) from failure
        self.factor = 1 + self.rng.gauss(0.0, self.server_pct / 100)

    def run(self, load: Load) -> Run:
        factor = self.factor * (1 + self.rng.gauss(0.0, self.run_pct / 100))
        replicas = [self._replica(factor) for _ in self.fit.replicas]
        made: list[Request] = []

        def send(at_s: float) -> None:
            if len(made) == load.requests:
                return
            number = len(made)
            prompt = [f"{number}.{word}" for word in range(load.input_tokens)]
            replica = min(replicas, key=lambda one: one.unfinished_request_count)

            def delivered(_: int, finished: bool) -> None:
                if finished:
                    send(request.last)

            request = Request(prompt, load.output_tokens, delivered, arrived=at_s)
            made.append(request)
            if not replica.unfinished_request_count:
                replica.moment = max(replica.moment, at_s)
            replica.waiting.append(request)

        for _ in range(load.users):
            send(0.0)
        while busy := [one for one in replicas if one.unfinished_request_count]:
            replica = min(busy, key=lambda one: one.moment)
            replica._run_step()
            replica._deliver_pending_tokens()
        lasted_s = max(one.last for one in made)
        return Run(
            sum(one.generated for one in made) / lasted_s,
            tuple(1000 * (one.first - one.arrived) for one in made),
            tuple(1000 * one.decode_s / max(1, one.generated - 1) for one in made),
            lasted_s,
        )

    def _replica(self, factor: float) -> Replica:
        launch, profile = self.launch, profiles.get_profile(self.profile)
        gpu = profile.gpu
        serving = ModelReplica(
            gpu,
            profile.interconnect,
            launch.model,
            launch.tp,
            launch.eager,
            launch.custom_all_reduce,
            launch.engine.bandwidth_share,
        )
        clocks = float(gpu.sm_compute_mhz), float(gpu.memory_compute_mhz)
        return Replica(
            serving,
            kv_tokens=self.fit.kv_tokens,
            max_sequences=launch.max_sequences,
            batched_tokens=launch.batched_tokens,
            prefix_cache=launch.prefix_cache,
            clocks=lambda: clocks,
            speedup=factor,
            noise=0.0,
        )
