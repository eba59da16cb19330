"""Simulated engines as processes: they start, answer, report metrics, stop and fail like the real
ones."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading

import pytest
from sim_process import free_port, wait_for

from workbench.sim.driver_state import process_start_ticks

QWEN = "Qwen/Qwen2.5-7B-Instruct-AWQ"
MISTRAL = "mistralai/Mistral-Large-Instruct-2411-AWQ"
VLLM = ("vllm", "serve", QWEN, "--max-model-len", "4096", "--gpu-memory-utilization", "0.3")
ENGINES = {
    "vllm": VLLM,
    "sglang": (
        "sglang",
        "serve",
        "--model-path",
        QWEN,
        "--enable-metrics",
        "--mem-fraction-static",
        "0.2",
    ),
    "llamacpp": ("llama-server", "-m", "/simulated/Qwen2.5-7B-Q4_K_M.gguf", "--metrics"),
    "tabbyapi": (
        "python",
        "main.py",
        "--model-name",
        "Qwen2.5-7B-4.0bpw",
        "--disable-auth",
        "True",
    ),
}
READY = {
    "vllm": "Application startup complete.",
    "sglang": "The server is fired up and ready to roll!",
    "llamacpp": "listening on http://127.0.0.1:",
    "tabbyapi": "Uvicorn running on http://127.0.0.1:",
}


def metric(text: bytes, name: str) -> float:
    """Return the sum of a metric over its labels."""
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text.decode(), re.M)
    assert found, name
    return sum(map(float, found))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_reports_that_it_is_simulated_serves_and_stops(start_engine, engine):
    server = start_engine(*ENGINES[engine]).wait_ready()
    assert "SIMULATED engine" in server.log.splitlines()[0]
    wait_for(lambda: READY[engine] in server.log, "the ready line")
    models = json.loads(server.request("GET", "/v1/models")[1])["data"]
    assert models[0]["owned_by"] == "simulated"
    events = server.events(model=models[0]["id"], max_tokens=6)
    assert events[-1] == "[DONE]"
    usage = next(e["usage"] for e in reversed(events[:-1]) if e.get("usage"))
    assert usage["completion_tokens"] == 6 and usage["owned_by"] == "simulated"
    assert usage["prompt_tokens"] + 6 == usage["total_tokens"]
    asked = {"stream_options": {"include_usage": True}} if engine == "tabbyapi" else {}
    status, body = server.chat(model=models[0]["id"], max_tokens=5, **asked)
    whole = json.loads(body)
    assert status == 200 and whole["usage"]["completion_tokens"] == 5
    assert len(whole["choices"][0]["message"]["content"].split()) == 5
    held = server.state.engine_memory_bytes(0)
    assert held > 4 << 30
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    wait_for(lambda: not server.members(), "an empty session")
    assert sim_memory_left(server) == 0


def sim_memory_left(server) -> int:
    server.state._moment = 0.0
    return server.state.gpu_readings()[0].memory_used_bytes


def content_of(event) -> str:
    choice = event["choices"][0]
    return choice["delta"].get("content", "") if "delta" in choice else choice["text"]


def test_stream_shapes_differ_as_the_real_ones_do(start_engine):
    shapes = {}
    for engine, argv in ENGINES.items():
        server = start_engine(*argv).wait_ready()
        events = server.events(max_tokens=3)[:-1]
        finish = [
            i for i, e in enumerate(events) if e["choices"] and e["choices"][0]["finish_reason"]
        ]
        assert len(finish) == 1
        shapes[engine] = (content_of(events[finish[0]]) != "", events[-1]["choices"] == [])
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(content_of(e) for e in events if e["choices"])
        assert len(text.split()) == 3, "one word for each token"
        assert ("timings" in events[-1]) == (engine == "llamacpp")
    # (finish rides on content, usage comes without choices)
    assert shapes == {
        "vllm": (True, True),
        "sglang": (False, True),
        "llamacpp": (False, True),
        "tabbyapi": (False, False),
    }


def test_usage_is_sent_on_request_only_and_completions_have_text(start_engine):
    server = start_engine(*VLLM).wait_ready()
    events = server.events(
        "/v1/completions", prompt="once upon a time", max_tokens=4, stream_options=None
    )
    assert all("usage" not in e for e in events[:-1])
    text = "".join(e["choices"][0]["text"] for e in events[:-1])
    assert len(text.split()) == 4, "one word for each token"
    every = server.events(
        max_tokens=3, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    counts = [e["usage"]["completion_tokens"] for e in every[:-1]]  # late tokens share a chunk
    assert counts == sorted(counts) and counts[-1] == 3


def test_replies_have_the_requested_length(start_engine):
    server = start_engine(*VLLM, WORKBENCH_SIM_SPEEDUP="50").wait_ready()

    def made(**fields) -> tuple[int, str]:
        body = json.loads(server.chat(**fields)[1])
        return body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]

    assert made(max_tokens=300) == (300, "length")
    natural, reason = made(max_tokens=2000, ignore_eos=False)
    assert 40 <= natural < 400 and reason == "stop"
    assert made(max_tokens=2000, ignore_eos=False, min_tokens=700) == (700, "stop")


def test_errors_have_the_engines_shapes(start_engine):
    server = start_engine(*VLLM, "--api-key", "k").wait_ready()
    key = {"authorization": "Bearer k"}

    def ask(body, headers=key, path="/v1/chat/completions") -> tuple[int, dict]:
        status, data = server.request("POST", path, body, headers)
        return status, json.loads(data)

    message = {"messages": [{"role": "user", "content": "hi"}]}
    status, error = ask({**message, "model": "other"})
    assert (status, error["error"]["type"], error["error"]["code"]) == (404, "NotFoundError", 404)
    assert error["error"]["message"] == "The model `other` does not exist."
    status, error = ask({**message, "max_tokens": 5000})
    assert status == 400 and "maximum context length is 4096 tokens" in error["error"]["message"]
    assert ask({**message, "max_tokens": 0})[0] == 400
    assert ask({"messages": []})[0] == 400 and ask([])[0] == 400
    assert ask(message, headers={}) == (401, {"error": "Unauthorized"})
    assert ask(message, path="/v1/nothing") == (404, {"detail": "Not Found"})
    assert server.request("GET", "/v1/chat/completions", None, key)[0] == 405
    assert server.health() == 200  # no key needed


def test_the_prefix_cache_hits_for_a_repeated_prompt_and_not_for_a_salted_one(start_engine):
    server = start_engine(*VLLM, WORKBENCH_SIM_SPEEDUP="20").wait_ready()

    def cached(text: str) -> tuple[int, int]:
        body = server.chat(messages=[{"role": "user", "content": text}], max_tokens=2)[1]
        usage = json.loads(body)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    words = " ".join(f"word{i}" for i in range(200))
    assert cached(words)[0] == 0
    hit, prompt = cached(words)
    assert prompt - 16 <= hit < prompt
    assert 0 < cached(f"{words} and more")[0] <= hit
    assert cached(f"salt {words}")[0] == 0
    text = server.request("GET", "/metrics")[1]
    assert metric(text, "vllm:prefix_cache_hits_total") >= hit
    cold = start_engine(*VLLM, "--no-enable-prefix-caching").wait_ready()
    for _ in range(2):
        body = cold.chat(messages=[{"role": "user", "content": words}], max_tokens=1)[1]
        assert json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("engine", "prompt", "generated"),
    [
        ("vllm", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        ("sglang", "sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        ("llamacpp", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    ],
)
def test_metrics_count_exactly(start_engine, engine, prompt, generated):
    server = start_engine(*ENGINES[engine], WORKBENCH_SIM_SPEEDUP="20").wait_ready()
    sent = 0
    for n in range(1, 5):
        sent += json.loads(server.chat(max_tokens=n)[1])["usage"]["prompt_tokens"]
    text = server.request("GET", "/metrics")[1]
    assert metric(text, prompt) == sent and metric(text, generated) == 10
    if engine == "vllm":
        assert metric(text, "vllm:request_success_total") == 4
        assert metric(text, "vllm:time_to_first_token_seconds_count") == 4
        assert metric(text, "vllm:inter_token_latency_seconds_count") == 6
        assert metric(text, "vllm:e2e_request_latency_seconds_sum") > 0
        assert metric(text, "vllm:num_requests_running") == 0


def seconds_per_token(server) -> float:
    text = server.request("GET", "/metrics")[1]
    name = "vllm:request_time_per_output_token_seconds"
    return metric(text, f"{name}_sum") / metric(text, f"{name}_count")


@pytest.mark.slow
def test_speed_clocks_and_power_follow_the_model(start_engine):
    server = start_engine("vllm", "serve", MISTRAL, "--max-model-len", "8192").wait_ready()
    done = threading.Event()

    def ask() -> None:
        server.chat(max_tokens=40)
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    busy = wait_for(
        lambda: [r for r in server.state.gpu_readings() if r.power_average_w > 485],
        "load on the GPU",
    )[0]
    assert (busy.point.sm_mhz, busy.point.memory_mhz) == (2790, 13365)
    assert busy.power_average_w < 525 and busy.gpu_util_pct > 90
    assert done.wait(20)
    assert 22 < 1 / seconds_per_token(server) < 24
    wait_for(lambda: server.state.gpu_readings()[0].gpu_util_pct == 0, "an idle GPU")


def test_speedup_and_a_batch(start_engine):
    server = start_engine(
        *VLLM[:-2], profile="rtx-5060ti-x2", WORKBENCH_SIM_SPEEDUP="4"
    ).wait_ready()
    threads = [threading.Thread(target=server.chat, kwargs={"max_tokens": 100}) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    # one request: 12.4 ms for a token, 16 at once: about 17 ms, a quarter of it at four times the
    # speed
    assert 0.0031 < seconds_per_token(server) < 0.0055


def test_metrics_show_requests_beyond_max_num_seqs_as_waiting(start_engine):
    server = start_engine(*VLLM, "--max-num-seqs", "2").wait_ready()
    threads = [threading.Thread(target=server.chat, kwargs={"max_tokens": 60}) for _ in range(5)]
    for thread in threads:
        thread.start()

    def counts() -> tuple[float, float]:
        text = server.request("GET", "/metrics")[1]
        return metric(text, "vllm:num_requests_running"), metric(text, "vllm:num_requests_waiting")

    wait_for(lambda: counts() == (2, 3), "two running and three waiting")
    for thread in threads:
        thread.join(20)
    assert counts() == (0, 0)


def test_a_client_that_disconnects_frees_its_place(start_engine):
    server = start_engine(*VLLM).wait_ready()
    body = json.dumps(
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000, "stream": True}
    )
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sock.sendall((head + body).encode())
        assert b"200 OK" in sock.recv(4096)
    wait_for(
        lambda: metric(server.request("GET", "/metrics")[1], "vllm:num_requests_running") == 0,
        "the request to be dropped",
    )


def test_llamacpp_closes_a_connection_after_100_requests(start_engine):
    server = start_engine(*ENGINES["llamacpp"]).wait_ready()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        data = b""
        for _ in range(100):
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            data = sock.recv(4096)
        assert b"connection: close" in data
        assert sock.recv(4096) == b""


@pytest.mark.slow
def test_statistics_line_under_load(start_engine):
    server = start_engine(*VLLM, VLLM_LOG_STATS_INTERVAL="0.3").wait_ready()
    server.chat(max_tokens=60)
    pattern = (
        r"\(APIServer pid=\d+\) INFO \d\d-\d\d [\d:]+ \[loggers.py:335\] Engine 000: "
        r"Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: [1-9][\d.]* tokens/s, "
        r"Running: \d+ reqs, Waiting: 0 reqs, GPU KV cache usage: [\d.]+%, Prefix cache hit rate: "
        r"0.0%"
    )
    wait_for(lambda: re.search(pattern, server.log), "a statistics line")
    two = start_engine(
        *VLLM[:-2], "-dp", "2", profile="rtx-5060ti-x2", VLLM_LOG_STATS_INTERVAL="0.2"
    ).wait_ready()
    two.chat(max_tokens=40)
    assert "disabling stats logging" in two.log and "Engine 000:" not in two.log
    assert metric(two.request("GET", "/metrics")[1], "vllm:generation_tokens_total") == 40


# -- start and end ---------------------------------------------------------------------------------


def test_port_in_use(start_engine):
    first = start_engine(*VLLM).wait_ready()
    clash = start_engine(*VLLM, port=first.port)
    assert clash.wait_exit() == 1 and "OSError: [Errno 98] Address already in use" in clash.log
    clash = start_engine(*ENGINES["sglang"], port=first.port)
    assert clash.wait_exit() == 1 and "address already in use" in clash.log
    clash = start_engine(*ENGINES["llamacpp"], port=first.port)
    assert clash.wait_exit() == 1 and "couldn't bind HTTP server socket" in clash.log
    moved = start_engine(*ENGINES["tabbyapi"], port=first.port)
    wait_for(
        lambda: (
            f"Port {first.port} is currently in use. Switching to {first.port + 1}." in moved.log
        ),
        "the move",
    )
    assert first.health() == 200


def test_sglang_reports_its_arguments_without_a_key(start_engine):
    """With four fields in the answer, Workbench called the others not reported."""
    server = start_engine(*ENGINES["sglang"], "--api-key", "geheim").wait_ready()
    for path in ("/server_info", "/get_server_info"):
        status, body = server.request("GET", path, headers={"Authorization": "Bearer geheim"})[:2]
        assert status == 200 and b"geheim" not in body
        said = json.loads(body)
        assert (said["mem_fraction_static"], said["enable_metrics"]) == (0.2, True)
        assert said["model_path"] == QWEN


def test_the_access_log_has_the_query_of_a_request(start_engine):
    """uvicorn logs it, and by its query the screen knows a request of Workbench."""
    server = start_engine(*ENGINES["sglang"]).wait_ready()
    server.request("GET", "/v1/models?asked_by=workbench")
    wait_for(
        lambda: '"GET /v1/models?asked_by=workbench HTTP/1.1" 200 OK' in server.log,
        "the line of the request",
    )


def test_vllm_refuses_connections_until_ready_and_sglang_answers_503(start_engine):
    vllm = start_engine(*VLLM, WORKBENCH_SIM_START_S="30")
    sglang = start_engine(*ENGINES["sglang"], WORKBENCH_SIM_START_S="30")
    wait_for(
        lambda: "Resolved architecture" in vllm.log or "non-default args" in vllm.log,
        "vLLM loading",
    )
    with pytest.raises(ConnectionRefusedError):
        vllm.request("GET", "/health")
    wait_for(lambda: sglang.health() == 503, "SGLang's 503")
    assert sglang.request("GET", "/v1/models")[0] == 503


def test_failures_end_with_the_messages_of_the_engine(start_engine):
    long = start_engine("vllm", "serve", MISTRAL)
    assert long.wait_exit() == 1
    assert re.search(
        r"\(EngineCore pid=\d+\) ERROR .* ValueError: To serve at least one "
        r"request",
        long.log,
    )
    assert "Engine core initialization failed. See root cause above." in long.log
    wrong = start_engine(*VLLM, "--dtype", "float8")
    assert wrong.wait_exit() == 2 and "argument --dtype: invalid choice: 'float8'" in wrong.log
    missing = start_engine("vllm", "serve", "/no/such/model")
    assert missing.wait_exit() == 1 and "Invalid repository ID or local directory" in missing.log
    many = start_engine(*ENGINES["sglang"], "--tp-size", "2")
    assert many.wait_exit() == 1 and "invalid device ordinal" in many.log
    wait_for(lambda: not long.members() and not many.members(), "no process left of a failed start")


def test_a_killed_main_process_leaves_vllms_worker_and_its_memory(start_engine):
    server = start_engine(*VLLM).wait_ready()
    (core,) = [pid for pid in server.members() if pid != server.process.pid]
    assert f"(EngineCore pid={core})" in server.log
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait_exit()
    assert process_start_ticks(core) is not None
    assert server.state.engine_memory_bytes(0) > 1 << 30
    os.kill(core, signal.SIGTERM)
    wait_for(lambda: sim_memory_left(server) == 0, "the worker's memory to be freed")


def test_a_killed_sglang_takes_its_scheduler_along(start_engine):
    server = start_engine(*ENGINES["sglang"]).wait_ready()
    os.kill(server.process.pid, signal.SIGKILL)
    server.wait_exit()
    wait_for(lambda: not server.members(), "the scheduler to follow")


def test_a_dead_worker_ends_the_server(start_engine):
    server = start_engine(*VLLM).wait_ready()
    (core,) = [pid for pid in server.members() if pid != server.process.pid]
    os.kill(core, signal.SIGKILL)
    assert server.wait_exit() == 1 and "EngineCore encountered a fatal error." in server.log


def test_term_to_the_group_while_starting(start_engine):
    server = start_engine(*VLLM, WORKBENCH_SIM_START_S="30")
    wait_for(lambda: len(server.members()) == 2, "the worker")
    os.killpg(server.process.pid, signal.SIGTERM)
    server.wait_exit()
    wait_for(lambda: not server.members(), "an empty session")


def answers(server) -> bool:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.settimeout(0.4)
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            return sock.recv(1) != b""
        except TimeoutError:
            return False


@pytest.mark.slow
def test_faults_on_demand(start_engine):
    assert start_engine(*VLLM, WORKBENCH_SIM_FAULT="exit_at_start").wait_exit() == 1
    crash = start_engine(*VLLM, WORKBENCH_SIM_FAULT="crash_after_ready=0.3").wait_ready()
    never = start_engine(*VLLM, WORKBENCH_SIM_FAULT="never_ready")
    silent = start_engine(*VLLM, WORKBENCH_SIM_FAULT="unresponsive_after=0").wait_ready()
    assert crash.wait_exit() == 1  # three fit into the card's memory, not four
    hung = start_engine(*VLLM, WORKBENCH_SIM_START_S="30", WORKBENCH_SIM_FAULT="hang_on_term")
    wait_for(lambda: "Waiting for application startup" in never.log, "the last phase")
    assert never.health() == 0 and never.process.poll() is None
    wait_for(lambda: not answers(silent), "the server to fall silent")
    assert silent.process.poll() is None
    wait_for(lambda: len(hung.members()) == 2, "the worker")
    os.killpg(hung.process.pid, signal.SIGTERM)
    wait_for(
        lambda: hung.members() == [hung.process.pid],
        "the worker to go and the main process to hang",
    )


def test_versions(sim_env):
    import subprocess

    def out(*argv: str, **env: str) -> str:
        done = subprocess.run(
            argv, env={**sim_env("gb10"), **env}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert out("vllm", "--version") == "0.33.0"
    assert out("vllm", "--version", WORKBENCH_SIM_VERSION="0.32.0") == "0.32.0"
    assert out("sglang", "--version") == "sglang version: 0.5.23"
    assert out("llama-server", "--version").startswith("version: 11434")
    assert "--max-num-seqs" in out("vllm", "serve", "--help")
    assert out("python", "-c", "print(6 * 7)") == "42"


def test_the_old_module_spellings_work(start_engine):
    module = (
        "python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        QWEN,
        "--max-model-len",
        "4096",
    )
    assert start_engine(*module).wait_ready().health() == 200
    assert (
        start_engine("python", "-m", "sglang.launch_server", "--model-path", QWEN)
        .wait_ready()
        .health()
        == 200
    )
    assert free_port() > 0
