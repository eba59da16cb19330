"""The simulated engines parse command lines like the real ones, and reject them with the same
words."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from workbench.sim import engines, flag_parser, launch_options, memory_fit
from workbench.sim.flag_parser import ArgumentsRejected
from workbench.sim.launch_options import LaunchOptions
from workbench.sim.memory_fit import Failure

MISTRAL = "mistralai/Mistral-Large-Instruct-2411-AWQ"
QWEN = "Qwen/Qwen2.5-7B-Instruct"


def read(engine: str, argv: Sequence[str], version: str | None = None) -> LaunchOptions:
    return launch_options.read_launch_options(engines.load_engine(engine), argv, version)


def refusal(engine: str, *argv: str, version: str | None = None) -> tuple[int, str]:
    with pytest.raises(ArgumentsRejected) as caught:
        read(engine, argv, version)
    return caught.value.code, caught.value.text.splitlines()[-1]


def test_vllm_flags():
    plan = read(
        "vllm",
        [
            QWEN,
            "-tp",
            "2",
            "--data_parallel_size=2",
            "--max-model-len",
            "8k",
            "--enforce-eager",
            "--port",
            "9000",
            "--served-model-name",
            "a",
            "b",
            "--gpu-memory-utilization",
            "0.8",
            "--no-enable-prefix-caching",
        ],
    )
    assert (plan.tp, plan.dp, plan.max_len, plan.eager, plan.port) == (2, 2, 8000, True, 9000)
    assert plan.served == ("a", "b") and plan.memory_share == 0.8 and not plan.prefix_cache
    assert not plan.stats_log  # two API servers: the statistics lines are off
    assert read("vllm", [QWEN, "--max-model-len", "8K"]).max_len == 8192
    assert not read("vllm", [QWEN, "--disable-prefix-caching"]).prefix_cache
    assert read("vllm", [QWEN, "--compilation-config.cudagraph_mode", "none"]).eager
    assert read("vllm", [QWEN, "-cc", '{"cudagraph_mode": "NONE"}']).eager
    assert read("vllm", ["--model", QWEN, "-O3"]).model.id == QWEN


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (
            ["--dtype", "float8"],
            "vllm serve: error: argument --dtype: invalid choice: 'float8' (choose from 'auto', ",
        ),
        (
            ["--speculative-model", "x"],
            "vllm: error: unrecognized arguments: --speculative-model x",
        ),
        (
            ["--max-num-seqs", "many"],
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        ),
        (["--port"], "vllm serve: error: argument --port: expected one argument"),
        (
            ["-cc", "{oops"],
            "vllm serve: error: argument --compilation-config/-cc: Value {oops cannot be converted",
        ),
    ],
)
def test_vllm_rejects(argv, text):
    code, said = refusal("vllm", QWEN, *argv)
    assert code == 2 and said.startswith(text)


def test_flag_lists_are_those_of_the_version():
    assert refusal("vllm", QWEN, "--disable-log-requests", version="0.32.0")[0] == 2
    assert read("vllm", [QWEN, "--disable-log-requests"], "0.33.0").version == "0.33.0"


def test_sglang_accepts_unambiguous_prefixes_and_no_underscores():
    plan = read(
        "sglang", ["--model-path", MISTRAL, "--tp", "2", "--disable-cuda-graph", "--enable-metrics"]
    )
    assert (plan.tp, plan.eager, plan.metrics, plan.port) == (2, True, True, 30000)
    assert not read("sglang", ["--model-path", MISTRAL]).metrics
    code, said = refusal("sglang", "--model-path", MISTRAL, "--cuda-graph-max-bs", "8")
    assert code == 2 and "ambiguous option: --cuda-graph-max-bs could match" in said
    assert (
        "unrecognized arguments: --mem_fraction_static 0.8"
        in refusal("sglang", "--model-path", MISTRAL, "--mem_fraction_static", "0.8")[1]
    )
    assert "required" in refusal("sglang")[1]


def test_llamacpp_flags():
    plan = read(
        "llamacpp",
        ["-m", "/x/Qwen2.5-7B-Q4_K_M.gguf", "-c", "8192", "-np", "8", "-ngl", "99", "-fa", "on"],
    )
    assert (plan.max_len, plan.max_sequences, plan.kv_tokens, plan.port) == (8192, 8, 8192, 8080)
    assert plan.model.quantization == "q4_k" and not plan.metrics
    assert refusal("llamacpp", "--bogus") == (1, "error: invalid argument: --bogus")


def test_tabbyapi_flags_override_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yml").write_text(
        "network:\n  port: 5001  # comment\n  disable_auth: true\nmodel:\n  max_seq_len: 4096\n  "
        "cache_mode: Q8\n"
    )
    plan = read(
        "tabbyapi", ["--model-name", "Mistral-Large-Instruct-2411-exl3", "--max-seq-len", "8192"]
    )
    assert (plan.port, plan.max_len, plan.api_key) == (5001, 8192, None)
    assert plan.model.kv_bytes_per_token == 176 * 1024 and plan.model.bytes_per_token == 64.09e9
    assert "Invalid boolean value" in refusal("tabbyapi", "--disable-auth", "maybe")[1]
    assert "unrecognized arguments" in refusal("tabbyapi", "--bogus", "1")[1]


def test_tabbyapi_creates_its_key_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = read("tabbyapi", ["--model-name", "x"]).api_key
    assert first and read("tabbyapi", ["--model-name", "x"]).api_key == first
    assert (tmp_path / "api_tokens.yml").stat().st_mode & 0o77 == 0


def test_unknown_vllm_variables_cause_warnings(monkeypatch):
    monkeypatch.setenv("VLLM_KV_CACHE_DTYPE", "fp8")
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "2")
    warnings = read("vllm", [QWEN]).warnings
    assert warnings == ("Unknown vLLM environment variable detected: VLLM_KV_CACHE_DTYPE",)


def test_small_yaml():
    text = 'a: 1\nb: 1.5\n# no\nc: "x y"\nd: [1, 2]\ne: plain words\nf:\ng: False\n'
    values = {"a": 1, "b": 1.5, "c": "x y", "d": [1, 2], "e": "plain words", "g": False}
    assert flag_parser.parse_config_flags(text) == values


# -- memory and placement --------------------------------------------------------------------------


def placed(sim_state, profile: str, engine: str, *argv: str) -> memory_fit.Fit:
    return memory_fit.fit_server_on_gpus(read(engine, argv), sim_state(profile))


def failure(sim_state, profile: str, engine: str, *argv: str) -> str:
    with pytest.raises(Failure) as caught:
        placed(sim_state, profile, engine, *argv)
    return "\n".join(caught.value.lines)


def test_placement_and_cache_size_of_models_that_fit(sim_state):
    got = placed(sim_state, "rtx-pro-6000", "vllm", MISTRAL, "--max-model-len", "32768")
    assert got.replicas == ((0,),) and got.max_len == 32768
    # 0.92 of 95.6 GiB less 61 GiB of weights, 352 KiB for each token
    assert 60_000 < got.kv_tokens < 80_000
    replicas = placed(
        sim_state, "four-pcie", "vllm", "Qwen/Qwen3-VL-2B-Instruct", "-tp", "2", "-dp", "2"
    )
    assert replicas.replicas == ((0, 1), (2, 3))
    assert placed(sim_state, "four-pcie", "vllm", QWEN, "--max-model-len", "auto").max_len == 32768


def test_a_cache_too_small_for_one_request_fails(sim_state):
    said = failure(sim_state, "rtx-pro-6000", "vllm", MISTRAL)
    assert (
        "To serve at least one request with the model's max seq len (131072), (44.00 GiB KV "
        "cache is needed"
    ) in said
    assert "the estimated maximum model length is 6" in said


def test_weights_that_do_not_fit(sim_state):
    big = "meta-llama/Llama-3.3-70B-Instruct"
    assert "torch.OutOfMemoryError: CUDA out of memory." in failure(
        sim_state, "rtx-pro-6000", "vllm", big
    )
    assert "No available memory for the cache blocks" in failure(
        sim_state, "rtx-pro-6000", "vllm", MISTRAL, "--gpu-memory-utilization", "0.5"
    )
    assert "OutOfMemoryError" in failure(sim_state, "rtx-pro-6000", "sglang", "--model-path", big)
    assert "Not enough memory. Please try to increase --mem-fraction-static" in failure(
        sim_state, "rtx-pro-6000", "sglang", "--model-path", MISTRAL, "--mem-fraction-static", "0.5"
    )
    said = failure(
        sim_state, "rtx-5060ti-x2", "llamacpp", "-m", "/simulated/Llama-3.3-70B-Q8_0.gguf"
    )
    assert "cudaMalloc failed: out of memory" in said


def test_memory_of_another_server_is_not_free(sim_state):
    part = {"busy": 0.0, "memory": 0.0, "compute": 0.0, "memory_bytes": 14 << 30}
    sim_state("rtx-5060ti-x2").publish_load(os.getpid(), {0: part})
    said = failure(
        sim_state, "rtx-5060ti-x2", "vllm", QWEN, "--quantization", "awq", "--max-model-len", "4096"
    )
    assert said.startswith(
        "ValueError: Free memory on device cuda:0 (1.53/15.93 GiB) on startup is less than desired"
    )


def test_more_ranks_than_gpus_fail(sim_state, monkeypatch):
    said = failure(sim_state, "rtx-5060ti-x2", "vllm", QWEN, "-tp", "4")
    assert "Value error, World size (4) is larger than the number of available GPUs (2)" in said
    assert "invalid device ordinal" in failure(
        sim_state, "gb10", "sglang", "--model-path", QWEN, "--tp", "2"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    got = placed(sim_state, "four-pcie", "vllm", QWEN, "-dp", "2")
    assert got.replicas == ((3,), (1,))
    assert "(2)" in failure(sim_state, "four-pcie", "vllm", QWEN, "-tp", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "(0)" in failure(sim_state, "four-pcie", "vllm", QWEN)


def test_missing_model_paths_fail(sim_state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # TabbyAPI makes its key file where it is started
    missing = str(tmp_path / "nothing")
    assert f"Invalid repository ID or local directory specified: '{missing}'" in failure(
        sim_state, "gb10", "vllm", missing
    )
    assert missing in failure(sim_state, "gb10", "sglang", "--model-path", missing)
    assert "failed to open GGUF file" in failure(
        sim_state, "gb10", "llamacpp", "-m", f"{missing}.gguf"
    )
    assert "does not exist" in failure(
        sim_state, "gb10", "tabbyapi", "--model-dir", missing, "--model-name", "x"
    )
    assert placed(sim_state, "gb10", "vllm", "/simulated/Thing-7B").kv_tokens > 0
    assert placed(sim_state, "gb10", "vllm", "/srv/models/Qwen2.5-7B-Instruct-AWQ").kv_tokens > 0
    assert placed(sim_state, "gb10", "vllm", str(tmp_path)).kv_tokens > 0
