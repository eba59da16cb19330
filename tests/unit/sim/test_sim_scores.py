"""Log probabilities of the simulated engines, in the form of each engine's interface."""

from __future__ import annotations

import json
import math

import pytest
from test_sim_engine import ENGINES, QWEN, VLLM

PROMPT = "The ferry left the northern pier at a quarter past six, eleven minutes late"


def posted(server, path, **body):
    status, data = server.request("POST", path, body)
    return status, json.loads(data)


def ids_of(server, field="prompt", path="/tokenize"):
    return posted(server, path, **{field: PROMPT})[1]["tokens"]


def completion(server, **fields):
    return posted(server, "/v1/completions", **{"max_tokens": 1, "temperature": 0, **fields})


def test_vllm_scores_each_token_of_the_prompt_but_the_first(start_engine):
    server = start_engine(*VLLM, WORKBENCH_SIM_SPEEDUP="50").wait_ready()
    ids = ids_of(server)
    _, whole = completion(server, prompt=ids, prompt_logprobs=20, return_token_ids=True)
    choice = whole["choices"][0]
    assert choice["prompt_token_ids"] == ids
    assert whole["usage"]["prompt_tokens"] == len(ids)
    assert choice["prompt_logprobs"][0] is None and len(choice["prompt_logprobs"]) == len(ids)
    for token, entries in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True):
        assert len(entries) in (20, 21)
        assert entries[str(token)]["logprob"] < 0
        assert sum(math.exp(one["logprob"]) for one in entries.values()) <= 1 + 1e-9
    forced = {"logprobs": 1, "return_tokens_as_token_ids": True, "logprob_token_ids": [ids[4]]}
    _, alone = completion(server, prompt=ids[:4], **forced)
    name = f"token_id:{ids[4]}"
    found = alone["choices"][0]["logprobs"]["top_logprobs"][0][name]
    assert found == choice["prompt_logprobs"][4][str(ids[4])]["logprob"]
    for refused in ({"prompt_logprobs": 21}, {"prompt_logprobs": 1, "stream": True}):
        assert completion(server, prompt=ids, **refused)[0] == 400


def test_sglang_scores_the_prompt_from_its_start_and_a_given_token(start_engine):
    server = start_engine(*ENGINES["sglang"], WORKBENCH_SIM_SPEEDUP="50").wait_ready()
    ids = ids_of(server)
    sampling = {"temperature": 0, "max_new_tokens": 1}
    asked = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 20}
    _, whole = posted(server, "/generate", input_ids=ids, logprob_start_len=0, **asked)
    meta = whole["meta_info"]
    assert [one[1] for one in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None and meta["input_top_logprobs"][0] is None
    assert all(len(top) == 20 for top in meta["input_top_logprobs"][1:])
    given = {"logprob_start_len": -1, "token_ids_logprob": [ids[4]]}
    _, alone = posted(server, "/generate", input_ids=ids[:4], **asked, **given)
    assert "input_token_logprobs" not in alone["meta_info"]
    found = alone["meta_info"]["output_token_ids_logprobs"][0][0]
    assert found[:2] == meta["input_token_logprobs"][4][:2]


def test_llama_server_names_the_probability_of_a_forced_token_before_the_bias(start_engine):
    server = start_engine(*ENGINES["llamacpp"], WORKBENCH_SIM_SPEEDUP="50").wait_ready()
    ids = ids_of(server, "content")
    asked = {"prompt": ids[:4], "n_predict": 1, "n_probs": 20, "return_tokens": True}
    _, free = posted(server, "/completion", **asked)
    _, forced = posted(server, "/completion", **asked, logit_bias=[[ids[4], 1000]])
    assert forced["tokens"] == [ids[4]] and forced["tokens_evaluated"] == 4
    [entry], [other] = forced["completion_probabilities"], free["completion_probabilities"]
    assert entry["id"] == ids[4] and entry["logprob"] <= other["logprob"]
    assert entry["top_logprobs"] == other["top_logprobs"]


def test_tabbyapi_takes_a_text_and_names_tokens_by_their_text(start_engine):
    server = start_engine(*ENGINES["tabbyapi"], WORKBENCH_SIM_SPEEDUP="50").wait_ready()
    ids = ids_of(server, "text", "/v1/token/encode")
    decoded = posted(server, "/v1/token/decode", tokens=ids)[1]["text"]
    assert decoded == PROMPT
    status, whole = completion(server, prompt=PROMPT, logprobs=5)
    scores = whole["choices"][0]["logprobs"]
    assert status == 200 and len(scores["top_logprobs"][0]) == 5
    assert scores["tokens"][0] in scores["top_logprobs"][0]
    assert completion(server, prompt=ids, logprobs=5)[0] == 400


@pytest.mark.parametrize(
    ("flags", "moved"),
    [
        ((), False),
        (("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'), True),
        (("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 1}'), False),
    ],
)
def test_prompt_scores_of_vllm_are_stale_with_mtp_as_those_of_the_real_one(
    start_engine, flags, moved
):
    server = start_engine(*VLLM, *flags, WORKBENCH_SIM_SPEEDUP="50").wait_ready()
    ids = ids_of(server)
    _, whole = completion(server, prompt=ids, prompt_logprobs=1)
    forcing = {"logprobs": 1, "return_tokens_as_token_ids": True, "logprob_token_ids": [ids[4]]}
    _, alone = completion(server, prompt=ids[:4], **forcing)
    prefill = whole["choices"][0]["prompt_logprobs"][4][str(ids[4])]["logprob"]
    forced = alone["choices"][0]["logprobs"]["top_logprobs"][0][f"token_id:{ids[4]}"]
    assert (prefill != forced) is moved


def test_4_bit_weights_and_an_fp8_cache_change_the_scores(start_engine):
    small = ("vllm", "serve", QWEN.removesuffix("-AWQ"), *VLLM[3:])
    servers = [
        start_engine(*argv, WORKBENCH_SIM_SPEEDUP="50")
        for argv in (small, (*small, "--kv-cache-dtype", "fp8"), VLLM)
    ]
    found = []
    for server in servers:
        server.wait_ready()
        ids = ids_of(server)
        _, whole = completion(server, prompt=ids, prompt_logprobs=20)
        scores = whole["choices"][0]["prompt_logprobs"][1:]
        found.append([one[str(i)]["logprob"] for i, one in zip(ids[1:], scores, strict=True)])
    plain, cache, weights = found
    moved = [
        sum(abs(a - b) for a, b in zip(plain, other, strict=True)) for other in (cache, weights)
    ]
    assert 0 < moved[0] < moved[1]
