"""Continuous batching: limits are respected, every token arrives once, and time follows the model,
not the machine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_speed import single_stream_tok_s

from workbench.sim import model_sizes, profiles, step_time
from workbench.sim.scheduler import BLOCK, PrefixCache, Replica, Sequence

HOST = profiles.get_profile("rtx-5060ti-x2")
MODEL = model_sizes.describe_model("Qwen/Qwen2.5-7B-Instruct-AWQ")
SERVING = step_time.ModelReplica(HOST.gpu, HOST.interconnect, MODEL)


@dataclass
class Client:
    tokens: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, tokens: int, finished: bool) -> None:
        assert not self.done.is_set()
        self.tokens += tokens
        if finished:
            self.done.set()


def replica(**more) -> Replica:
    fixed = {
        "kv_tokens": 100_000,
        "max_sequences": 64,
        "batched_tokens": 2048,
        "prefix_cache": True,
        "noise": 0.0,
    }
    clocks = (float(HOST.gpu.sm_compute_mhz), float(HOST.gpu.memory_compute_mhz))
    return Replica(SERVING, clocks=lambda: clocks, seed=1, **{**fixed, **more})


def serve(one: Replica, jobs: list[tuple[int, int]]) -> tuple[list[Client], list[Sequence], float]:
    """Run jobs of (prompt tokens, tokens to generate) until they end. Return the seconds of the
    loop's clock."""

    async def run() -> tuple[list[Client], list[Sequence], float]:
        loop = asyncio.get_running_loop()
        clients = [Client() for _ in jobs]
        sequences = [
            Sequence([f"{i}-{k}" for k in range(prompt)], length, client.deliver)
            for i, ((prompt, length), client) in enumerate(zip(jobs, clients, strict=True))
        ]
        worker = loop.create_task(one.run())
        for sequence in sequences:
            one.add_sequence(sequence)
        await asyncio.wait_for(asyncio.gather(*(c.done.wait() for c in clients)), 30)
        worker.cancel()
        return (
            clients,
            sequences,
            max(s.last for s in sequences) - min(s.arrived for s in sequences),
        )

    return asyncio.run(run())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(1, 8),
)
def test_every_request_gets_exactly_its_tokens_within_the_limits(jobs, limit):
    seen = []
    one = replica(speedup=3000.0, max_sequences=limit, kv_tokens=8000, batched_tokens=512)
    one.on_step = lambda: seen.append((len(one.running), one.used_kv_tokens))
    clients, sequences, _ = serve(one, jobs)
    assert [c.tokens for c in clients] == [length for _, length in jobs]
    assert max(n for n, _ in seen) <= limit and max(used for _, used in seen) <= 8000
    assert one.counters.generated_tokens == sum(length for _, length in jobs)
    assert one.counters.prompt_tokens == sum(prompt for prompt, _ in jobs)
    assert one.counters.finished == len(jobs) and one.reserved == 0 and not one.running
    for sequence in sequences:
        assert sequence.arrived <= sequence.admitted <= sequence.first <= sequence.last


def test_requests_take_the_time_of_the_model():
    one = replica()
    _, (sequence,), _ = serve(one, [(16, 50)])
    step = 1 / single_stream_tok_s(SERVING, context_tokens=40)
    assert sequence.last - sequence.first == pytest.approx(49 * step, rel=0.02)


def test_a_slow_machine_does_not_slow_the_simulation():
    """Steps of 25 µs are too short for a sleep each: several tokens then come at a time, at the
    same rate."""
    one = replica(speedup=500.0)
    clients, _, seconds = serve(one, [(16, 2000)])
    step = 1 / single_stream_tok_s(SERVING, context_tokens=1000) / 500
    assert clients[0].tokens == 2000
    # slower on a busy machine, but never as slow as 2,000 sleeps of at least 50 µs each
    assert 0.85 * 2000 * step < seconds < 2000 * (step + 50e-6)


def test_long_prompts_are_prefilled_in_chunks_beside_running_requests():
    one = replica(speedup=20.0, batched_tokens=256)
    _, sequences, _ = serve(one, [(16, 40), (2000, 4)])
    assert sequences[0].generated == 40
    assert sequences[1].first - sequences[1].arrived > 2 * (
        sequences[0].first - sequences[0].arrived
    )


def test_noise_is_seeded_and_small():
    def seconds(seed: int, noise: float) -> float:
        one = Replica(
            SERVING,
            kv_tokens=10_000,
            max_sequences=4,
            batched_tokens=2048,
            prefix_cache=False,
            clocks=lambda: (2745.0, 14001.0),
            noise=noise,
            seed=seed,
        )
        one.waiting.append(Sequence(["x"] * 16, 100, lambda tokens, finished: None))
        for _ in range(100):
            one._run_step()
        return one.moment

    quiet = seconds(1, 0.0)
    assert seconds(1, 0.005) == seconds(1, 0.005) != seconds(2, 0.005)
    spread = [seconds(seed, 0.005) / quiet - 1 for seed in range(40)]
    assert max(map(abs, spread)) < 0.025
    assert 0.002 < (sum(s * s for s in spread) / len(spread)) ** 0.5 < 0.009


def test_activity_distinguishes_busy_from_idle():
    async def run() -> None:
        one = replica()
        worker = asyncio.get_running_loop().create_task(one.run())
        await asyncio.sleep(0)
        assert one.pop_activity(1.0).busy == 0.0
        client = Client()
        began = asyncio.get_running_loop().time()
        one.add_sequence(Sequence(["x"] * 16, 30, client.deliver))
        await client.done.wait()
        await asyncio.sleep(0)
        worked_s = asyncio.get_running_loop().time() - began
        one.idle_since -= worked_s  # as if it had been idle for as long as it worked
        shares = one.pop_activity(2 * worked_s)
        assert 0.4 < shares.busy < 0.65 and shares.memory > 0.8 * shares.busy > shares.compute
        worker.cancel()

    asyncio.run(run())


def test_the_prefix_cache_evicts_the_oldest_blocks():
    cache = PrefixCache(blocks=2)
    first, second = (["a"] * BLOCK * 2 + ["end"], ["b"] * BLOCK * 2 + ["end"])
    for prompt in (first, second):
        hits, blocks = cache.find_cached_tokens_and_hashes(prompt)
        assert hits == 0
        cache.add_block_hashes(blocks)
    assert (
        cache.find_cached_tokens_and_hashes(second)[0] == 2 * BLOCK
        and cache.find_cached_tokens_and_hashes(first)[0] == 0
    )
    assert (
        cache.find_cached_tokens_and_hashes(["b"] * BLOCK * 2)[0] == BLOCK
    )  # the last token is computed whatever is cached
