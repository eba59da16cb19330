"""Known lines are found, healthy logs give no finding, and the decisive line is found among the
noise.

tests/fixtures/logs contains excerpts of runs made for this project. Failures that need a GPU are
written by hand here, in the form in which the engines print them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import engines
from workbench.model.findings import Finding, Level, by_severity
from workbench.server import log_patterns
from workbench.server.explained_log import ExplainedLog
from workbench.server.log_lines import level_of_line
from workbench.server.log_patterns import (
    LogPattern,
    LogScan,
    explain_line,
    explain_lines,
    find_error_text,
    patterns_of_engine,
    remove_numbers_from_lines,
    strip_log_prefix,
    stuck_start_findings,
)

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def lines(name: str) -> list[str]:
    return (LOGS / f"{name}.txt").read_text("utf-8").split("\n")


def feed(scan: LogScan, batch: list[str], first: int | None) -> None:
    scan.search_new_lines(batch, remove_numbers_from_lines(batch), first)


@pytest.mark.parametrize("pattern", patterns_of_engine(), ids=lambda p: p.id)
def test_each_pattern_finds_its_sample_through_the_prefilter(pattern) -> None:  # type: ignore[no-untyped-def]
    engine = pattern.engines[0] if pattern.engines else "vllm"
    noise = ["INFO nothing here", "(Worker pid=1) INFO 11-21 00:30:10 [x.py:1] loading"]
    for before in (noise, ["x" * 5000]):
        text = [*before, pattern.sample.upper() if before is noise else pattern.sample, *noise]
        found = [f for f in explain_lines(text, engine) if f.code == f"log.{pattern.id}"]
        if pattern.only_last:
            assert (
                not found
                and stuck_start_findings(pattern.sample, engine, None, 130.0)[0].code
                == f"log.{pattern.id}"
            )
        else:
            assert len(found) == 1 and found[0].evidence and found[0].fix and found[0].source


def test_ids_are_unique_and_texts_are_for_people() -> None:
    assert len({p.id for p in patterns_of_engine()}) == len(patterns_of_engine()) >= 60
    for p in patterns_of_engine():
        assert p.cause and p.fix and p.source, p.id
        assert all(n == n.lower() and len(n) >= 3 for n in p.needles), p.id


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("vllm-healthy", "vllm"),
        ("sglang-healthy", "sglang"),
        ("llamacpp-healthy", "llamacpp"),
        ("vllm-healthy", None),
    ],
)
def test_healthy_logs_raise_no_alarm(name: str, engine: str | None) -> None:
    assert len(lines(name)) > 30
    assert [
        f for f in explain_lines(lines(name), engine) if f.level in (Level.ERROR, Level.WARN)
    ] == []
    assert find_error_text(lines(name), engine) is None


def test_a_pattern_of_another_engine_is_not_applied() -> None:
    line = ["WARNING Cudagraph is disabled under eager mode"]
    assert [f.code for f in explain_lines(line, "vllm")] == ["log.eager"]
    assert explain_lines(line, "sglang") == () and len(explain_lines(line)) == 1


def test_findings_come_in_the_order_of_the_lines_and_once_each() -> None:
    text = [
        "OSError: [Errno 98] Address already in use",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ] * 3
    assert [f.code for f in explain_lines(text)] == ["log.port-taken", "log.cuda-oom"]


def test_real_failures_of_llama_cpp() -> None:
    missing, taken = lines("llamacpp-missing"), lines("llamacpp-port-taken")
    error = find_error_text(missing, "llamacpp")
    assert (
        error is not None
        and ("failed to open GGUF file 'tiny.gguf' (No such file or directory)") in error
    )
    assert [f.code for f in by_severity(explain_lines(missing, "llamacpp"))] == [
        "log.gguf-load",
        "log.llama-open-api",
    ]
    assert find_error_text(taken, "llamacpp") == (
        "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8973"
    )
    assert [f.code for f in by_severity(explain_lines(taken, "llamacpp"))][:1] == [
        "log.bind-failed"
    ]


def test_a_server_ended_while_starting_shows_no_error() -> None:
    assert find_error_text(lines("vllm-ended-while-starting"), "vllm") is None


CORE = "(EngineCore pid=7) ERROR 11-21 00:30:10 [core.py:402] "
API = "(APIServer pid=3) "
WRAPPED = [
    f"{API}INFO 11-21 00:30:01 [api_utils.py:347]  version 0.33.0",
    f"{API}WARNING 11-21 00:30:01 [x.py:1] RuntimeError: only a warning",
    f"{CORE}EngineCore failed to start.",
    f"{CORE}Traceback (most recent call last):",
    f'{CORE}  File "/opt/v/core.py", line 1, in run',
    f"{CORE}    raise KeyError(name)",
    f"{CORE}          ^^^^^^^^^^^^^^",
    f"{CORE}KeyError: 'model.layers.0.weight'",
    f"{API}Traceback (most recent call last):",
    f'{API}  File "/opt/v/api.py", line 2, in main',
    f"{API}RuntimeError: Engine core initialization failed. See root cause above.",
]


def test_the_first_cause_comes_out_of_a_chain_of_tracebacks() -> None:
    assert find_error_text(WRAPPED, "vllm") == "KeyError: 'model.layers.0.weight'"


def test_a_worker_that_failed_to_start_is_not_its_own_cause() -> None:
    worker = [line.replace("EngineCore failed", "WorkerProc failed") for line in WRAPPED]
    assert find_error_text(worker, "vllm") == "KeyError: 'model.layers.0.weight'"


def test_a_known_fatal_line_comes_before_errors_that_others_only_report() -> None:
    text = [
        f"{CORE}something optional failed",
        *WRAPPED[:3],
        f"{CORE}torch.OutOfMemoryError: CUDA out of memory.",
    ]
    assert find_error_text(text, "vllm") == "torch.OutOfMemoryError: CUDA out of memory."


def test_when_only_wrappers_are_there_one_of_them_is_the_error() -> None:
    assert find_error_text([*WRAPPED[:3], *WRAPPED[8:]], "vllm") == "EngineCore failed to start."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            ["usage: vllm serve", "vllm: error: unrecognized arguments: --max-num-seq 4"],
            "--max-num-seq 4",
        ),
        (
            [
                "Traceback (most recent call last):",
                '  File "/opt/v/cli.py", line 9, in main',
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
                "ParallelConfig",
                "  Value error, World of 3 does not fit [type=value_error, "
                "input_value=ArgsKwargs(()), input_type=A]",
                "    For further information visit https://errors.pydantic.dev/2/v/value_error",
            ],
            "World of 3 does not fit",
        ),
        (
            [
                "[2026-11-20 23:41:58 TP0] Scheduler hit an exception: Traceback (most recent call "
                "last):",
                '  File "x.py", line 1',
                "AssertionError",
            ],
            "AssertionError",
        ),
        (["/bin/sh: 1: serve-it: not found"], "serve-it: not found"),
        (
            [
                "[rank0]: Traceback (most recent call last):",
                '[rank0]:   File "x.py"',
                "[rank0]: ValueError: bad thing",
            ],
            "ValueError: bad thing",
        ),
        (  # the source line of a traceback stood there instead of the message below it
            [
                "Traceback (most recent call last):",
                '  File "/opt/v/hub.py", line 9, in get',
                "    raise LocalEntryNotFoundError(",
                "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files "
                "in the disk cache",
            ],
            "Cannot find the requested files",
        ),
        (  # what another process says of a killed engine core
            [
                "ERROR 11-22 06:50:10 [async_llm.py:708] AsyncLLM output_handler failed.",
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See "
                "stack trace (above)",
            ],
            "EngineDeadError: EngineCore encountered an issue",
        ),
        (  # the same under load: each request that it took along says so, too
            [
                "(APIServer pid=9) ERROR 11-22 06:50:10 [async_llm.py:906] AsyncLLM output_handler "
                "failed.",
                "(APIServer pid=9) ERROR 11-22 06:50:10 [async_llm.py:906] v1.EngineDeadError: "
                "EngineCore had one",
                "(APIServer pid=9) ERROR 11-22 06:50:10 [serving.py:929] Error in chat completion "
                "stream generator.",
            ],
            "EngineDeadError: EngineCore had one",
        ),
        (
            ["ERROR 11-22 06:50:10 [async_llm.py:708] AsyncLLM output_handler failed."],
            "output_handler failed",
        ),
        (["Fatal Python error: Segmentation fault"], "Segmentation fault"),
        (  # an assertion without a text of its own
            [
                "[2025-12-06 02:08:52 TP7] Scheduler hit an exception: Traceback (most recent call "
                "last):",
                '  File "/x/mamba_radix_cache.py", line 324, in __init__',
                "    assert isinstance(params.allocator, Allocator)",
                "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
                "AssertionError",
            ],
            "AssertionError: assert isinstance(params.allocator, Allocator)",
        ),
        (  # C++: the message is in the second line
            [
                "terminate called after throwing an instance of 'std::runtime_error'",
                "  what():  the model went away",
                "Aborted (core dumped)",
            ],
            "the model went away",
        ),
        (
            [
                "(Worker_TP3 pid=7) ERROR 08-11 04:29:42 [m.py:1020] WorkerProc hit an exception.",
                "(Worker_TP3 pid=7) ERROR 08-11 04:29:42 [m.py:1020] RuntimeError: unheard of",
            ],
            "RuntimeError: unheard of",
        ),
        (  # source code of a traceback, whose indentation a journal has removed
            [
                "Nov 28 19:04:00 tabby start.sh[3]: 2025-11-28 19:04:00.582 ERROR: raise result",
                "Nov 28 19:04:00 tabby start.sh[3]: 2025-11-28 19:04:00.582 ERROR: KeyError: 'id'",
            ],
            "KeyError: 'id'",
        ),
        (["\x1b[31mERROR\x1b[0m 11-21 00:30:10 [core.py:1] \x1b[1mno good\x1b[0m"], "no good"),
    ],
)
def test_shapes_of_errors(text: list[str], expected: str) -> None:
    found = find_error_text(["INFO starting", *text, "INFO bye"])
    assert found is not None and expected in found and found.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        [],
        [""],
        ["INFO 0 errors"],
        ["(APIServer pid=1) INFO 11-21 00:30:10 [x.py:1] error: none"],
        [
            "(APIServer pid=1) ERROR 11-20 23:21:40 [serving.py:274] Error with model "
            "error=ErrorInfo(message='no')"
        ],
        ["[2026-11-20 23:42:22] Ignore import error when loading x: No module named 'cutlass'"],
        ['INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 404 Not Found'],
    ],
)
def test_lines_that_are_no_errors(text: list[str]) -> None:
    assert (
        find_error_text(text) is None
        and [f for f in explain_lines(text) if f.level is not Level.INFO] == []
    )


def test_evidence_is_plain_and_short() -> None:
    assert strip_log_prefix(f"{CORE}\x1b[31mToo bad\x1b[0m\x07") == "Too bad"
    assert (
        strip_log_prefix("0.01.107.132 I srv  llama_server: listening") == "llama_server: listening"
    )
    assert strip_log_prefix("[2026-11-20 23:41:58] hello") == "hello"
    assert len(strip_log_prefix("x" * 10_000)) == 500


def test_lines_that_differ_only_in_numbers_are_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A very busy log, in batches as the follower makes them."""
    kinds = [line for line in lines("vllm-healthy") if line.isascii()]
    searched: list[str] = []
    search = log_patterns._find_pattern_matches

    def counted(fresh: Sequence[str], engine: str | None) -> Iterator[tuple[LogPattern, int, str]]:
        searched.extend(fresh)
        return search(fresh, engine)

    monkeypatch.setattr(log_patterns, "_find_pattern_matches", counted)
    scan = LogScan("vllm")
    for turn in range(20):
        feed(scan, [f"{line} {turn}" for line in kinds], turn * len(kinds) + 1)
    assert searched == [f"{line} 0" for line in kinds]


@pytest.mark.timeout(60)  # a search that goes back takes minutes; this one takes half a second
def test_lines_made_to_match_the_prefilter_are_searched_in_one_pass() -> None:
    nasty = [
        "unsupported out of memory is not supported version mismatch " + "NCCL gloo " * 300
    ] * 50
    assert explain_lines(nasty) == explain_lines(nasty[:1])


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("vllm-warnings", "vllm"),
        ("vllm-healthy", "vllm"),
        ("vllm-ended-while-starting", "vllm"),
        ("sglang-warnings", "sglang"),
        ("sglang-healthy", "sglang"),
        ("llamacpp-healthy", "llamacpp"),
    ],
)
def test_each_warning_and_error_of_a_real_log_is_explained(name: str, engine: str) -> None:
    marked = [line for line in lines(name) if level_of_line(line) in ("warn", "error")]
    assert (
        len(marked) >= 2 and [line for line in marked if explain_line(line, engine) is None] == []
    )


def test_lines_that_need_nothing_say_so() -> None:
    found = explain_line(
        "WARNING Triton is not installed. triton-cpu is expected on x86 CPUs.", "vllm"
    )
    assert (
        found is not None
        and found.level is Level.INFO
        and found.text.startswith("harmless: Triton has no code")
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("RuntimeError: NCCL initialization failed", "nccl-init"),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file",
            "cuda-library-missing",
        ),
        ("RuntimeError: FlashInfer requires sm75+", "flashinfer-arch"),
        ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "flashinfer-arch"),
        ("spark-01:77:77 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>", "nccl-socket"),
        ("Custom allreduce is disabled", "custom-allreduce-other"),
        ("Enforce eager set", "eager"),
        ("Unsupported architecture sm_120", "unsupported-arch"),
    ],
)
def test_the_lines_that_the_write_ups_name(line: str, code: str) -> None:
    found = explain_line(line, "vllm")
    assert found is not None and found.code == f"log.{code}"


@pytest.mark.parametrize(
    ("line", "codes"),
    [  # of public threads: each was explained wrongly, or by something that only followed from it
        ("error loading model: unknown (magic, version) combination: 46554747", ["gguf-version"]),
        (
            "ValueError: could not broadcast input array from shape (9,) into shape (5,)",
            ["graph-buffer"],
        ),
        ("TypeError: check() missing 1 required positional argument: 'text'", ["error-engine"]),
        (
            "RuntimeError: CUDA error: an illegal instruction was encountered",
            ["cuda-illegal-instruction"],
        ),
        ("ImportError: libtorch.so.1: undefined symbol: nvrtcGetLog", ["cuda-library-missing"]),
        ("n:1 [7] init.cc:1 NCCL WARN Cuda failure 'initialization error'", ["nccl-cuda-error"]),
        ("CUDA error: invalid argument", ["ggml-cuda-error"]),
        ("RuntimeError: CUDA error: invalid argument", ["cuda-argument"]),
        ("srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE exclude", ["error-slurm"]),
        (
            "docker: Error response from daemon: Unknown runtime specified nvidia.",
            ["container-no-gpu"],
        ),
        ("NCCL INFO Connected all rings", []),
        ("CUDA error: operation not permitted when stream is capturing", ["capture-refused"]),
        (
            "x/vllm/_C.abi3.so: undefined symbol: _Z9fp4_quantRN2at6TensorES1_",
            ["extension-incomplete"],
        ),
        ("vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaERKSsb", ["torch-abi"]),
        (
            "ValueError: Model architectures ['A'] are not supported for now. "
            "Supported architectures: ['B', 'A']",
            ["architecture-inspect"],
        ),
        (
            "ValueError: Model architectures ['A'] are not supported for now. "
            "Supported architectures: ['B']",
            ["architecture-unsupported"],
        ),
        ("error: invalid argument: 0.0.0.0", ["word-without-flag"]),
        ("AttributeError: Can't pickle local object 'f.<locals>.T'", ["not-picklable"]),
        ("RuntimeError: CUDA error: OS call failed or operation not supported", ["cuda-os-call"]),
        ("/tmp/torchinductor_root/x.py:16:0: error: Failures", ["error-compile"]),
        ("error: invalid argument: -hf", ["unknown-flag"]),
        ("couldn't bind to server socket: hostname=33.206.101.72", ["bind-failed"]),
        ("NCCL WARN Error while attaching to shared memory segment /dev/shm/x", ["nccl-shm"]),
        (
            "WARNING 06-13 11:42:20 _custom_ops.py:11] Failed to import from vllm._C with "
            "ImportError('vllm/_C.abi3.so: undefined symbol: _ZN5torch7LibraryC1E')",
            ["torch-abi"],
        ),
        ("ValueError: Loading lora x failed: No adapter found for /m", ["lora-missing"]),
        ("warning: failed to mlock 78-byte buffer: Cannot allocate memory", ["llama-mmap"]),
    ],
)
def test_lines_that_were_explained_wrongly(line: str, codes: list[str]) -> None:
    assert [one.code.removeprefix("log.") for one in explain_lines([line])][:1] == codes


def test_a_lost_connection_of_nccl_is_never_the_cause_beside_an_error() -> None:
    text = [
        "w:1:2 [7] socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<5>",
        "w:1:2 [3] init.cc:1077 NCCL WARN Cuda failure 'initialization error'",
    ]
    found = by_severity(explain_lines(text))
    assert [one.code for one in found] == ["log.nccl-cuda-error", "log.nccl-connection"]
    assert find_error_text(text) == strip_log_prefix(text[1])


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=1) ERROR 11-21 00:30:10 [core.py:402]     raise ValueError('CUDA out of "
        "memory')",
        '    f"No available memory for the cache blocks. "',
        "[2026-11-20 23:42:28] Receive: obj=GenerateReqInput(text='why CUDA out of memory?')",
        "(APIServer pid=1) INFO 11-21 00:30:10 [x.py:1] Received request 7: prompt: 'NCCL "
        "initialization failed'",
    ],
)
def test_quoted_texts_are_no_findings(line: str) -> None:
    assert explain_lines([line]) == ()


@pytest.mark.parametrize(
    "line",
    [
        "[W816 03:37:28.339207773 socket.cpp:764] [c10d] The client socket cannot be initialized to "
        "connect to [localhost]:57269 (errno: 97 - Address family not supported by protocol).",
        "Error retrieving file list: [Errno -3] Temporary failure in name resolution, retrying 1 of 2",
        "srv    operator(): Unauthorized: Invalid API Key",
        'INFO:     10.0.0.3:4 - "POST /v1/models HTTP/1.1" 429 Too Many Requests',
        "VERB [      log_server_request] request | response=what(): [json.exception.parse_error.101]",
        "WARNING 06-07 20:57:44 [nixl_connector.py:60] NIXL is not available",
        "WARNING 06-07 20:57:44 [x.py:60] CUDA_HOME environment variable is not set",
        "2025-10-16 05:27:54.710 INFO:     exllamav3 version: 0.0.10",
        "Setting ENV_VAR SGLANG_ENABLE_SPEC_V2=1",
        "[2026-02-27 11:31:26] Custom allreduce v2 initialized successfully (rank-check failed: tensor "
        "model parallel group is not initialized)",
        "slurmstepd: error: *** STEP 967403.32 ON jpbo-002-16 CANCELLED AT 2026-07-18T00:40:30 ***",
        "CutlassBlockScaledGroupedGemm not supported on the current platform.",
        "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend "
        "FlashInferBackend (support: x); setting cudagraph_mode=PIECEWISE",
    ],
)
def test_lines_of_servers_that_run_are_never_causes(line: str) -> None:
    assert Level.ERROR not in {found.level for found in explain_lines([line])}


def test_a_growing_log_gives_each_finding_once_with_its_line() -> None:
    scan = LogScan("vllm")
    feed(scan, ["INFO start", "WARNING Enforce eager set, disabling torch.compile"], 1)
    assert [(f.code, f.line) for f in scan.findings_above_info] == [("log.eager", 2)]
    feed(
        scan,
        [f"INFO {n} requests é" for n in range(3)]
        + ["WARNING Enforce eager set", "NCCL initialization failed"],
        3,
    )
    assert [(f.code, f.line) for f in scan.findings_above_info] == [
        ("log.nccl-init", 7),
        ("log.eager", 2),
    ]
    feed(scan, ["port 1: [Errno 98] Address already in use"], None)
    assert [(f.code, f.line) for f in scan.found][-1] == ("log.port-taken", None)


def test_a_line_is_found_after_many_that_differ_only_in_numbers() -> None:
    scan = LogScan()
    for n in range(100):
        feed(scan, [f"INFO request {n:x} took {n} s" for _ in range(20)], 20 * n + 1)
    assert scan.found == ()
    feed(scan, ["INFO request ff took 3 s", "torch.OutOfMemoryError: CUDA out of memory."], 2001)
    assert [(f.code, f.line) for f in scan.found] == [("log.cuda-oom", 2002)]


@pytest.mark.parametrize(
    ("phase", "part"),
    [
        ("loading weights 40 %", "weights are read"),
        ("compiling", "compiles or tunes"),
        ("capturing CUDA graphs 33 %", "captures CUDA graphs"),
        ("starting the workers", "connect to each other"),
        ("importing", "imports its packages"),
        (None, "imports its packages"),
        ("warming up", "first request"),
    ],
)
def test_a_start_that_hangs_is_named_with_its_phase(phase: str | None, part: str) -> None:
    (found,) = stuck_start_findings("INFO hello", "vllm", phase, 190.0)
    assert found.code == "start.stuck" and found.fix and found.evidence == "hello"
    assert (
        f"no new line in the log for 3 min, in the phase “{phase or 'starting'}”" in found.text
        and part in found.text
    )


def test_each_phase_that_an_engine_reports_has_an_explanation_of_its_own() -> None:
    from workbench import engines

    known = {
        text for name in engines.engine_names() for _, text in engines.get_engine(name).phases
    } - {
        "importing",
        "starting",
    }
    unexplained = [
        p
        for p in known
        if "imports its packages" in stuck_start_findings("", None, p, 130.0)[-1].text
    ]
    assert unexplained == []


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n"), max_size=60), max_size=8),
    st.integers(1, 4),
)
def test_a_growing_log_finds_what_a_whole_log_has(text: list[str], size: int) -> None:
    text = [*text, "CUDA out of memory", *text]
    scan = LogScan()
    for start in range(0, len(text), size):
        feed(scan, text[start : start + size], start + 1)
    assert {f.code for f in scan.found} == {f.code for f in explain_lines(text)}


@given(st.lists(st.text(max_size=60), max_size=8), st.sampled_from([None, "vllm", "nothing"]))
def test_any_lines_are_answered(text: list[str], engine: str | None) -> None:
    for finding in explain_lines(text, engine):
        assert finding.code.startswith("log.")
    error = find_error_text(text, engine)
    assert error is None or (error and len(error) <= 500)


CHANGES = [  # of lines that name a value, or that no sample has
    ("vllm", "Free memory on device cuda:0 (101.9/121.69 GiB) on startup is less than desired GPU "
    "memory utilization",
     "--set gpu-memory-utilization=0.83"),
    ("vllm", "Free memory on device (0/0 GiB) is less than desired GPU memory utilization", ""),
    ("vllm", "KV cache is needed, which is larger than the available KV cache memory (2.5 GiB). "
    "Based on the available "
     "memory, the estimated maximum model length is 71328.", "--set max-model-len=71328"),
    ("vllm", "KV cache is needed, which is larger than the available KV cache memory (2.5 "
    "GiB).", ""),
    ("vllm", "max_model_len (8192) is greater than the derived max_model_len "
    "(max_position_embeddings=2048)",
     "--set max-model-len=2048"),
    ("vllm", "vllm: error: unrecognized arguments: --max-num-seq 4", "--unset max-num-seq"),
    ("vllm", "vllm: error: unrecognized arguments: --a 4 --b", ""),
    ("sglang", "AssertionError: Assertion error (csrc/apis/gemm.hpp:12): Unsupported architecture",
     "--env SGLANG_ENABLE_JIT_DEEPGEMM=0"),
    ("vllm", "AssertionError: Assertion error (csrc/apis/gemm.hpp:12): Unsupported architecture",
     "--env VLLM_USE_DEEP_GEMM=0"),
    (None, "AssertionError: Assertion error (csrc/apis/gemm.hpp:12): Unsupported architecture", ""),
    (None, "Enforce eager set, disabling torch.compile", "--unset enforce-eager"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "line", "changes"), CHANGES)
def test_the_fix_of_a_line_is_also_data(engine: str | None, line: str, changes: str) -> None:
    (found,) = explain_lines([line], engine)
    assert " ".join(change.option_text for change in found.changes) == changes


def test_a_change_is_one_that_the_engine_knows() -> None:
    """Each flag is one of a catalog of the engine that writes the line; each sample gives its
    change."""
    for pattern in patterns_of_engine():
        for engine in pattern.changes:
            found = pattern.make_finding(pattern.sample, engine or "vllm").changes
            assert found or pattern.id == "context-too-long", pattern.id
            for change in found:
                known = (
                    engine == ""
                    or change.env
                    or change.name in engines.get_engine(engine).catalog().flags
                )
                assert known, (pattern.id, change)


NINJA = [
    f"{CORE}RuntimeError: Ninja build failed. Ninja output:",
    f"{CORE}ninja: Entering directory `/home/u/.cache/flashinfer/0.5.3/121a/cached_ops'",
    f"{CORE}[1/2] /usr/local/cuda/bin/nvcc -c x.cu -o x.cuda.o",
    f"{CORE}FAILED: x.cuda.o",
    f"{CORE}nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
    f"{CORE}ninja: build stopped: subcommand failed.",
]
TABBY = "2025-04-30 13:18:44.754 ERROR:    "


@pytest.mark.parametrize(
    ("engine", "text", "error", "code"),
    [
        ("vllm", NINJA, "nvcc fatal   : Unsupported gpu architecture", "nvcc-arch"),
        (
            "vllm",
            [*NINJA[:4], f"{CORE}/bin/sh: 1: nvcc: not found", NINJA[5]],
            "/bin/sh: 1: nvcc: not found",
            "nvcc-missing",
        ),
        (
            "tabbyapi",
            [
                f"{TABBY}Traceback (most recent call last):",
                f'{TABBY}  File "/opt/tabby/main.py", line 181, in <module>',
                f"{TABBY}    entrypoint()",
                f"{TABBY}RuntimeError: a failure that nobody has seen",
            ],
            "RuntimeError: a failure that nobody has seen",
            "error-other",
        ),
        (
            "llamacpp",
            ["main: loading model", "ggml/src/ggml.c:1554: GGML_ASSERT(a == b) failed"],
            "ggml/src/ggml.c:1554: GGML_ASSERT(a == b) failed",
            "ggml-assert",
        ),
        (
            "llamacpp",
            ["/src/ggml-cuda.cu:88: CUDA error", "CUDA error: misaligned address", "  x()"],
            "CUDA error: misaligned address",
            "ggml-cuda-error",
        ),
        (
            "llamacpp",
            ["0.54.236.075 E CUDA error: an illegal memory access was encountered"],
            "CUDA error: an illegal memory access was encountered",
            "illegal-memory-access",
        ),
        (
            "llamacpp",
            [
                "E load_tensors: failed to allocate CPU buffer",
                "llama_model_load: error loading model: unable to allocate CPU buffer",
            ],
            "E load_tensors: failed to allocate CPU buffer",
            "llama-host-memory",
        ),
        (
            "llamacpp",
            ["llama_model_load: error loading model: unknown model architecture: 'glm9'"],
            "llama_model_load: error loading model: unknown model architecture: 'glm9'",
            "llama-architecture",
        ),
        (
            "sglang",
            [
                "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
                "- ModuleNotFoundError: No module named 'common_ops'",
            ],
            "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
            "sgl-kernel",
        ),
        (
            "vllm",
            [
                "gpu:222:222 [0] enqueue.cc:1556 NCCL WARN Cuda failure 'out of memory'",
                "ERROR 05-21 01:02:03 [m.py:1] Worker proc VllmWorker-1 died unexpectedly.",
            ],
            "gpu:222:222 [0] enqueue.cc:1556 NCCL WARN Cuda failure 'out of memory'",
            "nccl-memory",
        ),
        (
            "vllm",
            [
                "(VllmWorker rank=0 pid=3) ERROR 08-16 11:45:16 [m.py:511]     param = it[name]",
                "(VllmWorker rank=0 pid=3) ERROR 08-16 11:45:16 [m.py:511] ValueError: unheard of",
                "ERROR 08-16 11:45:17 [core.py:632] EngineCore failed to start.",
            ],
            "ValueError: unheard of",
            "error-other",
        ),
        (
            "vllm",
            [
                f"{API}pydantic_core._pydantic_core.ValidationError: 1 validation error for M",
                f"{API}  Value error, The checkpoint you are trying to load is unheard of.",
                API,
                f"{API}You can update it. [type=value_error, input_value=ArgsKwargs(())]",
            ],
            "The checkpoint you are trying to load is unheard of.",
            "error-other",
        ),
    ],
)
def test_the_line_that_explains_a_failure_is_found_and_explained(
    engine: str, text: list[str], error: str, code: str | None
) -> None:
    found = find_error_text(text, engine)
    assert found is not None and found.startswith(error)
    errors = [f.code for f in explain_lines(text, engine) if f.level is Level.ERROR]
    assert errors[:1] == ([f"log.{code}"] if code else [])


def test_a_fatal_error_of_a_kernel_that_runs_is_none_of_a_compiler() -> None:
    running = "/src/ggml/src/ggml-cuda/fattn.cu:579: fatal error"
    assert [f.code for f in explain_lines([running], "llamacpp")] == ["log.ggml-fatal"]
    compiled = "/x/csrc/kernel.cuh:12:10: fatal error: cuda.h: No such file or directory"
    assert [f.code for f in explain_lines([compiled], "llamacpp")] == ["log.headers-missing"]


def test_a_lack_of_gpu_memory_gets_the_flags_of_its_own_engine() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    flags = {
        "vllm": "max-num-batched-tokens",
        "sglang": "mem-fraction-static",
        "llamacpp": "n-gpu-layers",
        "tabbyapi": "cache_size",
    }
    for engine, flag in flags.items():
        (finding,) = explain_lines([line], engine)
        assert finding.fix is not None and flag in finding.fix
        assert not any(other in finding.fix for name, other in flags.items() if name != engine)


def test_a_missing_tool_is_not_a_missing_engine() -> None:
    codes = {
        "bash: nvcc: command not found": "log.nvcc-missing",
        "bash: line 1: vllm: command not found": "log.program-missing",
        "/bin/sh: 1: numactl: not found": "log.tool-missing",
    }
    for line, code in codes.items():
        assert [finding.code for finding in explain_lines([line], "vllm")] == [code]


def test_the_number_in_the_line_becomes_the_change() -> None:
    line = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969)."
    (finding,) = explain_lines([line], "vllm")
    assert [change.option_text for change in finding.changes] == ["--set max-num-seqs=969"]


@pytest.mark.parametrize(
    ("engine", "line", "code"),
    [
        ("vllm", "    assert param_data.shape == loaded_weight.shape", "log.checkpoint-weights"),
        ("vllm", "KeyError: 'layers.0.mlp.experts.w2_weight'", "log.checkpoint-weights"),
        # the name of a layer, and not of a weight: vllm-project/vllm#36640
        ("vllm", "KeyError: 'language_model.model.layers.20.linear_attn'", None),
        (
            "sglang",
            "ImportError: cannot import name '_set_default_torch_dtype' from 'vllm.model_executor'",
            "log.transformers-api",
        ),
        (
            "vllm",
            "AttributeError: type object 'TokenizerInfo' has no attribute 'from_huggingface'",
            "log.transformers-api",
        ),
        ("vllm", "ImportError: cannot import name 'thing' from 'my_plugin'", None),
        (
            "sglang",
            "Ignore import error when loading x: cannot import name 'y' from 'vllm.z'",
            None,
        ),
        (
            "vllm",
            "AttributeError: 'Gemma3Config' object has no attribute 'vocab_size'",
            "log.config-attribute",
        ),
        ("vllm", "AttributeError: 'list' object has no attribute 'max_model_len'", None),
        ("vllm", "ValueError: Unsupported config format: ConfigFormat.AUTO", "log.config-format"),
        ("sglang", "AssertionError: res=<Response [502]>, res.text=''", "log.warm-up-refused"),
        ("sglang", "AssertionError: res=<Response [400]>, res.text='bad'", None),
        ("vllm", "AttributeError: 'ReplicatedLinear' object has no attribute 'bias'", None),
        (
            "sglang",
            "The following error message 'operation scheduled before its operands' can be ignored.",
            None,
        ),
    ],
)
def test_lines_of_public_threads_are_explained_or_left_alone(
    engine: str, line: str, code: str | None
) -> None:
    """The lines stand in the threads that the patterns name; their neighbours are something else,
    of which at most the kind is named."""
    found = [f.code for f in explain_lines([line], engine) if f.level in (Level.ERROR, Level.WARN)]
    assert [c for c in found if not c.startswith("log.error-")] == ([code] if code else [])
    assert len(found) <= 1


ATTRIBUTE = "AttributeError: 'EagleProposer' object has no attribute 'positions'"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def codes_told(text: list[str], engine: str = "vllm") -> list[str]:
    scan, log = LogScan(engine), ExplainedLog(engine)
    feed(scan, text, 1)
    log.add_lines(text)
    told = [f.code for f in log.findings if f.level is not Level.INFO]
    assert told == [f.code for f in scan.findings_above_info]
    return told


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank0]: ",
        "(EngineCore pid=7) ERROR 11-21 00:30:10 [core.py:402] ",
        "2026-07-30T07:27:23.496792960Z ",
        "2026-07-30T07:27:23.496+00:00 stderr F ",
        "[2026-07-30T07:27:23.496Z] ",
    ],
)
def test_an_error_without_a_pattern_of_its_own_is_explained_by_its_kind(prefix: str) -> None:
    assert codes_told([f"{prefix}{ATTRIBUTE}"]) == ["log.error-attribute"]
    assert find_error_text([f"{prefix}{ATTRIBUTE}"], "vllm") == ATTRIBUTE


def test_a_kind_of_error_is_not_told_beside_a_known_cause() -> None:
    assert codes_told([ATTRIBUTE, OUT_OF_MEMORY]) == ["log.cuda-oom"]
    assert find_error_text([ATTRIBUTE, OUT_OF_MEMORY], "vllm") == OUT_OF_MEMORY


def test_errors_after_the_first_one_are_not_told_by_their_kinds() -> None:
    after = ["KeyError: 'sliding'", "ConnectionResetError: [Errno 104] Connection reset by peer"]
    assert codes_told([ATTRIBUTE, *after]) == ["log.error-attribute"]


@pytest.mark.parametrize(
    "line",
    [
        "WARNING 11-21 00:30:10 [x.py:1] AttributeError: 'X' object has no attribute 'y'",
        "INFO 11-21 00:30:10 [x.py:1] ValueError: block_size must be a multiple of 16",
        '    raise ValueError(f"{name} is not supported")',
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "[2026-03-29 18:46:55] server_args=ServerArgs(model_path='/m', trust_remote_code=True, "
        "watchdog_timeout=300, quantization=None, speculative_config=None)",
        "INFO 04-29 01:34:48 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: "
        "model='/m', trust_remote_code=True, kv_cache_dtype=auto",
        "INFO 07-25 18:00:10 api_server.py:220] args: Namespace(model='/m', trust_remote_code=True, "
        "limit_mm_per_prompt=None)",
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", None])
def test_warnings_source_and_settings_in_force_are_no_errors(line: str, engine: str | None) -> None:
    assert explain_lines([line], engine) == ()


SEGFAULT = (
    "[  812.34] llama-server[4242]: segfault at 0 ip 00007f2a error 4 in libggml-base.so[7f2a+a0]"
)
GGML = "/build/ggml/src/ggml-cuda/rope.cu:125: GGML_ASSERT(src0->type == GGML_TYPE_F32) failed"


@pytest.mark.parametrize("text", [[SEGFAULT, GGML], [GGML, SEGFAULT]])
def test_a_line_of_the_kernel_is_not_the_cause_wherever_it_was_pasted(text: list[str]) -> None:
    """Before the assertion, it took the place of the cause."""
    told = explained_lines(["main: loading model", *text], "llamacpp")
    assert [one.code for one in told if one.level is Level.ERROR] == ["log.ggml-assert"]


def test_a_build_for_rocm_is_named_in_a_warning_too() -> None:
    missing = "libtorch_hip.so: cannot open shared object file: No such file or directory"
    for line in (f"ImportError: {missing}", f"OSError: {missing}", missing):
        assert codes_told([line]) == ["log.rocm-library-missing"], line
    (warned,) = explained_lines(
        [
            f"WARNING 11-02 [interface.py:222] Failed to import from vllm._C: ImportError('{missing}')"
        ],
        "vllm",
    )
    assert (warned.code, warned.level) == ("log.rocm-library-missing", Level.WARN)


def explained_lines(text: list[str], engine: str) -> tuple[Finding, ...]:
    log = ExplainedLog(engine)
    log.add_lines(text)
    return log.findings
