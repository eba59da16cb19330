"""Asked against in force: from real metrics pages and log lines, with secrets masked and nothing
assumed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import engines
from workbench.engines.reported_settings import parse_logged_settings
from workbench.model.plan import Command
from workbench.server import in_force
from workbench.server.in_force import Sources, in_force_report

VLLM = engines.get_engine("vllm")
CONFIG = (
    "(EngineCore pid=7) INFO 11-20 23:20:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: "
    "model='./tiny', dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, "
    "quantization=None, "
    "enforce_eager=True, compilation_config={'mode': 0, 'sizes': [1, 2]}, seed=0"
)
LOG = (
    CONFIG,
    "(APIServer pid=3) INFO 11-20 23:20:00 [api.py:1] non-default args: {'port': 8123, "
    "'served_model_name': ['tiny']}",
    "WARNING 11-20 23:20:00 [envs.py:1] Unknown vLLM environment variable detected: "
    "VLLM_BLOCK_SIZE",
    "INFO 11-20 [cuda.py:1] Using FLASH_ATTN attention backend out of potential backends: "
    "['FLASH_ATTN']",
    "Capturing CUDA graphs (decode, FULL): 100%|##########| 35/35 [00:02<00:00]",
    "box:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
)
PAGE = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="128",cache_dtype="fp8_e4m3",kv_cache_size_tokens="1048576",'
    'gpu_memory_utilization="0.92",num_gpu_blocks="8192",sliding_window="None"} 1.0\n'
)


def rows(
    flags: dict[str, object], env: dict[str, str] | None = None, **sources: object
) -> dict[str, tuple]:  # type: ignore[type-arg]
    config = parse_logged_settings(CONFIG.partition("config: ")[2])
    given = {
        "log": LOG,
        "metrics": PAGE,
        "config": config,
        "config_from": "log",
        "pid": 7,
        **sources,
    }
    made = in_force_report("run", VLLM, flags, env or {}, Sources(**given), secrets=("s3cret",))  # type: ignore[arg-type]
    return {row.name: (row.asked, row.in_force, row.where, row.differs) for row in made.rows}


def test_each_source_answers_what_it_knows() -> None:
    answers = {
        "/v1/models": {"data": [{"id": "tiny", "max_model_len": 2048}]},
        "/version": {"version": "0.32.0"},
    }
    found = rows({"max-model-len": 4096, "block-size": 128, "enforce-eager": True}, answers=answers)
    assert found["version"] == (None, "0.32.0", "/version", False)
    assert found["max model length"] == ("4096", "2048", "/v1/models", True)
    assert found["KV cache, tokens"] == (None, "1048576", "/metrics", False)
    assert found["KV block size"] == ("128", "128", "/metrics", False)
    assert found["attention backend"] == (None, "FLASH_ATTN", "log", False)
    assert found["CUDA graphs"] == (None, "35 captured", "log", False)
    assert found["NCCL transport"] == (None, "SHM/direct/direct", "log", False)
    assert found["enforce-eager"] == ("on", "on", "log", False)
    assert "max-model-len" not in found and "block-size" not in found  # they are in the rows above


@pytest.mark.parametrize(
    ("flag", "asked", "name", "differs"),
    [
        ("dtype", "bfloat16", "dtype", False),
        ("dtype", "auto", "dtype", False),
        ("dtype", "float16", "dtype", True),
        ("kv-cache-dtype", "fp8", "KV cache type", False),
        ("kv-cache-dtype", "bfloat16", "KV cache type", True),
        ("gpu-memory-utilization", 0.92, "GPU memory share", False),
        ("gpu-memory-utilization", "0.9200", "GPU memory share", False),
        ("gpu-memory-utilization", 0.9, "GPU memory share", True),
        ("tensor-parallel-size", 2, "tensor-parallel-size", True),
        ("compilation-config", {"mode": 3}, "compilation-config", False),
    ],
)
def test_only_values_that_disagree_are_marked(
    flag: str, asked: object, name: str, differs: bool
) -> None:
    assert rows({flag: asked})[name][3] is differs


@pytest.mark.parametrize("actual", ["inf", "nan", "1e999", "-inf"])
def test_a_number_that_is_none_differs_from_every_number(actual: str) -> None:
    assert in_force._values_differ("8192", actual)


def test_what_nothing_reports_is_not_assumed() -> None:
    process = Command(("vllm", "serve", "--stream-interval", "4"), {})
    found = rows({"stream-interval": 4, "seed": 1, "made-up": "x"}, process=process)
    assert found["stream-interval"][1] is None and "command line" in found["stream-interval"][2]
    assert found["seed"] == ("1", "0", "log", True)
    assert found["made-up"] == ("x", None, "", False)


def test_the_environment_is_that_of_the_process() -> None:
    process = Command(
        ("vllm",),
        {
            "NCCL_DEBUG": "INFO",
            "VLLM_BLOCK_SIZE": "16",
            "HF_TOKEN": "hf_abc",
            "OMP_NUM_THREADS": "4",
        },
    )
    asked = {"VLLM_BLOCK_SIZE": "16", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0"}
    found = rows({}, asked, process=process)
    assert found["VLLM_BLOCK_SIZE"] == ("16", "unknown to the engine, no effect", "log", True)
    assert found["OMP_NUM_THREADS"] == ("2", "4", "environment of process 7", True)
    assert found["CUDA_VISIBLE_DEVICES"][1:] == ("not set", "environment of process 7", True)
    assert found["NCCL_DEBUG"] == (None, "INFO", "environment of process 7", False)
    assert found["HF_TOKEN"] == (None, "***", "environment of process 7", False)


def test_a_masked_value_is_no_difference() -> None:
    process = Command(
        ("vllm",), {"HF_ENDPOINT": "https://user:s3cret@host", "VLLM_API_KEY": "s3cret"}
    )
    found = rows(
        {}, {"HF_ENDPOINT": "https://user:***@host", "VLLM_API_KEY": "***"}, process=process
    )
    assert [found[n][3] for n in ("HF_ENDPOINT", "VLLM_API_KEY")] == [
        False,
        False,
    ] and "s3cret" not in str(found)


def test_secrets_are_masked_wherever_they_stand() -> None:
    found = rows(
        {"api-key": "s3cret", "hf-overrides": "with s3cret"}, config={"hf-overrides": "has s3cret"}
    )
    assert "s3cret" not in str(found)


def test_sglang_arguments_without_their_end() -> None:
    text = (
        "server_args={'model_path': './tiny', 'tp_size': 1, 'list': ['a,b', {'c': 1}], "
        "'attention_backend': 'tor"
    )
    assert parse_logged_settings(text.partition("=")[2]) == {
        "model-path": "./tiny",
        "tp-size": "1",
        "list": "['a,b', {'c': 1}]",
    }
    assert parse_logged_settings("model_path='x', dtype=None)") == {
        "model-path": "x",
        "dtype": "None",
    }


def test_llama_cpp_answers_for_its_slots() -> None:
    props = {
        "total_slots": 4,
        "model_path": "/m/t.gguf",
        "default_generation_settings": {"n_ctx": 2048},
    }
    sources = Sources(
        answers={"/props": props}, log=("load_tensors: offloaded 17/33 layers to GPU",)
    )
    made = in_force_report(
        "run", engines.get_engine("llamacpp"), {"parallel": 2, "model": "/m/t.gguf"}, {}, sources
    )
    found = {row.name: (row.asked, row.in_force, row.differs) for row in made.rows}
    assert found["slots"] == ("2", "4", True) and found["context of a slot, tokens"] == (
        None,
        "2048",
        False,
    )
    assert (
        found["layers on the GPU"] == (None, "17 of 33", False) and found["model file"][2] is False
    )
    assert made.differing_setting_count == 1


@pytest.mark.parametrize(("unified", "context"), [("false", "8192"), ("true", "2048")])
def test_llama_cpp_proves_its_context_its_port_and_its_metrics(unified: str, context: str) -> None:
    line = f"I srv load_model: n_slots = 4, n_ctx_slot = 2048, kv_unified = '{unified}'"
    sources = Sources(metrics="llamacpp:requests_processing 0\n", log=(line,), port=8123)
    flags = {"ctx-size": 8192, "metrics": True, "port": 8123}
    made = in_force_report("run", engines.get_engine("llamacpp"), flags, {}, sources)
    found = {row.name: (row.in_force, row.differs) for row in made.rows}
    assert found["context, tokens"] == (context, unified == "true")
    assert found["metrics"] == ("on", False)
    assert found["port"] == ("8123", False)


@given(st.text(max_size=300))
def test_any_configuration_line_is_read(text: str) -> None:
    assert all(isinstance(value, str) for value in parse_logged_settings(text).values())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda c: st.lists(c) | st.dictionaries(st.sampled_from(["data", "id", "version"]), c),
    max_leaves=8,
)


@given(_JSON, st.text(max_size=200), st.lists(st.text(max_size=80), max_size=4))
def test_any_answer_of_a_server_gives_a_table(answer: object, page: str, log: list[str]) -> None:
    for name in engines.engine_names():
        sources = Sources(
            log,
            page,
            {"/v1/models": answer, "/version": answer, "config": answer, "/props": answer},
        )
        made = in_force_report(
            "run", engines.get_engine(name), {"max-model-len": 1}, {"A": "b"}, sources
        )
        assert all(row.where or row.in_force is None for row in made.rows)
