"""The error that was raised first is found among the tracebacks of all processes, with the part of the
engine in which it was raised.

The tracebacks have the forms in which the engines print them; their frames are shortened.
"""

from __future__ import annotations

import pytest

from workbench.model.findings import Finding, Level
from workbench.server import log_patterns
from workbench.server.explained_log import ExplainedLog
from workbench.server.log_patterns import LogScan, remove_numbers_from_lines

BEGIN = "Traceback (most recent call last):"
HANDLING = "During handling of the above exception, another exception occurred:"
CAUSED = "The above exception was the direct cause of the following exception:"
PACKAGES = "/usr/lib/python3/dist-packages"
CORE = "(EngineCore pid=7) ERROR 11-21 00:30:10 [core.py:402] "
API = "(APIServer pid=3) "
UNKNOWN = "RuntimeError: unheard of"


def frame(path: str, function: str = "run") -> str:
    return f'  File "{PACKAGES}/{path}", line 12, in {function}'


def told(text: list[str], engine: str | None = None) -> tuple[Finding, ...]:
    """Return the findings above the level HINT about a whole log. A growing log has the same."""
    log, scan = ExplainedLog(engine), LogScan(engine)
    log.add_lines(text)
    for number, line in enumerate(text, 1):
        scan.search_new_lines([line], remove_numbers_from_lines([line]), number)
    found = tuple(one for one in log.findings if one.level in (Level.ERROR, Level.WARN))
    assert [(one.code, one.text) for one in found] == [
        (one.code, one.text) for one in scan.findings_above_info if one.level is not Level.HINT
    ]
    return found


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (
            "vllm/model_executor/layers/quantization/awq.py",
            "the quantization code (awq.py:12 of vllm, run)",
        ),
        ("sglang/srt/lora/lora_manager.py", "LoRA (lora_manager.py:12 of sglang, run)"),
        ("vllm/v1/spec_decode/eagle.py", "speculative decoding (eagle.py:12 of vllm, run)"),
        ("flashinfer/decode.py", "FlashInfer (decode.py:12 of flashinfer, run)"),
        ("vllm/model_executor/models/qwen3.py", "the code of the model's architecture"),
        ("transformers/configuration_utils.py", "the reading of the model's configuration"),
        ("xgrammar/compiler.py", "structured output"),
    ],
)
def test_an_unknown_error_is_told_with_the_part_of_the_engine(path: str, part: str) -> None:
    text = [BEGIN, frame("vllm/v1/engine/core.py"), frame(path), "    x()", UNKNOWN]
    (found,) = told([f"{CORE}{line}" for line in text])
    assert (found.code, found.level, found.line) == ("log.error-other", Level.ERROR, 5)
    assert f", in {part}" in found.text and found.evidence == UNKNOWN and found.fix


def test_calls_of_a_traceback_are_no_errors_without_an_explanation() -> None:
    log = ExplainedLog("vllm")
    text = [BEGIN, frame("vllm/lora/x.py"), "    x()", "    ^^^", UNKNOWN]
    log.add_lines([f"{CORE}{line}" for line in text])
    assert log.as_json()["unknown"] == [] and len(log.findings) == 1


def test_the_innermost_part_is_told() -> None:
    text = [
        BEGIN,
        frame("vllm/lora/x.py"),
        frame("vllm/v1/attention/y.py"),
        frame("os.py"),
        UNKNOWN,
    ]
    assert "in the attention code (y.py:12 of vllm, run)" in told(text)[0].text


def test_a_traceback_without_its_beginning_is_read() -> None:
    assert "in LoRA" in told([frame("vllm/lora/x.py"), "    x()", UNKNOWN])[0].text


def test_the_cause_of_a_chain_is_told_and_not_its_end() -> None:
    chain = [BEGIN, frame("vllm/lora/x.py"), UNKNOWN, CAUSED, BEGIN, frame("ray/y.py")]
    (found,) = told([*chain, "ValueError: Failed to apply it"])
    assert found.evidence == UNKNOWN


def test_an_attempt_that_failed_before_is_not_the_cause() -> None:
    attempt = [BEGIN, frame("transformers/x.py"), "KeyError: 'model_type_of_tomorrow'", HANDLING]
    (found,) = told([*attempt, BEGIN, frame("transformers/y.py"), UNKNOWN])
    assert (
        found.evidence == UNKNOWN and "in transformers (y.py:12 of transformers, run)" in found.text
    )


def test_tracebacks_of_ranks_between_each_other_are_read_apart() -> None:
    one, two = "(Worker_TP0 pid=1) ", "(Worker_TP1 pid=2) "
    text = [one + BEGIN, two + BEGIN, one + frame("vllm/lora/x.py"), two + frame("vllm/v1/a.py")]
    assert "in LoRA (x.py:12 of vllm, run)" in told([*text, one + UNKNOWN, two + UNKNOWN])[0].text


def test_what_waits_for_the_failed_process_is_not_told() -> None:
    text = [f"{CORE}{line}" for line in (BEGIN, frame("vllm/lora/x.py"), UNKNOWN)]
    ends = [BEGIN, frame("vllm/entrypoints/openai/api_server.py")]
    after = [*ends, "RuntimeError: Engine core initialization failed. See root cause above."]
    lost = [
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.7]:26"
    ]
    (found,) = told([*text, *(API + line for line in after), *lost])
    assert found.evidence == UNKNOWN


def test_an_error_of_one_request_is_no_error_of_the_server() -> None:
    text = [
        "ERROR:    Exception in ASGI application",
        BEGIN,
        frame("uvicorn/protocols/http/httptools_impl.py", "run_asgi"),
        frame("vllm/multimodal/video.py", "load_bytes"),
        "AssertionError: Expected reading 32 frames, but only loaded 17",
    ]
    (found,) = told(text)
    assert found.level is Level.WARN and found.text.startswith("one request failed, not the server")
    failed = [f"{CORE}{line}" for line in (BEGIN, frame("vllm/lora/x.py"), UNKNOWN)]
    assert [one.evidence for one in told([*text, *failed])] == [UNKNOWN]


def test_a_request_of_another_form_is_told_with_its_field() -> None:
    text = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatCompletionRequest",
        "messages.2.content",
        "  Field required [type=missing, input_value={'role': 'user'}, input_type=dict]",
    ]
    (found,) = told(text)
    assert found.level is Level.WARN and "Field required" in (found.evidence or "")


def test_the_next_line_completes_a_message() -> None:
    text = [BEGIN, frame("sglang/srt/x.py"), "Exception: 2 errors happen:", "Field a is unheard of"]
    assert told(text)[0].evidence == "Exception: 2 errors happen: Field a is unheard of"


@pytest.mark.parametrize(
    "line",
    [
        "/x/torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: "
        "'/x/image.so: undefined symbol: _ZN3c1017RegisterOperators'",
        "[2025-04-20 14:03:12 TP0] Skipping import of cpp extensions: /x/torchao/_C.abi3.so: "
        "undefined symbol: _ZN3c105ErrorC2E",
        "/x/weight_utils.py:447: FutureWarning: You are using `torch.load` with "
        "`weights_only=False` (the current default value)",
        "# ImportError: Please install vllm[audio] for audio support",
    ],
)
def test_what_the_engine_can_do_without_is_no_cause(line: str) -> None:
    assert told([line]) == ()


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("2024-11-25T12:44:20.292Z 2024-11-25 12:44:20,292 - sglang - INFO - ", "vllm/lora/x.py"),
        ("[2025-03-05 14:28:45,820] [ERROR] [MainThread] [vllm.worker] >>> ", "vllm/lora/x.py"),
        ("│ ", "vllm/lora/x.py"),
        ("^[[36mERROR 03-25 08:34:50 [core.py:340] ", "vllm/lora/x.py"),
        ("", "C:\\tools\\vllm\\lora/x.py"),
    ],
)
def test_lines_that_another_program_passes_on_are_read(prefix: str, path: str) -> None:
    (found,) = told([f"{prefix}{line}" for line in (BEGIN, frame(path), UNKNOWN)])
    assert found.evidence == UNKNOWN and "in LoRA (x.py:12 of vllm, run)" in found.text


def test_a_failed_check_of_llama_cpp_is_told_with_its_part() -> None:
    text = ["/src/llama-sampling.cpp:204: GGML_ASSERT(cur_p->size > 0) failed"]
    assert "in sampling" in told(text, "llamacpp")[0].text


def test_an_error_after_which_python_goes_on_is_no_cause() -> None:
    ignored = [
        "Exception ignored in: <function Engine.__del__ at 0x7f>",
        BEGIN,
        frame("vllm/lora/x.py"),
    ]
    assert told([*ignored, "AttributeError: 'Engine' object has no attribute 'x'"]) == ()


def test_a_command_that_failed_is_not_the_cause_of_what_it_reports() -> None:
    command = [
        BEGIN,
        frame("subprocess.py"),
        "subprocess.CalledProcessError: Command '['x']'",
        CAUSED,
    ]
    (found,) = told([*command, BEGIN, frame("vllm/lora/x.py"), UNKNOWN])
    assert found.evidence == UNKNOWN


def test_a_crash_is_told_with_the_part_of_the_engine() -> None:
    """Python's faulthandler writes the innermost call first."""
    calls = [
        frame(path).replace(", in", " in") for path in ("vllm/v1/attention/y.py", "vllm/core.py")
    ]
    text = ["Fatal Python error: Segmentation fault", "", "Thread 0x1 (most recent call first):"]
    (found,) = told([*text, *calls, ""])
    assert (
        found.code == "log.segfault"
        and "in the attention code (y.py:12 of vllm, run)" in found.text
    )


def test_the_engine_that_a_log_names_decides_about_its_patterns() -> None:
    log = ExplainedLog()
    log.add_lines(["[2026-11-20 23:41:58] sglang starts", "CUDA error: misaligned address"])
    assert "log.ggml-cuda-error" not in [one.code for one in log.findings]
    log = ExplainedLog()
    log.add_lines(["llama_context: n_ctx = 8192", "CUDA error: misaligned address"])
    assert "log.ggml-cuda-error" in [one.code for one in log.findings]


def test_a_log_without_the_error_itself_says_so() -> None:
    log = ExplainedLog("vllm")
    log.add_lines([f"{API}RuntimeError: Engine core initialization failed. See root cause above."])
    (found,) = log.findings
    assert (found.code, found.level) == ("log.reports-only", Level.WARN) and found.fix


def test_of_errors_that_follow_from_others_only_the_first_is_told() -> None:
    text = [
        "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=31)",
        "Fatal Python error: Aborted",
    ]
    assert [one.code for one in told(text)] == ["log.nccl-timeout"]


def test_memory_is_bounded_whatever_the_log_says() -> None:
    text = [
        line for n in range(300) for line in (f"(W pid={n}) {BEGIN}", f"(W pid={n}) {frame('a')}")
    ]
    log = ExplainedLog()
    log.add_lines([*text, *[f"(W pid={n}) ValueError: {n}" for n in range(300)]])
    assert len(log._tracebacks._open) <= 64 and len(log._tracebacks.errors) <= 40


GDB = [
    "#8  0x00007fad0f2b2176 in __cxxabiv1::__cxa_throw (obj=<optimized out>) at eh_throw.cc:98",
    "#9  0x000056204acdfffc in minja::TemplateNode::render(std::ostringstream&) const ()",
    "#10 0x000056204ad0ff5f in common_chat_templates_apply (inputs=...) at common/chat.cpp:1",
]
GLIBC = [
    "libggml.so(ggml_abort+0x136)[0x7e716c216266]",
    "libggml-cuda.so(ggml_cuda_mul_mat+0x42) [0x7e716c216ff0]",
]


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (GDB, "log.native-crash", "in the chat template (minja::TemplateNode::render)"),
        ([*GDB, "Aborted (core dumped)"], "log.native-crash", "in the chat template"),
        (["Segmentation fault (core dumped)", *GDB], "log.segfault", "in the chat template"),
        (
            ["src/x.c:1: GGML_ASSERT(a) failed", *GLIBC],
            "log.ggml-assert",
            "a matrix multiplication",
        ),
    ],
)
def test_a_backtrace_of_native_code_tells_the_part(text: list[str], code: str, part: str) -> None:
    (found,) = told(text)
    assert (found.code, found.level) == (code, Level.ERROR) and part in found.text and found.fix


def test_calls_that_every_crash_has_name_no_part() -> None:
    assert told([GDB[0], "#1  0x00007fad0f2b2176 in raise () from /lib/libc.so.6"]) == ()


def explained(text: list[str]) -> tuple[Finding, ...]:
    log = ExplainedLog()
    log.add_lines(text)
    return tuple(one for one in log.findings if one.level in (Level.ERROR, Level.WARN))


@pytest.mark.parametrize(
    "cut",
    [
        [frame("vllm/lora/x.py"), "    self.load()", "         ^^^^"],
        [frame("vllm/lora/x.py")],
        ['  File "/srv/vllm/lora/x.py", line 12, in ', "load"],  # broken by Rich
    ],
)
def test_a_log_that_ends_within_a_traceback_names_the_last_call_and_no_cause(
    cut: list[str],
) -> None:
    begin = [f"{CORE}EngineCore failed to start.", f"{CORE}{BEGIN}"]
    (found,) = explained([*begin, *(CORE + line for line in cut)])
    assert (found.code, found.level, found.line) == ("log.unfinished", Level.WARN, 3)
    assert "The last call is in LoRA" in found.text and "read the log on" in (found.fix or "")


def test_a_traceback_is_not_unfinished_if_its_process_went_on_or_a_cause_is_known() -> None:
    begin = [BEGIN, frame("vllm/lora/x.py"), "    self.load()"]
    assert explained([*begin, "something else"]) == ()
    codes = [one.code for one in explained(["CUDA out of memory", *begin])]
    assert codes == ["log.cuda-oom"]


def test_the_place_comes_from_the_process_in_which_the_error_was_raised() -> None:
    worker, waits = "(Worker_TP1 pid=2) ", frame("vllm/v1/engine/core.py", "run_engine_core")
    first = [f"{CORE}{line}" for line in (BEGIN, waits, UNKNOWN)]
    second = [f"{worker}{line}" for line in (BEGIN, frame("vllm/lora/x.py"), UNKNOWN)]
    (found,) = told([*first, *second])
    assert "in LoRA (x.py:12 of vllm, run)" in found.text


def test_an_assertion_without_a_text_is_told_with_its_condition() -> None:
    text = [BEGIN, frame("vllm/lora/x.py"), "    assert b.shape[0] % 16 == 0", "AssertionError"]
    (found,) = told(["AssertionError()", *text])
    assert found.evidence == "AssertionError: assert b.shape[0] % 16 == 0"


def test_an_error_that_python_ignored_counts_where_nothing_else_has_a_reason() -> None:
    ignored = ["Exception ignored in: <function A.__del__>", BEGIN, frame("vllm/a.py")]
    lost = ["RuntimeError: CUDA error: an illegal memory access was encountered"]
    wraps = [BEGIN, frame("vllm/b.py"), "RuntimeError: Worker failed with error 'see above'"]
    assert [one.code for one in told([*wraps, *ignored, *lost])] == ["log.illegal-memory-access"]
    assert [one.code for one in told([*ignored, *lost])] == []


def test_an_error_before_the_server_became_ready_is_a_warning() -> None:
    failed = "E ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"
    ready = "llama_server: server is listening on http://127.0.0.1:8080"
    (found,) = explained([failed, ready])
    assert found.level is Level.WARN and "became ready in line 2" in found.text
    assert "lower n-gpu-layers" in (found.fix or "")
    (again,) = explained([failed, ready, failed])
    assert again.level is Level.ERROR


FAILED = "OSError: [Errno -3] Temporary failure in name resolution"
LOADS = "INFO 11-21 00:30:12 [gpu_model_runner.py:9] Starting to load model Qwen/Qwen3-8B..."
NO_MEMORY = (
    f"{CORE}ValueError: Free memory on device cuda:0 (3.22/4.0 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 3.6 GiB)."
)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ([FAILED, f"{CORE}{LOADS}", NO_MEMORY], ["memory-utilization"]),
        ([FAILED, NO_MEMORY], ["name-resolution", "memory-utilization"]),
        ([FAILED, f"{CORE}{LOADS}"], ["name-resolution"]),
        # the other process went on, and not the one that failed
        ([NO_MEMORY, f"(Worker pid=8) {LOADS}", FAILED], ["memory-utilization", "name-resolution"]),
        # a bar may be written late
        (
            [FAILED, "Loading safetensors checkpoint shards:  50% Completed | 1/2", NO_MEMORY],
            ["name-resolution", "memory-utilization"],
        ),
    ],
)
def test_an_error_after_which_the_start_went_on_is_no_cause_beside_a_later_one(
    text: list[str], codes: list[str]
) -> None:
    errors = [one for one in explained(text) if one.level is Level.ERROR]
    assert [one.code for one in errors] == [f"log.{code}" for code in codes]


def test_a_traceback_after_which_its_process_went_on_is_no_cause() -> None:
    attempt = [f"{CORE}{line}" for line in (BEGIN, frame("vllm/lora/x.py"), UNKNOWN)]
    later = [f"{CORE}{line}" for line in (BEGIN, frame("vllm/v1/spec_decode/y.py"), UNKNOWN + "!")]
    (found,) = explained([*attempt, f"{CORE}{LOADS}", *later])
    assert found.line == 7 and "speculative decoding" in found.text


def test_an_error_after_which_the_server_answered_is_a_warning() -> None:
    failed = "srv  operator(): failed to decode, ret = -3"
    answer = 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'
    (found,) = explained([failed, answer])
    assert found.level is Level.WARN and "answered requests in line 2" in found.text
    (again,) = explained([failed, "EngineDeadError", answer])
    assert again.level is Level.ERROR
    log = ExplainedLog()
    log.add_lines([failed, answer])
    assert log.as_json()["first_error"] is None


def test_an_error_while_python_ends_is_no_cause() -> None:
    cleanup = frame("multiprocessing/util.py", "_run_finalizers")
    assert not explained([BEGIN, cleanup, "FileNotFoundError: [Errno 2] No such file or directory"])


def test_a_message_with_its_own_step_gets_no_guess_about_its_place() -> None:
    text = [BEGIN, frame("sglang/srt/managers/scheduler.py")]
    (found,) = explained([*text, "RuntimeError: scales must be calibrated before the capture"])
    assert (found.fix or "").startswith("follow the line") and "prefix" not in found.fix
    (found,) = explained([*text, UNKNOWN])
    assert "prefix caching" in (found.fix or "")


def test_lines_of_one_form_and_binary_lines_are_searched_once_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    explain = log_patterns.explain_line_by_needles

    def noted(line: str, engine: str | None, needles: tuple[str, ...]) -> Finding | None:
        searched.append(line)
        return explain(line, engine, needles)

    monkeypatch.setattr(log_patterns, "explain_line_by_needles", noted)
    log = ExplainedLog()
    log.add_lines([f"CUDA out of memory, try {number}" for number in range(500)])
    log.add_lines([])
    log.add_lines(["\ufffd" * 40 + "CUDA out of memory"])
    (found,) = log.findings
    assert (log.count_lines_of(found), found.line, len(searched)) == (500, 1, 1)


def test_the_directory_of_whoever_built_llama_cpp_names_no_part() -> None:
    built = "/run/media/me/ik_llama.cpp/ggml/src/ggml-cuda.cu:110"
    (found,) = told([f"  current device: 0, in function ggml_cuda_op_mul_mat at {built}"])
    assert "in a matrix multiplication on the GPU" in found.text


def test_an_architecture_is_not_called_unsupported_where_its_code_was_not_imported() -> None:
    inspect = "ERROR 10-16 05:20:48 registry.py:264] Error in inspecting model architecture 'A'"
    module = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2"
    refused = "ValueError: Model architectures ['A'] are not supported for now."
    assert [one.code for one in told([inspect, module, refused])] == ["log.torch-abi"]
    assert [one.code for one in told([inspect, refused])] == ["log.architecture-inspect"]


def test_a_line_that_a_pattern_of_another_engine_matches_is_explained_by_its_kind() -> None:
    text = ["llama_context: n_ctx = 8192", "CUDA error 400 at x.cu:1: invalid resource handle"]
    assert [one.code for one in explained(text)] == ["log.error-gpu"]


def test_a_cause_in_the_second_line_of_a_message_is_told() -> None:
    raised = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig"
    )
    detail = "  Value error, num_speculative_tokens:3 must be divisible by n_predict=2 [type=value_error]"
    (found,) = told([BEGIN, frame("vllm/config.py"), raised, detail])
    assert found.code == "log.speculative-refused"


@pytest.mark.parametrize(
    ("path", "function", "doing"),
    [
        ("vllm/v1/worker/gpu_model_runner.py", "capture_model", "the engine captured CUDA graphs"),
        ("vllm/v1/worker/gpu_worker.py", "load_model", "the engine loaded the model"),
        ("sglang/srt/managers/scheduler.py", "event_loop_overlap", "the model ran for requests"),
    ],
)
def test_an_unknown_error_is_told_with_what_the_engine_did(
    path: str, function: str, doing: str
) -> None:
    (found,) = told([BEGIN, frame(path, function), frame("vllm/lora/x.py"), UNKNOWN])
    assert found.text.endswith(f"in LoRA (x.py:12 of vllm, run), while {doing}")


def test_an_error_outside_of_all_parts_is_told_with_its_package() -> None:
    (found,) = told([BEGIN, frame("torchaudio/x.py"), frame("../os.py"), UNKNOWN])
    assert "raised by x.py:12 of torchaudio, run" in found.text


def test_an_error_before_all_known_causes_is_told_first() -> None:
    root = [f"(Worker_TP1 pid=2) {line}" for line in (BEGIN, frame("vllm/lora/x.py"), UNKNOWN)]
    later = [f"(Worker_TP0 pid=1) INFO waiting {number}" for number in range(9)]
    known = "(Worker_TP0 pid=1) RuntimeError: CUDA error: an illegal memory access was encountered"
    first, second = told([*root, *later, known])
    assert (first.evidence, second.code) == (UNKNOWN, "log.illegal-memory-access")
    assert [one.code for one in told([known, *later, *root])] == ["log.illegal-memory-access"]


def test_an_error_without_a_traceback_and_a_pattern_is_told_by_its_text() -> None:
    (found,) = explained(["starting", "main: failed to turn the frobnicator", "bye"])
    assert (found.code, found.level, found.line) == ("log.first-error", Level.ERROR, 2)
    assert found.evidence == "main: failed to turn the frobnicator" and found.fix


@pytest.mark.parametrize(
    ("report", "end"),
    [
        ("Server process exited with code -9. Check server logs for errors.", "SIGKILL"),
        ("child process exited with code 139", "SIGSEGV"),
        ("child process exited with code 1", None),
    ],
)
def test_a_report_about_another_process_is_told_with_its_exit_code(
    report: str, end: str | None
) -> None:
    (found,) = explained([f"Exception: {report}"])
    assert found.code == "log.reports-only" and ("by its exit code" in found.text) == bool(end)
    assert (end or "") in found.text


def test_a_server_that_was_stopped_from_outside_has_no_error() -> None:
    stopped = [
        BEGIN,
        frame("vllm/entrypoints/openai/api_server.py"),
        "KeyboardInterrupt: terminated",
    ]
    assert [one.code for one in explained(stopped)] == ["log.stopped"]
    failed = [BEGIN, frame("vllm/lora/x.py"), UNKNOWN]
    assert [one.code for one in explained([*failed, *stopped])] == ["log.error-other"]


def test_of_very_many_lines_that_differ_those_with_a_sign_and_the_last_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.server.explained_log._MAX_SEARCHED_CHARACTERS", 100)
    monkeypatch.setattr("workbench.server.explained_log._SEARCHED_LAST_LINES", 3)
    words = ["gi", "hi", "ki", "li", "mi", "ni"]
    many = [f"{one} {other} {third}" for one in words for other in words for third in words]
    log = ExplainedLog("vllm")
    for line in (*many, "Enforce eager set", *many):  # no sign, and not among the last lines
        log.add_lines([line])
    assert log.findings == ()
    log.add_lines(["CUDA out of memory"])
    assert [(one.code, one.line) for one in log.findings] == [("log.cuda-oom", 434)]


def test_an_error_that_is_raised_from_a_look_up_says_what_was_missing() -> None:
    looked_up = [BEGIN, frame("vllm/multimodal/x.py"), "KeyError: 7", CAUSED]
    raised = [BEGIN, frame("vllm/multimodal/x.py"), "KeyError: 'Cannot find limits for model x'"]
    assert told([*looked_up, *raised])[0].evidence == "KeyError: 'Cannot find limits for model x'"
    repeats = [BEGIN, frame("vllm/y.py"), "KeyError: 'Error in model execution of the step: 7'"]
    assert told([*looked_up, *repeats])[0].evidence == "KeyError: 7"


def test_a_line_of_the_level_info_is_no_cause() -> None:
    line = "[x.py:1] RuntimeError: CUDA error: an illegal memory access was encountered"
    assert told([f"(EngineCore pid=7) INFO 11-21 00:30:10 {line}"], "vllm") == ()
    assert told([f"(EngineCore pid=7) ERROR 11-21 00:30:10 {line}"], "vllm") != ()
