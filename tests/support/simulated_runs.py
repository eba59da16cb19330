"""Runs of an experiment without servers: what the simulated engine's speed model gives, with the
noise of machines.

    log speed of run i = log model + effect (B) + AR(1) over runs + drift i + this server's own +
    mean of the requests
                         + a wave + what is drawn once per arm + what disturbs single runs

Defaults: run to run 0.7 % with correlation 0.5 between neighbours, drift 0.3 % per run, 6 % from
request to request at 128 requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Conditions, Distribution
from workbench.model.experiment import Experiment, ExperimentRun
from workbench.sim import model_sizes, step_time
from workbench.sim.profiles import PROFILES

REQUESTS, TOKENS, STREAMS = 128, 128, 8
TWINS = ("one", "two")  # hosts of an experiment on twins
SERVING = step_time.ModelReplica(
    PROFILES["rtx-pro-6000"].gpu,
    PROFILES["rtx-pro-6000"].interconnect,
    model_sizes.describe_model("Qwen/Qwen3-32B-AWQ"),
)


@dataclass(frozen=True)
class Noise:
    """Relative noise, as standard deviations; `drift` is per run, and `correlation` is between
    neighbouring runs."""

    run: float = 0.007
    correlation: float = 0.5
    drift: float = 0.003
    request: float = 0.06
    start: float = 0.0  # from server to server
    # how much slower a warm machine is than the cold one of the first run, reached within 5 runs
    warm_up: float = 0.0
    second: float = 0.0  # how much faster the second run of a pair is than its first
    outliers: float = 0.0  # share of runs that somebody disturbs: slower by 2 to 8 %
    # amplitude of a disturbance that returns every fourth run (a cron job, a fan's cycle)
    wave: float = 0.0
    cold: float = 0.0  # how much slower the very first run is
    # drawn once per arm and kept by all its runs: what its compile cache happened to hold
    arm: float = 0.0
    two_speeds: float = 0.0  # a server is slower or faster by this, by chance at its start
    step: float = 0.0  # how much slower all is from one of the first ten runs on
    b_noise: float = 0.0  # of B's runs alone, on top
    # The share of B's runs that are slower by `b_outlier_size`, compared with B's mean over many
    # runs, which stays the same.
    b_outliers: float = 0.0
    b_outlier_size: float = 0.0
    # of each other metric by itself, on top of what it has in common with the speed
    apart: float = 0.0
    machine: float = 0.0  # how much faster the second of the TWINS is


REALISTIC = Noise()


class SimulatedRuns:
    """A replacement for session/series/experiment_arms.py: an experiment gets its servers and measurements
    from here. `effect` is the true advantage of B (0.03 = 3 %). `shared_starts` uses one server for
    neighbouring runs of an arm, which the product does not do."""

    def __init__(
        self,
        effect: float,
        seed: int,
        noise: Noise = REALISTIC,
        *,
        restarts: bool = True,
        shared_starts: bool = False,
    ) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.noise = noise
        self.effect = effect
        self.restarts, self.shared_starts = restarts, shared_starts
        self.started_run_id: str | None = None
        self.starts = 0
        self.results: list[BenchResult] = []
        self.spoil: Callable[[ExperimentRun, BenchSummary], BenchSummary] = lambda run, summary: (
            summary
        )
        self._arm = ""
        self._pair: int | None = None  # of the run before
        self._start_effect = 0.0
        self._wander = self.random.gauss(0, noise.run)
        self._phase = self.random.uniform(0, 2 * math.pi)
        self._step_at = self.random.randrange(1, 10)
        self._of_arm = {arm: self.random.gauss(0, noise.arm) for arm in "AB"}

    async def must_compile_first(self, arm: str) -> bool:
        return False

    async def start_or_reuse_server(
        self, arm: str, note_run_id: Callable[[str], Awaitable[None]]
    ) -> str:
        keep = not self.restarts or (self.shared_starts and arm == self._arm)
        if self.started_run_id is None or not keep:
            self.starts += 1
            await note_run_id(f"run-{self.starts}")
            self.started_run_id = f"run-{self.starts}"
            self._start_effect = self._start_noise()
        self._arm = arm
        return self.started_run_id

    async def await_server_and_apply_settings(
        self, arm: str, run_id: str, tell: Callable[[str], None]
    ) -> None:
        assert run_id == self.started_run_id

    async def stop_server_and_revert_settings(self) -> None:
        self.started_run_id = None

    async def wait_then_read_temperature_c(
        self, target_c: float | None, within_c: float, tell: Callable[[str], None]
    ) -> float | None:
        return None

    async def read_start_s_and_settings(
        self, arm: str, run_id: str
    ) -> tuple[float | None, Mapping[str, str]]:
        return None, {}

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        place = len(self.results)
        second = run.pair == self._pair
        self._pair = run.pair
        return self.result(run, self._factor(run.arm, place, second), seed)

    def result(self, run: ExperimentRun, factor: float, seed: int) -> BenchResult:
        """Return the result of a run that is `factor` times as fast as the model, on the host of
        the run."""
        machine = self.noise.machine if run.host == TWINS[1] else 0.0
        result = result_of(len(self.results) + 1, run.arm, factor * (1 + machine), seed)
        summary = self._apart(result.summary) if self.noise.apart else result.summary
        conditions = replace(result.conditions, host=run.host or result.conditions.host)
        result = replace(result, summary=self.spoil(run, summary), conditions=conditions)
        self.results.append(result)
        return result

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        self.started_run_id = None
        return ()

    def speed(self, arm: str, place: int) -> float:
        """Return the speed of the run at this position on a server of its own, without the noise of
        its requests."""
        self._start_effect = self._start_noise()
        return self._factor(arm, place, place % 2 == 1)

    def _start_noise(self) -> float:
        speeds = self.random.choice((-1, 1)) * self.noise.two_speeds
        return self.random.gauss(0, self.noise.start) + speeds

    def _factor(self, arm: str, place: int, second: bool) -> float:
        noise, gauss = self.noise, self.random.gauss
        if place:
            fresh = gauss(0, noise.run * math.sqrt(1 - noise.correlation**2))
            self._wander = noise.correlation * self._wander + fresh
        requests = gauss(0, noise.request / math.sqrt(REQUESTS))
        truth = math.log1p(self.effect) if arm == "B" else 0.0
        around = noise.drift * place + noise.warm_up * math.exp(-place / 2) + noise.second * second
        if noise.outliers and self.random.random() < noise.outliers:
            around -= self.random.uniform(0.02, 0.08)
        around += noise.wave * math.sin(self._phase + math.pi / 2 * place)
        around -= noise.cold * (place == 0) + noise.step * (place >= self._step_at)
        if noise.b_outliers and arm == "B":
            hit = self.random.random() < noise.b_outliers
            around -= noise.b_outlier_size * (hit - noise.b_outliers)
        around += self._of_arm[arm] + gauss(0, noise.b_noise) * (arm == "B")
        return math.exp(truth + self._wander + around + self._start_effect + requests)

    def _apart(self, summary: BenchSummary) -> BenchSummary:
        def moved(of: Distribution | None) -> Distribution | None:
            return of and _spread(of.mean * math.exp(self.random.gauss(0, self.noise.apart)))

        changed = {
            name: moved(getattr(summary, name))
            for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
        }
        return replace(summary, **changed)  # type: ignore[arg-type]


def _spec(seed: int) -> BenchSpec:
    return BenchSpec("", "m", concurrency=STREAMS, requests=REQUESTS, max_tokens=TOKENS, seed=seed)


_CONDITION = {
    "host": "sim",
    "engine": "vllm",
    "engine_version": "0.33.0",
    "model": SERVING.model.id,
    "simulated": True,
}
CONDITIONS = {arm: Conditions(**_CONDITION, flags={"knob": arm}) for arm in "AB"}  # type: ignore[arg-type]


def result_of(number: int, arm: str, factor: float, seed: int = 0) -> BenchResult:
    """Return the result of a run that is `factor` times as fast as the model."""
    return BenchResult(number, 0.0, _spec(seed), CONDITIONS[arm], _summary(factor))


def _summary(factor: float) -> BenchSummary:
    """Return the summary of a run whose steps are `factor` times as fast as the model's."""
    gpu = SERVING.gpu
    clocks = {"sm_mhz": gpu.sm_compute_mhz, "memory_mhz": gpu.memory_compute_mhz}
    step_s = (
        step_time.compute_engine_step(
            SERVING, **clocks, sequences=STREAMS, context_tokens=192 * STREAMS
        ).total_s
        / factor
    )
    prefill_s = (
        step_time.compute_engine_step(
            SERVING, **clocks, sequences=1, context_tokens=128, prefill_tokens=128
        ).total_s
        / factor
    )
    request_s = prefill_s + step_s * (TOKENS - 1)
    tok_s = STREAMS * TOKENS / request_s
    itl, ttft, e2e = (_spread(1000 * s) for s in (step_s, prefill_s, request_s))
    return BenchSummary(
        REQUESTS,
        0,
        {},
        REQUESTS * 128,
        REQUESTS * TOKENS,
        0,
        REQUESTS * TOKENS / tok_s,
        tok_s,
        STREAMS / request_s,
        ttft,
        itl,
        itl,
        e2e,
        1.0,
        tok_s / STREAMS,
        gpu.power_decode_w,
        gpu.power_decode_w * REQUESTS * TOKENS / tok_s,
        tok_s / gpu.power_decode_w,
        client_cpu_pct=5.0,
    )


def _spread(mean: float) -> Distribution:
    return Distribution(mean, mean, 1.1 * mean, 1.3 * mean, mean / 2, 2 * mean, REQUESTS)
