"""Continuous batching of one simulated replica: running requests, step times and delivery of
tokens.

Times are those of the event loop. A step ends at a computed moment. The loop sleeps until then, and
delivers one token to every running request. If the machine is too slow, the loop runs all steps
that are due and delivers their tokens in one chunk, so that the simulated rate does not depend on
the load of the machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import field

from workbench.model.lazy_dataclass import dataclass
from workbench.sim import step_time
from workbench.sim.physics import GpuActivity, relative_speed_drift
from workbench.sim.step_time import ModelReplica

BLOCK = 16  # tokens of a prefix-cache block
SLIP_S = 0.25  # largest delay of the simulation; beyond it, its clock is set forward


@dataclass
class Sequence:
    """A request that is being answered. Its method `deliver(tokens, finished)` is called with the
    number of new tokens and whether they are the last. Times are seconds on the clock of the event
    loop."""

    prompt: list[str]
    length: int  # tokens that it will generate; 1 for an embedding, whose end it stands for
    deliver: Callable[[int, bool], None]
    arrived: float = 0.0
    cached: int = 0
    to_prefill: int = 0
    generated: int = 0
    pending: int = 0
    admitted: float = 0.0
    first: float = 0.0
    last: float = 0.0
    aborted: bool = False
    embedding: bool = False
    most_together: int = 1  # requests of the largest batch in which it was
    blocks: list[int] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether all tokens are generated, or the client has gone."""
        return self.aborted or self.generated >= self.length

    @property
    def context_tokens(self) -> int:
        return len(self.prompt) + self.generated

    @property
    def prefill_s(self) -> float:
        """Seconds from the admission of the request to its first token."""
        return self.first - self.admitted

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last one."""
        return self.last - self.first


@dataclass
class Counters:
    """Totals since the start of the server, for /metrics and the statistics lines."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first_tokens: int = 0  # requests whose prompt has been processed
    finished: int = 0
    finished_prompt_tokens: int = 0  # of requests that have ended, as some engines count them
    finished_cached_tokens: int = 0
    finished_tokens: int = 0
    steps: int = 0
    busy_sequence_steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)

    def pop_latencies_s(self) -> dict[str, list[float]]:
        """Return {name: values} of the times measured since the last call, such as "ttft_s" and
        "queue_s", in seconds."""
        taken = {}
        for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s"):
            taken[name] = getattr(self, name)
            setattr(self, name, [])
        return taken


class PrefixCache:
    """The blocks of prompts that are in the KV cache. A block is stored as a hash of itself and all
    blocks before it. When the cache is full, the least recently used blocks are removed."""

    def __init__(self, blocks: int) -> None:
        self.room = max(1, blocks)
        self.known: OrderedDict[int, None] = OrderedDict()

    def find_cached_tokens_and_hashes(self, prompt: list[str]) -> tuple[int, list[int]]:
        """Return (number of the prompt's tokens that need no prefill because they are in the cache,
        hashes of the prompt's blocks). The last token always needs prefill."""
        hashes, link = [], 0
        for at in range(0, len(prompt) - BLOCK + 1, BLOCK):
            link = hash((link, *prompt[at : at + BLOCK]))
            hashes.append(link)
        hits = 0
        for word in hashes:
            if word not in self.known:
                break
            self.known.move_to_end(word)
            hits += 1
        return min(hits * BLOCK, (len(prompt) - 1) // BLOCK * BLOCK), hashes

    def add_block_hashes(self, hashes: list[int]) -> None:
        for word in hashes:
            self.known[word] = None
            self.known.move_to_end(word)
        while len(self.known) > self.room:
            self.known.popitem(last=False)


class Replica:
    """One replica of the model in data parallelism. It admits requests, runs steps and delivers
    tokens."""

    def __init__(
        self,
        serving: ModelReplica,
        *,
        kv_tokens: int,
        max_sequences: int,
        batched_tokens: int,
        prefix_cache: bool,
        clocks: Callable[[], tuple[float, float]],
        speedup: float = 1.0,
        noise: float = 0.005,
        drift_size: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.serving = serving
        self.kv_tokens = kv_tokens
        self.max_sequences = max_sequences
        self.batched_tokens = batched_tokens
        self.cache = PrefixCache(kv_tokens // BLOCK) if prefix_cache else None
        self.clocks = clocks
        self.speedup = speedup
        self.random = random.Random(seed)
        self.noise = noise
        self.drift_size = drift_size
        self.factor = 1.0 + self.random.gauss(0.0, noise) if noise else 1.0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._done: list[Sequence] = []
        self.reserved = 0  # KV tokens of running requests at their full length
        self.counters = Counters()
        self.wake = asyncio.Event()
        self.moment = 0.0  # end of the current step
        # seconds of steps, of memory and of compute since the last call of `pop_activity`
        self.work = (0.0, 0.0, 0.0)
        # without a request; `idle_since` is the start of the idle time, 0 during requests
        self.idle_s = 0.0
        self.idle_since = 0.0
        self.on_prefill: Callable[[list[Sequence], int], None] | None = None
        self.on_step: Callable[[], None] | None = None

    @property
    def unfinished_request_count(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def used_kv_tokens(self) -> int:
        return sum(s.context_tokens for s in self.running)

    def add_sequence(self, sequence: Sequence) -> None:
        sequence.arrived = asyncio.get_running_loop().time()
        self.waiting.append(sequence)
        self.wake.set()

    def abort(self, sequence: Sequence) -> None:
        sequence.aborted = True
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    def pop_activity(self, interval_s: float) -> GpuActivity:
        """Return the activity of the replica's GPUs since the last call, `interval_s` seconds ago,
        and begin to count anew. If no step has ended since and one still runs, return the activity
        during such a step."""
        now = asyncio.get_running_loop().time()
        idle, self.idle_s = self.idle_s, 0.0
        if self.idle_since:
            idle += now - self.idle_since
            self.idle_since = now
        (stepped, memory, compute), self.work = self.work, (0.0, 0.0, 0.0)
        if stepped == 0.0:
            if not self.running:
                return GpuActivity()
            return self._compute_engine_step(len(self.running), 0).activity  # a step still runs
        busy = max(0.0, 1.0 - idle / max(interval_s, 1e-6))
        return GpuActivity(
            busy, busy * min(1.0, memory / stepped), busy * min(1.0, compute / stepped), 0.0
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self.unfinished_request_count:
                self.wake.clear()
                self.idle_since = loop.time()
                await self.wake.wait()
                self.moment = loop.time()
                self.idle_s, self.idle_since = self.idle_s + self.moment - self.idle_since, 0.0
            now = loop.time()
            if now - self.moment > SLIP_S:
                self.moment = now
            taken = 0
            while self.unfinished_request_count and taken < 64:
                self._run_step()
                taken += 1
                if self.moment > loop.time():
                    break
            delay = self.moment - loop.time()
            await asyncio.sleep(max(0.0, delay))
            self._deliver_pending_tokens()

    def _run_step(self) -> None:
        self._admit_requests()
        budget = max(1, self.batched_tokens - len(self.running))
        prefill, fresh = 0, []
        for sequence in self.running:
            if sequence.to_prefill and budget > prefill:
                take = min(sequence.to_prefill, budget - prefill)
                sequence.to_prefill -= take
                prefill += take
                fresh.append(sequence)
        decoding = sum(1 for s in self.running if s.generated)
        one = self._compute_engine_step(decoding, prefill)
        jitter = self.factor * (1.0 + self.random.gauss(0.0, self.noise)) if self.noise else 1.0
        if self.drift_size:
            jitter /= 1.0 + relative_speed_drift(time.time(), self.drift_size)
        seconds = one.total_s * jitter / self.speedup
        self.moment += seconds
        stepped, memory, compute = self.work
        self.work = (stepped + one.total_s, memory + one.memory_s, compute + one.compute_s)
        counters = self.counters
        counters.steps += 1
        counters.busy_sequence_steps += len(self.running)
        if prefill:
            counters.prefill_s += seconds
        else:
            counters.decode_s += seconds
        if fresh and self.on_prefill:
            self.on_prefill(fresh, prefill)
        self._generate_step_tokens()
        if self.on_step:
            self.on_step()

    def _compute_engine_step(self, decoding: int, prefill: int) -> step_time.EngineStep:
        sm_mhz, memory_mhz = self.clocks()
        return step_time.compute_engine_step(
            self.serving,
            sm_mhz=sm_mhz,
            memory_mhz=memory_mhz,
            sequences=max(decoding, 0 if prefill else 1),
            context_tokens=self.used_kv_tokens,
            prefill_tokens=prefill,
        )

    def _admit_requests(self) -> None:
        while self.waiting and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            need = len(sequence.prompt) + sequence.length
            if self.running and self.reserved + need > self.kv_tokens:
                return
            self.waiting.popleft()
            sequence.admitted = max(self.moment, sequence.arrived)
            self.moment = max(self.moment, sequence.arrived)
            if self.cache:
                sequence.cached, sequence.blocks = self.cache.find_cached_tokens_and_hashes(
                    sequence.prompt
                )
            sequence.to_prefill = len(sequence.prompt) - sequence.cached
            self.reserved += need
            self.running.append(sequence)
            for one in self.running:
                one.most_together = max(one.most_together, len(self.running))
            self.counters.prompt_tokens += len(sequence.prompt)
            self.counters.cached_tokens += sequence.cached
            self.counters.queue_s.append(sequence.admitted - sequence.arrived)

    def _generate_step_tokens(self) -> None:
        counters, moment = self.counters, self.moment
        for sequence in self.running:
            if sequence.to_prefill:
                continue
            if sequence.generated:
                counters.itl_s.append(moment - sequence.last)
            else:
                sequence.first = moment
                counters.first_tokens += 1
                counters.ttft_s.append(moment - sequence.arrived)
                if self.cache:
                    self.cache.add_block_hashes(sequence.blocks)
            sequence.last = moment
            sequence.generated += 1
            sequence.pending += 1
            counters.generated_tokens += not sequence.embedding
        finished = [sequence for sequence in self.running if sequence.is_finished]
        for sequence in finished:
            self._finish_request(sequence)
        if finished:
            self.running = [sequence for sequence in self.running if not sequence.is_finished]

    def _finish_request(self, sequence: Sequence) -> None:
        self.reserved -= len(sequence.prompt) + sequence.length
        counters = self.counters
        if sequence.aborted:
            sequence.pending = 0
            return
        counters.finished += 1
        counters.finished_prompt_tokens += len(sequence.prompt)
        counters.finished_cached_tokens += sequence.cached
        if not sequence.embedding:
            counters.finished_tokens += sequence.generated
        counters.e2e_s.append(sequence.last - sequence.arrived)
        if sequence.generated > 1:
            counters.tpot_s.append((sequence.last - sequence.first) / (sequence.generated - 1))
        self._done.append(sequence)

    def _deliver_pending_tokens(self) -> None:
        for sequence in self.running:
            if sequence.pending:
                count, sequence.pending = sequence.pending, 0
                sequence.deliver(count, False)
        done, self._done = self._done, []
        for sequence in done:
            count, sequence.pending = sequence.pending, 0
            sequence.deliver(count, True)
