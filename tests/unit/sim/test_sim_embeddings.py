"""An embedding server on a simulated host, and the benchmark of it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from sim_process import Engine
from support import made_results

from workbench import engines
from workbench.bench.metric_changes import choose_compared_metrics
from workbench.bench.records import BenchOutcome
from workbench.bench.reply import Reply
from workbench.bench.runner import run_load
from workbench.bench.worker import check_request_spec as check_experiment_spec
from workbench.bench.workload import Workload
from workbench.model.bench import BenchSpec
from workbench.model.errors import BenchError
from workbench.server import readiness

GRANITE = "ibm-granite/granite-embedding-english-r2"
SPEC = BenchSpec(
    "http://127.0.0.1:1",
    GRANITE,
    concurrency=4,
    requests=40,
    warmup=4,
    input_tokens=64,
    endpoint="embeddings",
    stream=False,
)


def test_an_embedding_server_becomes_ready_and_is_measured_in_requests_and_prompt_tokens(
    start_engine: Callable[..., Engine],
) -> None:
    server = start_engine(
        "vllm", "serve", GRANITE, "--runner", "pooling", profile="rtx-5060ti-x2"
    ).wait_ready()
    url = f"http://127.0.0.1:{server.port}"

    async def ask() -> tuple[readiness.Answer, BenchOutcome]:
        with closing(readiness.make_request_connection(url)) as connection:
            answer = await readiness.check_readiness(
                connection.ask, engines.get_engine("vllm"), first_timeout_s=5
            )
        return answer, await run_load(replace(SPEC, url=url))

    answer, outcome = asyncio.run(ask())
    assert answer.model == GRANITE and answer.reason is None
    assert answer.text is not None and (answer.text.endpoint, answer.text.problem) == (
        "embeddings",
        "",
    )
    summary = outcome.summary
    assert (summary.requests_ok, summary.requests_failed) == (40, 0)
    assert summary.prompt_tok_s and summary.request_s
    assert summary.prompt_tok_s == pytest.approx(
        summary.request_s * (summary.prompt_tokens or 0) / 40, rel=0.01
    )
    assert summary.output_tok_s is None and summary.absent["output_tok_s"] == (
        "an embedding has no output tokens"
    )
    assert summary.e2e_ms is not None and summary.ttft_ms is None
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/v1/completions", data=b"{}")


def test_a_server_that_generates_text_has_no_embeddings(
    start_engine: Callable[..., Engine],
) -> None:
    server = start_engine("vllm", "serve", "Qwen/Qwen3-0.6B").wait_ready()
    outcome = asyncio.run(
        run_load(replace(SPEC, url=f"http://127.0.0.1:{server.port}", model="Qwen/Qwen3-0.6B"))
    )
    assert outcome.summary.errors == {"http 404": 40}


def test_a_request_for_an_embedding_has_no_fields_of_generation() -> None:
    body = json.loads(Workload(SPEC).request_body(0, warmup=False))
    assert body.keys() == {"model", "input", "encoding_format"} and body["input"].startswith("[")
    assert Workload(SPEC).asked_tokens(0, warmup=False) is None
    with pytest.raises(BenchError, match="not streamed"):
        check_experiment_spec(replace(SPEC, stream=True))


@pytest.mark.parametrize(
    "data, error",
    [
        ([{"embedding": [0.1, 0.2]}], None),
        ([{"embedding": "AAAA"}], None),
        ([], "truncated"),
        ([{"embedding": []}], "truncated"),
        ("text", "malformed"),
    ],
)
def test_only_an_answer_with_an_embedding_is_right(data: object, error: str | None) -> None:
    reply = Reply()
    reply.parse_unstreamed_body(
        json.dumps({"object": "list", "data": data, "usage": {"prompt_tokens": 3}}).encode()
    )
    reply.check_answer_and_set_error(None)
    assert reply.error == error


def test_two_embedding_runs_are_compared_by_requests_and_prompt_tokens_first() -> None:
    run_of_embeddings = made_results.result()
    run_of_embeddings = replace(
        run_of_embeddings, spec=replace(run_of_embeddings.spec, endpoint="embeddings")
    )
    assert [m.name for m in choose_compared_metrics([run_of_embeddings])[:3]] == [
        "request_s",
        "prompt_tok_s",
        "output_tok_s",
    ]
    assert choose_compared_metrics([made_results.result()])[0].name == "output_tok_s"
