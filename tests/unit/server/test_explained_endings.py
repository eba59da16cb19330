"""A line is named as a cause only if nothing after it shows that it was none."""

from __future__ import annotations

import httpx
import pytest
from support.fake_runs import Make, ready, tell
from support.serving import supervised

from workbench.model.findings import Finding, Level
from workbench.model.server_run import ServerStatus
from workbench.server.explained_log import ExplainedLog
from workbench.server.log_lines import LineAssembler, LogRing
from workbench.server.supervisor import ServerEvent, Supervisor

CORE = "(EngineCore pid=7) ERROR 11-21 00:30:10 [core.py:402] "
STARTS = (
    "(EngineCore pid=7) INFO 11-21 00:30:00 [gpu_model_runner.py:1] Starting to load model x..."
)
STOPPED = (
    "(APIServer pid=3) INFO 11-21 [x.py:1] [shutdown] EngineCore: trigger received signal=SIGTERM"
)
OOM = f"{CORE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RESET = f"{CORE}RuntimeError: NCCL error: remote process exited or there was a network error"
BEGIN = "Traceback (most recent call last):"


def findings(*text: str, engine: str | None = "vllm") -> dict[str, Finding]:
    log = ExplainedLog(engine)
    log.add_lines(text)
    return {one.code: one for one in log.findings}


def causes(*text: str, engine: str | None = "vllm") -> list[str]:
    return [
        code for code, one in findings(*text, engine=engine).items() if one.level is Level.ERROR
    ]


def test_errors_after_a_stop_follow_from_it() -> None:
    assert causes(STARTS, STOPPED, RESET) == []
    told = findings(STARTS, STOPPED, RESET)
    assert told["log.stopped"].level is Level.WARN
    assert causes(STARTS, STOPPED, *(f"{CORE}{line}" for line in (BEGIN, "ValueError: x"))) == []


def test_what_fails_while_the_server_shuts_down_is_no_cause() -> None:
    served = ("INFO:     Application startup complete.", "INFO:     Shutting down")
    assert causes(*served, RESET) == []
    wrapper = f"{CORE}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    assert findings(*served, wrapper) == {}
    failed = f"{CORE}EngineCore encountered a fatal error."
    assert causes(served[0], failed, served[1], OOM) == ["log.cuda-oom"]


def test_an_error_before_a_stop_and_one_after_a_new_start_are_causes() -> None:
    assert causes(STARTS, OOM, STOPPED) == ["log.cuda-oom"]
    assert causes(STARTS, STOPPED, STARTS, OOM) == ["log.cuda-oom"]


def test_the_end_of_a_cancelled_step_is_no_failure_of_slurm() -> None:
    cancelled = "slurmstepd: error: *** STEP 9.1 ON n32 CANCELLED AT 2026-07-17T00:57:13 ***"
    assert causes(STARTS, cancelled, "srun: error: n32: task 0: Killed") == []
    assert causes("srun: error: Unheard of reason") == ["log.error-slurm"]


def test_an_error_that_the_server_overcame_hides_no_later_one() -> None:
    early = f"{CORE}OSError: [Errno 98] Address already in use"
    ready = "INFO:     Application startup complete."
    assert causes(early, ready) == []
    told = findings(early, ready, f"{CORE}RuntimeError: unheard of")
    assert told["log.port-taken"].level is Level.WARN
    assert told["log.error-other"].level is Level.ERROR
    again = findings(f"{CORE}RuntimeError: one", ready, f"{CORE}RuntimeError: two")
    assert again["log.error-other"].evidence == "RuntimeError: two"


def test_an_error_of_the_script_that_starts_the_server_is_passed() -> None:
    missing = 'error: the path "/data/k8s.yaml" does not exist'
    assert causes(missing, STARTS) == []
    assert causes(missing) == ["log.error-other"]
    assert causes(STARTS, missing, STARTS) == ["log.error-other"]


def test_what_fails_while_an_answer_is_parsed_ended_one_request() -> None:
    parser = "/site-packages/vllm/entrypoints/openai/tool_parsers/hermes_tool_parser.py"
    text = (
        BEGIN,
        f'  File "{parser}", line 88, in extract_tool_calls',
        "json.JSONDecodeError: x: y",
    )
    lines = tuple(f"{CORE}{line}" for line in text)
    assert causes(*lines) == []
    assert findings(*lines)["log.json-damaged"].level is Level.WARN
    handler = "(APIServer pid=3) ERROR 11-21 00:30:10 [serving_chat.py:257] "
    assert causes(f"{handler}ValueError: LoRA rank 64 is greater than max_lora_rank 16.") == []

    told = findings(f"{handler}aiohttp.ClientResponseError: 403, message='Forbidden'")
    assert told["log.error-other"].text.startswith("one request failed")


def test_answers_that_are_logged_after_a_crash_do_not_undo_it() -> None:
    crash = "/app/src/llama-graph.cpp:185: GGML_ASSERT(seq_id < n_tokens) failed"
    answer = "srv  log_server_r: request: POST /v1/embeddings 10.2.0.132 200"
    assert causes(crash, answer, engine="llamacpp") == ["log.ggml-assert"]


def test_a_request_that_is_refused_after_the_last_answer_is_no_cause() -> None:
    text = (
        "INFO:     Application startup complete.",
        'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "ERROR 11-21 00:30:10 [serving_chat.py:203] ValueError: This model's maximum context length is "
        "2048 tokens. However, you requested 5418 tokens.",
    )
    assert {one.level for one in findings(*text).values()} == {Level.HINT}


def test_what_a_client_tells_of_a_server_that_ended_is_no_cause() -> None:
    client = "aiohttp.client_exceptions.ClientPayloadError: Response payload is not completed"
    raised = (BEGIN, '  File "/x/sglang/srt/x.py", line 3, in run', "IndexError: index -1")
    call = '  File "/x/aiohttp/streams.py", line 347, in _wait'
    (cause,) = (
        one
        for one in findings(BEGIN, call, client, *raised, engine="sglang").values()
        if one.level is Level.ERROR
    )
    assert cause.evidence == "IndexError: index -1"


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "=>> PBS: job killed: walltime 3635 exceeded limit 3600",
        "INFO 11-21 00:30:10 [launcher.py:80] Shutting down FastAPI HTTP server.",
    ],
)
@pytest.mark.parametrize("after", [RESET, "vllm-1 exited with code 137"])
def test_what_a_scheduler_or_a_container_ends_has_no_other_cause(line: str, after: str) -> None:
    assert causes("INFO:     Application startup complete.", line, after) == []


@pytest.mark.parametrize(
    "line",
    [
        "huggingface_hub: Error while downloading from hub: Read timed out. Trying to resume download...",
        "ERROR 11-21 00:30:10 [fa_utils.py:57] Cannot use FA version 3 on this GPU",
    ],
)
def test_an_attempt_after_which_the_start_goes_on_is_no_cause(line: str) -> None:
    start = "INFO 11-21 00:30:10 [gpu_model_runner.py:1] Starting to load model x..."
    assert causes(line, start) == []


def test_an_error_that_another_process_quotes_is_told() -> None:
    quotes = (
        "RuntimeError: Worker failed with error 'shape mismatch: value tensor of shape [5]', see"
    )
    assert causes(f"{CORE}{quotes}") == ["log.error-shape"]


def test_a_missing_file_is_an_attempt_if_another_error_follows_from_it() -> None:
    text = (
        BEGIN,
        '  File "/x/convert.py", line 3, in set_vocab',
        "FileNotFoundError: tokenizer.model",
        "During handling of the above exception, another exception occurred:",
        BEGIN,
        '  File "/x/convert.py", line 9, in set_vocab',
        "RuntimeError: unheard of",
    )
    (only,) = (one for one in findings(*text).values() if one.level is Level.ERROR)
    assert only.evidence == "RuntimeError: unheard of"


@pytest.mark.parametrize(
    ("function", "imports"), [("<module>", True), ("_find_and_load", True), ("main", False)]
)
def test_an_import_goes_on_only_where_the_last_call_is_one(function: str, imports: bool) -> None:
    frames = (
        '  File "/x/convert.py", line 9, in <module>',
        f'  File "/x/y.py", line 1, in {function}',
    )
    (told,) = findings(BEGIN, *frames, "RuntimeError: unheard of").values()
    assert ("Python imported" in told.text) is imports


def test_the_name_of_a_library_alone_is_no_error() -> None:
    assert causes("ldd vllm.vllm_flash_attn._vllm_fa2_C:") == []
    assert causes("ImportError: No module named 'vllm._vllm_fa2_C'") == [
        "log.compiled-part-missing"
    ]


@pytest.mark.parametrize(
    ("text", "engine", "cause"),
    [
        (
            (
                f"{CORE}RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)",
                f"{CORE}RuntimeError: CUDA error: an illegal memory access was encountered",
            ),
            "vllm",
            "log.illegal-memory-access",
        ),
        (
            (
                "ggml_cuda_compute_forward: RMS_NORM failed",
                "CUDA error: invalid device function",
            ),
            "llamacpp",
            "log.invalid-device-function",
        ),
    ],
)
def test_what_only_follows_is_not_told_beside_its_cause(
    text: tuple[str, ...], engine: str, cause: str
) -> None:
    assert causes(*text, engine=engine) == [cause]


@pytest.mark.parametrize("limit", [64, 64 * 1024])
def test_an_error_that_a_progress_bar_overwrites_is_a_cause(limit: int) -> None:
    assembler = LineAssembler(limit=limit)
    bar = "".join(f"\rLoading shards: {number} %" for number in range(100))
    lines = assembler.feed(b"Loading\rRuntimeError: CUDA error: out of memory" + bar.encode())
    lines += assembler.feed(b"\n")
    assert causes(*lines, engine=None) == ["log.cuda-oom"]


def test_the_place_of_the_gap_in_memory_is_known() -> None:
    ring = LogRing(head_lines=2, tail_lines=2)
    ring.extend(["a", "b", "c"])
    assert ring.gap_index is None
    ring.extend(["d", "e"])
    gap = ring.gap_index
    assert gap is not None and ring.lines()[gap].startswith("…")


def test_the_screen_reads_an_ended_run_as_explain_log_does(make: Make) -> None:
    early = "ERROR 11-21 00:30:10 [x.py:1] RuntimeError: Address already in use"
    ends: list[ServerStatus] = []

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        async with httpx.AsyncClient() as http:
            text = f"{early}\nINFO:     Application startup complete."
            await http.post(f"{status.url}/log", content=text)
        await tell(status, "/exit?3")
        ends.append(await supervisor.wait(status.run_id, lambda s: s.state.has_ended, 30))

    supervised(scenario)
    assert ends[0].reason == "RuntimeError: told to exit with 3"
    assert "already in use" not in str(ends[0].findings)
