"""Tests of the benchmark's own process: its messages, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import (
    SILENCE,
    Request,
    ScriptedServer,
    Step,
    chat_events,
    chunked,
    event,
    plain,
    usage,
)
from scripted_server import chunk as scripted_chunk
from support.procs import eventually
from truth_attainment import points_off
from truth_server import TruthProcess

from workbench.bench import runner, workers
from workbench.bench.client_process import WorkerOutput
from workbench.bench.records import BenchOutcome, RequestRecord
from workbench.bench.runner import BenchCancelled, run_load
from workbench.bench.workload import unique_prompt_mark
from workbench.model.bench import BenchProgress, BenchSpec
from workbench.model.distribution import quantile
from workbench.model.errors import BenchError
from workbench.model.json_records import to_json
from workbench.model.slo import parse_slo

OK = chunked(chat_events(3))
WORKER = [sys.executable, "-P", "-m", "workbench.bench.worker"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(runner.__file__).resolve().parents[2])}


def spec_for(url: str, **fields: Any) -> BenchSpec:
    return BenchSpec(
        url, "m", **{"concurrency": 2, "requests": 8, "warmup": 2, "max_tokens": 3, **fields}
    )


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        WORKER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    with process:
        yield process
        process.kill()


def tell(process: subprocess.Popen[bytes], spec: BenchSpec) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(to_json(spec)).encode() + b"\n")
    process.stdin.flush()


def until(process: subprocess.Popen[bytes], kind: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        message: dict[str, Any] = json.loads(line)
        if message["type"] == kind:
            return message
    raise AssertionError(
        f"the worker ended without a {kind}: {process.stderr and process.stderr.read()!r}"
    )


def children_of(pid: int) -> list[str]:
    return [
        p.name for p in Path("/proc").glob("[0-9]*") if f"\nPPid:\t{pid}\n" in read(p / "status")
    ]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def gone(pid: int) -> bool:
    return "State:\tZ" in (status := read(Path(f"/proc/{pid}/status"))) or not status


# -- a run -----------------------------------------------------------------------------------------


def test_a_run_from_start_to_end() -> None:
    seen: list[BenchProgress] = []
    with ScriptedServer(lambda request, n: [OK]) as server:
        before = time.time()
        outcome = asyncio.run(run_load(spec_for(server.url), on_progress=seen.append))
        assert len(server.requests) == 10
    s = outcome.summary
    assert (s.requests_ok, s.requests_failed, s.output_tokens, s.prompt_tokens) == (8, 0, 24, 1200)
    assert (s.warmup_requests, s.warmup_output_tokens, s.warmup_prompt_tokens) == (2, 6, 2 * 150)
    assert sorted(r.index for r in outcome.requests) == list(range(8))
    assert outcome.spec.salt and before < outcome.t0_unix <= outcome.t1_unix <= time.time() + 0.01
    assert s.duration_s == pytest.approx(outcome.t1_unix - outcome.t0_unix, abs=1e-3)
    assert seen[-1].phase == "done" and (seen[-1].done, seen[-1].failed, seen[-1].total) == (
        8,
        0,
        8,
    )


def four_a_chunk(request: Request, n: int, *, offered: bool) -> Iterator[Step]:
    """Answer with 32 tokens in 8 chunks, 20 ms apart. Usage is in each chunk if it is offered and
    requested."""
    asked = request.body["stream_options"].get("continuous_usage_stats")
    head = chat_events(1)[0]
    yield chunked([head], end=False)
    for i in range(8):
        time.sleep(0.02 if i else 0)
        counts = {"usage": usage(20, 4 * (i + 1))} if offered and asked else {}
        one = event(
            {**scripted_chunk({"content": " abcd"}, "length" if i == 7 else None), **counts}
        )
        yield b"%x\r\n%b\r\n" % (len(one), one)
    end = event({**scripted_chunk(), "choices": [], "usage": usage(20, 32)}) + event(b"[DONE]")
    yield b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end)


@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("offered", [True, False])
def test_tpot_does_not_depend_on_how_usage_is_reported(offered: bool, warmup: int) -> None:
    with ScriptedServer(lambda request, n: four_a_chunk(request, n, offered=offered)) as server:
        spec = spec_for(server.url, concurrency=1, requests=3, warmup=warmup, max_tokens=32)
        for _ in range(10):  # on a busy machine a read can be late, and the gaps are withheld
            server.requests.clear()
            s = asyncio.run(run_load(spec)).summary
            if s.itl_ms is not None:
                break
        counted = server.requests[warmup:]
        asked = [r.body["stream_options"].get("continuous_usage_stats", False) for r in counted]
    # in the warm-up, so that it costs the counted requests nothing
    assert asked == [not warmup] * 3
    noted = [n for n in s.notes if n.startswith("TPOT counts the first chunk as one token")]
    assert s.tpot_ms is not None and s.itl_ms is not None
    after_first = 28 if offered else 31
    assert s.tpot_ms.mean == pytest.approx(7 * s.itl_ms.mean / after_first, rel=0.01)
    assert bool(noted) is not offered and (
        offered or "4.0 tokens per chunk, TPOT may be 10 % too low" in noted[0]
    )


@pytest.mark.parametrize(
    "said", ["stream_options.continuous_usage_stats: extra", "bad stream_options", "bad request"]
)
def test_a_server_that_rejects_usage_in_chunks_gets_requests_without(said: str) -> None:
    def answer(request: Request, n: int) -> list[Step]:
        asked = "continuous_usage_stats" in request.body["stream_options"]
        return [plain("400 Bad Request", {"error": said})] if asked else [OK]

    with ScriptedServer(answer) as server:
        s = asyncio.run(run_load(spec_for(server.url))).summary
        assert all(r.body["stream_options"]["include_usage"] for r in server.requests)
    assert (s.requests_ok, s.warmup_requests, s.output_tokens) == (8, 2, 24)


def test_each_run_has_its_own_salt() -> None:
    with ScriptedServer(lambda request, n: [OK]) as server:
        salts = {
            asyncio.run(run_load(spec_for(server.url, requests=1))).spec.salt for _ in range(2)
        }
    assert len(salts) == 2


def test_a_run_in_which_all_requests_fail_is_still_a_result() -> None:
    with ScriptedServer(
        lambda request, n: [plain("503 Service Unavailable", {"error": "loading"})]
    ) as server:
        outcome = asyncio.run(run_load(spec_for(server.url)))
    assert outcome.summary.errors == {"http 503": 8}
    assert "8 x http 503: loading" in outcome.summary.notes


def test_the_key_goes_into_the_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sesame-42")
    with ScriptedServer(lambda request, n: [OK]) as server:
        outcome = asyncio.run(run_load(spec_for(server.url, api_key_env="MY_KEY")))
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer sesame-42"}
    assert "sesame" not in repr(outcome)


def test_a_worker_that_started_ahead_gets_the_key_when_it_is_known_and_ends_with_its_block() -> (
    None
):
    """The key comes on its stdin: its environment is set before the key is known."""

    async def scenario(server: ScriptedServer) -> int:
        async with runner.open_worker() as worker:
            assert isinstance(worker, workers.LocalWorker)
            assert b"THE_RUNS_OWN" not in Path(f"/proc/{worker.process.pid}/environ").read_bytes()
            spec = spec_for(server.url, api_key_env="THE_RUNS_OWN")
            outcome = await run_load(spec, env={"THE_RUNS_OWN": "sesame-43"}, worker=worker)
            assert outcome.summary.requests_ok == 8 and "sesame" not in repr(outcome)
            assert worker.process.returncode is not None  # the run ends it, before the block does
        async with runner.open_worker() as unused:
            assert isinstance(unused, workers.LocalWorker)
            assert unused.process.returncode is None
        assert unused.process.returncode is not None
        return unused.process.pid

    with ScriptedServer(lambda request, n: [OK]) as server:
        assert gone(asyncio.run(scenario(server)))
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer sesame-43"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"api_key_env": "NO_SUCH_KEY"}, "the environment variable NO_SUCH_KEY is not set"),
        ({"url": "localhost:8000"}, "invalid server URL"),
        ({"url": "http://user:pw@localhost:1"}, "contains a user name or a password"),
        ({"url": "http://[::1"}, "invalid server URL"),
        ({"url": "http://localhost:99999"}, "invalid server URL"),
        ({"url": "http://a..b:1"}, "cannot resolve the host name"),
        ({"concurrency": 0}, "0 is not a valid value of concurrency"),
        ({"requests": 0}, "0 is not a valid value of requests"),
        ({"max_tokens": 0}, "0 is not a valid value of max tokens"),
        ({"endpoint": "images"}, "'images' is not a valid value of endpoint"),
        ({"timeout_s": 0}, "0 is not a valid number of seconds"),
    ],
)
def test_specs_without_a_possible_run_are_rejected(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        asyncio.run(run_load(BenchSpec(**{"url": "http://127.0.0.1:1", "model": "m", **fields})))


# -- how it ends -----------------------------------------------------------------------------------


KILLED_PARENT = """
import json, os, subprocess, sys, time
spec, result, command = sys.argv[1], sys.argv[2], sys.argv[3:]
pipe = subprocess.PIPE
worker = subprocess.Popen([*command, result], stdin=pipe, stdout=pipe)
worker.stdin.write(spec.encode() + b"\\n")
worker.stdin.flush()
for line in worker.stdout:
    if json.loads(line).get("done", 0) > 3:
        break
worker.stdout.close()  # as the kernel does for a process that is killed, before it ends
time.sleep(0.3)
os._exit(0)
"""


def test_the_result_is_kept_if_the_output_is_closed_before_the_parent_ends(tmp_path: Path) -> None:
    result = tmp_path / "result"
    with ScriptedServer(lambda request, n: [OK]) as server:
        spec = json.dumps(to_json(spec_for(server.url, requests=100_000)))
        command = [sys.executable, "-c", KILLED_PARENT, spec, str(result), *WORKER]
        subprocess.run(command, env=ENVIRONMENT, timeout=60, check=True)
        eventually(result.exists, "the result of the worker")
    message = json.loads(result.read_text())
    assert message["partial"] and message["summary"]["requests_ok"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result"]


def test_cancel_keeps_what_was_measured_as_partial() -> None:
    """Ten requests are answered, the rest never."""

    async def cancelled(server: ScriptedServer) -> BenchOutcome:
        cancel = asyncio.Event()
        seen: list[BenchProgress] = []
        task = asyncio.ensure_future(
            run_load(spec_for(server.url, requests=50), cancel=cancel, on_progress=seen.append)
        )
        async with asyncio.timeout(30):
            while not (
                seen
                and seen[-1].phase == "measuring"
                and seen[-1].done == 10
                and seen[-1].in_flight == 2
            ):
                await asyncio.sleep(0.01)
        cancel.set()
        return await task

    # two of them warm up
    with ScriptedServer(lambda request, n: [OK] if n < 12 else [SILENCE]) as server:
        outcome = asyncio.run(cancelled(server))
    assert (
        outcome.partial
        and outcome.summary.requests_ok == 10
        and outcome.summary.requests_failed == 0
    )
    assert outcome.summary.refused[0] == (
        "partial result: stopped by the user after 10 of 50 requests"
    )
    assert not any("client" in why for why in outcome.summary.refused[:1])


def test_progress_contains_the_servers_silence() -> None:
    async def waited(server: ScriptedServer) -> tuple[float, float]:
        began = time.monotonic()
        cancel = asyncio.Event()
        seen: list[BenchProgress] = []
        task = asyncio.ensure_future(
            run_load(spec_for(server.url, warmup=0), cancel=cancel, on_progress=seen.append)
        )
        async with asyncio.timeout(30):
            while not (seen and seen[-1].silent_s >= 0.5):
                await asyncio.sleep(0.01)
        cancel.set()
        with pytest.raises(BenchCancelled):
            await task
        return seen[-1].silent_s, time.monotonic() - began

    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        silent_s, all_s = asyncio.run(waited(server))
    assert silent_s < all_s


def test_cancel_ends_the_process_without_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    kill_group = os.killpg
    monkeypatch.setattr(workers, "_END_WAIT_S", 60.0)
    monkeypatch.setattr(runner, "_PARTIAL_RESULT_WAIT_S", 60.0)
    monkeypatch.setattr(os, "killpg", lambda *to: signals.append(to[1]) or kill_group(*to))

    async def cancelled(server: ScriptedServer) -> None:
        cancel = asyncio.Event()
        task = asyncio.ensure_future(run_load(spec_for(server.url), cancel=cancel))
        while not server.requests:
            await asyncio.sleep(0.01)
        (worker,) = [
            int(p)
            for p in children_of(os.getpid())
            if "bench.worker" in read(Path(f"/proc/{p}/cmdline"))
        ]
        cancel.set()
        with pytest.raises(BenchCancelled, match="cancelled"):
            await task
        assert gone(worker)

    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        asyncio.run(cancelled(server))
    assert signal.SIGKILL not in signals, "the worker ends by itself"


def test_a_cancelled_task_leaves_no_process() -> None:
    async def cancelled(server: ScriptedServer) -> int:
        task = asyncio.ensure_future(run_load(spec_for(server.url)))
        while not server.requests:
            await asyncio.sleep(0.01)
        (worker,) = [
            int(p)
            for p in children_of(os.getpid())
            if "bench.worker" in read(Path(f"/proc/{p}/cmdline"))
        ]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return worker

    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        assert gone(asyncio.run(cancelled(server)))


def test_a_worker_that_is_killed_is_an_error_with_its_signal() -> None:
    async def killed(server: ScriptedServer) -> None:
        task = asyncio.ensure_future(run_load(spec_for(server.url)))
        while not server.requests:
            await asyncio.sleep(0.01)
        (worker,) = [
            int(p)
            for p in children_of(os.getpid())
            if "bench.worker" in read(Path(f"/proc/{p}/cmdline"))
        ]
        os.kill(worker, signal.SIGKILL)
        await task

    with (
        ScriptedServer(lambda request, n: [SILENCE]) as server,
        pytest.raises(BenchError, match="ended by signal SIGKILL before it had a result"),
    ):
        asyncio.run(killed(server))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('hello')", "an invalid message: 'hello'"),
        (
            "import sys; sys.exit('no space left')",
            "with exit code 1 before it had a result: no space left",
        ),
        ("import sys; sys.stdin.close(); print('[1]')", "an invalid message"),
    ],
)
def test_an_invalid_message_of_the_worker_is_an_error(
    monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.setattr(workers, "_WORKER", ("-c", code))
    with pytest.raises(BenchError, match=said.replace("[", r"\[")):
        asyncio.run(run_load(spec_for("http://127.0.0.1:1")))


def test_it_ends_on_sigterm(worker: subprocess.Popen[bytes]) -> None:
    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        tell(worker, spec_for(server.url))
        until(worker, "progress")
        worker.terminate()
        assert until(worker, "stopped")["reason"] == "ended by a signal"
        assert worker.wait(5) == 143
    assert worker.stderr is not None and worker.stderr.read() == b""


def test_it_ends_when_its_parent_is_gone(worker: subprocess.Popen[bytes]) -> None:
    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        tell(worker, spec_for(server.url))
        until(worker, "progress")
        assert worker.stdin is not None
        worker.stdin.close()
        assert until(worker, "stopped")["reason"] == "the parent process has ended"
        assert worker.wait(5) == 143


def test_the_worker_ends_when_its_reader_is_gone(worker: subprocess.Popen[bytes]) -> None:
    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        tell(worker, spec_for(server.url))
        until(worker, "progress")
        assert worker.stdout is not None
        worker.stdout.close()
        assert worker.wait(5) == 143


def test_the_worker_ends_on_a_signal_before_its_input(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(5) == 143


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"{}\n", b"\xff\n", b"null\n"])
def test_a_specification_that_is_none(worker: subprocess.Popen[bytes], line: bytes) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line)
    worker.stdin.flush()
    assert "invalid benchmark specification" in until(worker, "error")["error"]
    assert worker.wait(5) == 1


def test_a_reader_that_pauses_does_not_hold_up_the_run(worker: subprocess.Popen[bytes]) -> None:
    """More output than a pipe can buffer while nobody reads: the requests continue, and no output
    is lost."""
    events = chunked(chat_events(400))
    with ScriptedServer(lambda request, n: [events]) as server:
        tell(worker, spec_for(server.url, requests=200, max_tokens=400))
        deadline = time.monotonic() + 30
        while len(server.requests) < 202 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(server.requests) == 202
        assert worker.stdout is not None
        messages = [json.loads(line) for line in worker.stdout]
    assert sum(len(m["records"]) for m in messages if m["type"] == "requests") == 202
    assert messages[-1]["summary"]["output_tokens"] == 200 * 400


def test_records_wait_for_the_next_line(tmp_path: Path) -> None:
    """A request that ends costs no write of its own, and a large run's records are no single line."""
    record = RequestRecord(index=7, warmup=False, start_s=0.5, end_us=3, gaps_us=(1, 2))
    with (tmp_path / "lines").open("w+") as file:
        output = WorkerOutput(file.fileno())
        output.write_record(record)
        output.write_record(record)
        assert os.fstat(file.fileno()).st_size == 0
        output.write_line({"type": "progress"})
        for _ in range(2000):
            output.write_record(record)
        output.write_line({"type": "summary"})
        file.seek(0)
        lines = [json.loads(line) for line in file]
    kinds = [line["type"] for line in lines]
    assert kinds[:2] == ["requests", "progress"] and kinds[-1] == "summary"
    assert lines[0]["records"] == [json.loads(json.dumps(record.as_json()))] * 2
    assert 3 <= len(lines[2:-1]) <= 8 and set(kinds[2:-1]) == {"requests"}
    assert sum(len(line["records"]) for line in lines[2:-1]) == 2000


@pytest.mark.slow
def test_progress_comes_at_most_five_times_a_second(worker: subprocess.Popen[bytes]) -> None:
    def answer(request: Request, n: int) -> list[Step]:
        time.sleep(0.03)
        return [OK]

    with ScriptedServer(answer) as server:
        tell(worker, spec_for(server.url, requests=40, concurrency=1, warmup=0))
        began = time.monotonic()
        assert worker.stdout is not None
        messages = [json.loads(line) for line in worker.stdout]
        took = time.monotonic() - began
    progress = [m for m in messages if m["type"] == "progress"]
    assert 3 <= len(progress) <= 5 * took + 3
    assert all(m["done"] + m["in_flight"] <= m["total"] for m in progress)


def test_it_imports_nothing_heavy() -> None:
    """Standard library and plain data only; no event loop, and no TLS before it is needed."""
    code = "import sys, workbench.bench.worker; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    rooms = {".".join(n.split(".")[:2]) for n in loaded if n.startswith("workbench.")}
    assert rooms == {"workbench.bench", "workbench.model"}
    assert not loaded & {
        "asyncio",
        "ssl",
        "httpx",
        "msgspec",
        "numpy",
        "pydantic",
        "textual",
        "sqlite3",
        "subprocess",
    }


def test_the_worker_raises_its_priority_if_allowed() -> None:
    """By its session's own weight, since Linux weighs sessions: nice alone changes nothing between
    two of them."""
    autogroup = Path("/proc/self/autogroup")

    def nice(pid: int) -> tuple[int, str]:
        return os.getpriority(os.PRIO_PROCESS, pid), read(
            Path(f"/proc/{pid}/autogroup")
        ).rpartition(" ")[2].strip()

    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        process = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        with process:
            tell(process, spec_for(server.url))
            until(process, "progress")
            before = nice(os.getpid())
            mine = nice(process.pid)
            process.kill()
    if os.geteuid() == 0 and mine[0] != 0:  # root without CAP_SYS_NICE may not
        assert mine == (-10, "-10" if autogroup.exists() else "")
    assert before[0] == os.getpriority(os.PRIO_PROCESS, 0)


# -- truth -----------------------------------------------------------------------------------------


def test_times_agree_with_the_server_s_own_record() -> None:
    """TTFT and gaps against the times at which the server wrote. The bounds are for a shared
    machine; bench_client.py gives the real values."""
    with TruthProcess("--ttft-ms", "30", "--itl-ms", "5", "--jitter", "0.3") as server:
        slo = "ttft<=30@p50, tpot<=5.1@p50"
        spec = spec_for(server.url, concurrency=8, requests=24, warmup=8, max_tokens=20, slo=slo)
        outcome = asyncio.run(run_load(spec))
        truth = server.stop()
    assert outcome.summary.output_tokens == 24 * 20 and len(truth) == 32
    assert points_off(outcome, truth, parse_slo(slo)) < 100 / 24 + 0.1  # one request of 24
    ttft, gaps = [], []
    for record in outcome.requests:
        true = truth[unique_prompt_mark(outcome.spec.salt, f"r/{record.index}")]
        assert record.ttft_us is not None
        ttft.append(record.ttft_us / 1e3 - (true["sent_ns"][0] - true["request_ns"]) / 1e6)
        gaps.append(
            (sum(record.gaps_us) / 1e3 - (true["sent_ns"][-1] - true["sent_ns"][0]) / 1e6) / 19
        )
    assert -0.1 < quantile(sorted(ttft), 0.5) < 2.0
    assert abs(quantile(sorted(gaps), 0.5)) < 0.2
