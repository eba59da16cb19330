"""The instruments on a real engine: llama.cpp's own server, with a tiny model and two quantizations
of it."""

from __future__ import annotations

import asyncio
import math
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import gguf
import httpx
import pytest
from support import llama_server, tiny_gguf
from support.serving import free_port

from workbench.model.quality import DIFFERS, SAME, GreedyAnswer, ScoredText
from workbench.quality import texts
from workbench.quality.instrument import FORCED_POSITIONS, Instrument
from workbench.quality.lanes.base import Prompt
from workbench.quality.lanes.llama_server import LlamaServerInterface
from workbench.quality.statistics import mean_logprob, text_difference
from workbench.quality.verdict import compute_quality_result
from workbench.server.small_requests import make_asker

READY_S = 60.0
TOP, VOCABULARY = 20, 600
PLACES = 24
SHARPNESS = 8.0
TEXTS = tuple(text for text in texts.shipped_text_set().texts if text.kind in ("prose", "code"))
FEW = TEXTS[:4]

pytestmark = pytest.mark.slow

T = TypeVar("T")
Kinds = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Return the ports of servers with the model as it is, and rounded to 8 and to 4 bits."""
    folder = tmp_path_factory.mktemp("models")
    launcher = llama_server.install(folder / "bin")
    found, running = {}, []
    for name, kind in (("f32", None), ("q8", Kinds.Q8_0), ("q4", Kinds.Q4_0)):
        file = folder / f"{name}.gguf"
        model = tiny_gguf.write(file, sense=False, quantization=kind, sharpness=SHARPNESS)
        port = free_port()
        argv = [launcher, "-m", model, "--port", str(port), "-c", "4096", "-np", "2"]
        quiet = subprocess.DEVNULL
        running.append(subprocess.Popen(argv, stdout=quiet, stderr=quiet))
        found[name] = port
    for port in found.values():
        wait_ready(port)
    yield found
    for process in running:
        process.terminate()
        process.wait()


def wait_ready(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"port {port} is not ready")


def on(port: int, measure: Callable[[LlamaServerInterface], Awaitable[T]]) -> T:
    async def run() -> T:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            return await measure(LlamaServerInterface(make_asker(http), "tiny"))

    return asyncio.run(run())


def scored(port: int, chosen: tuple[texts.Text, ...]) -> tuple[ScoredText, ...]:
    async def measure(server: LlamaServerInterface) -> tuple[ScoredText, ...]:
        scores = await Instrument(server).score_texts(chosen)
        assert not scores.problem
        return scores.texts

    return on(port, measure)


def whole_distributions(port: int, text: texts.Text) -> list[dict[int, float]]:
    """Return the log probabilities of the whole vocabulary at the last places of a text."""

    async def measure(server: LlamaServerInterface) -> list[dict[int, float]]:
        ids = (await server.tokenize(text.content)).first_tokens(512).ids
        found = []
        for place in range(len(ids) - PLACES, len(ids)):
            body = {"prompt": ids[:place], "n_predict": 1, "n_probs": VOCABULARY, "id_slot": 0,
                    "temperature": -1, "cache_prompt": True, "logit_bias": [[70, 1000]]}  # fmt: skip
            reply = await server.post("/completion", body)
            [entry] = reply["completion_probabilities"]
            found.append({one["id"]: one["logprob"] for one in entry["top_logprobs"]})
        return found

    return on(port, measure)


def test_two_ways_to_score_a_real_server_agree(ports: dict[str, int]) -> None:
    async def measure(server: LlamaServerInterface) -> None:
        proof = await Instrument(server).check_scores_agree(FEW, "A")
        assert proof.usable, proof.reason
        assert proof.positions >= 16 and proof.largest is not None and proof.largest < 0.05
        written = await Instrument(server).write_answers(FEW[:2], concurrency=2)
        assert not written.problem and len(written.answers) == 2

    on(ports["f32"], measure)


def test_answers_are_scored_like_the_texts_that_they_are(ports: dict[str, int]) -> None:
    text = FEW[0]

    async def write(server: LlamaServerInterface) -> GreedyAnswer:
        [answer] = (await Instrument(server).write_answers([text], concurrency=1)).answers
        return answer

    of_a, of_b = (on(ports[name], write) for name in ("f32", "q4"))

    async def score(server: LlamaServerInterface) -> None:
        scored = await Instrument(server).score_answers([text], [of_a, of_b])
        own, other = scored.scores
        assert (scored.problem, own.problem, other.problem) == ("", "", "")
        assert own.tokens == FORCED_POSITIONS and other.logprob != own.logprob
        ids = (*of_a.prompt, *(token for token in of_a.tokens if isinstance(token, int)))
        whole, first = Prompt("", ids), len(of_a.prompt)
        alone = [await server.score_next(whole, first + n) for n in range(FORCED_POSITIONS)]
        assert all(one.top[0][0] == one.token for one in alone), "its own answer is the best one"
        assert own.logprob == pytest.approx(mean_logprob(alone), abs=1e-3)

    on(ports["f32"], score)


@pytest.mark.parametrize("quantized", ["q8", "q4"])
def test_the_divergence_of_top_20_is_a_lower_bound_of_that_of_the_whole_vocabulary(
    ports: dict[str, int], quantized: str
) -> None:
    text = FEW[0]
    plain, rounded = (whole_distributions(ports[name], text) for name in ("f32", quantized))
    exact = 0.0
    for p, q in zip(plain, rounded, strict=True):
        assert sum(map(math.exp, p.values())) == pytest.approx(1, abs=1e-4)
        exact += sum(math.exp(p[token]) * (p[token] - q[token]) for token in p) / PLACES
    a, b = (scored(ports[name], (text,))[0] for name in ("f32", quantized))
    last = [ScoredText(one.name, one.kind, one.positions[-PLACES:]) for one in (a, b)]
    found = text_difference(last[0], last[1], TOP).kl
    assert 0 < found <= exact * 1.01
    assert found >= 0.7 * exact


@pytest.mark.long
def test_8_bits_answer_as_the_model_and_4_bits_less_so(ports: dict[str, int]) -> None:
    first, again = scored(ports["f32"], FEW), scored(ports["f32"], FEW)
    eight, four = scored(ports["q8"], FEW), scored(ports["q4"], FEW)

    def mean(other: tuple[ScoredText, ...]) -> float:
        pairs = zip(first, other, strict=True)
        return sum(text_difference(x, y, TOP).kl for x, y in pairs) / len(FEW)

    assert mean(again) < mean(eight) < mean(four)


@pytest.mark.long
def test_the_verdict_about_4_bits_is_differs_and_about_the_model_again_same(
    ports: dict[str, int],
) -> None:
    chosen = tuple(text for text in texts.shipped_text_set().texts if not text.is_long)
    a, again, b = (scored(ports[name], chosen) for name in ("f32", "f32", "q4"))
    result = compute_quality_result(a, b, floors=[again])
    assert compute_quality_result(a, again, floors=[again]).verdict == SAME
    assert result.verdict == DIFFERS and "ln perplexity" in result.summary
