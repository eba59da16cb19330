"""The command lines of each engine, compared word by word."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from workbench import engines
from workbench.engines.base import Engine
from workbench.engines.own_flags import make_catalog_data
from workbench.model.errors import PlanError
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, Node


def plan(engine: str, model: str = "org/model", **kw: Any) -> LaunchPlan:
    flags = tuple(FlagSetting(n.replace("_", "-"), v) for n, v in kw.pop("flags", {}).items())
    return LaunchPlan(engine, model, flags=flags, **kw)


def argv(p: LaunchPlan) -> list[str]:
    return list(engines.get_engine(p.engine).command(p).argv)


def test_vllm() -> None:
    flags = {
        "max_num_seqs": 512,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": True,
        "speculative_config": {"model": "a b", "num_speculative_tokens": 3},
        "served_model_name": ["a", "b c"],
        "port": 8123,
    }
    assert argv(plan("vllm", flags=flags)) == [
        *("vllm", "serve", "org/model", "--host", "127.0.0.1", "--port", "8123"),
        *("--max-num-seqs", "512", "--gpu-memory-utilization", "0.9", "--enforce-eager"),
        *(
            "--speculative-config",
            '{"model":"a b","num_speculative_tokens":3}',
            "--served-model-name",
            "a",
            "b c",
        ),
    ]


@pytest.mark.parametrize(
    ("version", "off"),
    [
        ("0.33.0", "--disable-prefix-caching"),
        ("0.32.0", "--no-enable-prefix-caching"),
        (None, None),
    ],
)
def test_vllm_negation_follows_the_version(version: str | None, off: str | None) -> None:
    command = argv(
        plan(
            "vllm",
            flags={"enable_prefix_caching": False, "enforce_eager": False},
            engine_version=version,
        )
    )
    # a form that all versions take
    assert command[-2:] == [off or "--no-enable-prefix-caching", "--no-enforce-eager"]


@pytest.mark.parametrize(
    ("executable", "start"),
    [
        (("/opt/v/bin/vllm",), ["/opt/v/bin/vllm", "serve", "m"]),
        (("uv", "run", "vllm", "serve"), ["uv", "run", "vllm", "serve", "m"]),
        (
            ("docker", "run", "vllm/vllm-openai:v0.33.0"),
            ["docker", "run", "vllm/vllm-openai:v0.33.0", "m"],
        ),
        (
            ("python", "-m", "vllm.entrypoints.openai.api_server"),
            ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
        ),
    ],
)
def test_vllm_executables(executable: tuple[str, ...], start: list[str]) -> None:
    assert argv(plan("vllm", "m", executable=executable))[: len(start)] == start


def test_sglang() -> None:
    flags = {
        "tensor_parallel_size": 2,
        "lora_target_modules": ["q_proj", "v_proj"],
        "enable_metrics": True,
    }
    expected = [
        "--model-path",
        "org/model",
        "--host",
        "127.0.0.1",
        "--port",
        "30000",
        "--tensor-parallel-size",
        "2",
    ]
    expected += ["--lora-target-modules", "q_proj", "v_proj", "--enable-metrics"]
    assert argv(plan("sglang", flags=flags)) == ["sglang", "serve", *expected]
    module = ("python", "-m", "sglang.launch_server")
    assert argv(plan("sglang", flags=flags, executable=module)) == [*module, *expected]
    assert argv(plan("sglang", executable=("/v/bin/sglang",)))[:2] == ["/v/bin/sglang", "serve"]


@pytest.mark.parametrize(
    "engine, version, executable, start",
    [
        ("sglang", "0.5.2", (), ["python", "-m", "sglang.launch_server", "--model-path"]),
        ("sglang", "0.5.4.post1", (), ["python", "-m", "sglang.launch_server", "--model-path"]),
        ("sglang", "0.5.5", (), ["sglang", "serve", "--model-path"]),
        ("sglang", None, (), ["sglang", "serve", "--model-path"]),
        (
            "sglang",
            "0.5.2",
            ("/s/bin/python",),
            ["/s/bin/python", "-m", "sglang.launch_server", "--model-path"],
        ),
        (
            "sglang",
            "0.5.23",
            ("/s/bin/python3.12",),
            ["/s/bin/python3.12", "-m", "sglang.launch_server"],
        ),
        ("vllm", "0.10.2", (), ["vllm", "serve", "org/model"]),
        (
            "vllm",
            "0.10.2",
            ("/v/bin/python",),
            ["/v/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model"],
        ),
    ],
)
def test_an_engine_starts_in_the_form_that_its_version_knows(
    engine: str, version: str | None, executable: tuple[str, ...], start: list[str]
) -> None:
    words = argv(replace(plan(engine, executable=executable), engine_version=version))
    assert words[: len(start)] == start


def test_a_sglang_switch_without_a_negation_is_omitted() -> None:
    assert "--disable-radix-cache" not in argv(plan("sglang", flags={"disable_radix_cache": False}))


def test_tabbyapi() -> None:
    flags = {
        "disable_auth": True,
        "tensor_parallel": False,
        "gpu_split": [20, 24.5],
        "cache_mode": "Q8",
    }
    command = engines.get_engine("tabbyapi").command(
        plan("tabbyapi", "/m/Mistral-exl3/", flags=flags, workdir="/opt/tabby")
    )
    assert list(command.argv) == [
        *("python", "main.py", "--model-dir", "/m", "--model-name", "Mistral-exl3"),
        *(
            "--host",
            "127.0.0.1",
            "--port",
            "5000",
            "--disable-auth",
            "True",
            "--tensor-parallel",
            "False",
        ),
        *("--gpu-split", "20", "24.5", "--cache-mode", "Q8"),
    ]
    assert command.workdir == "/opt/tabby" and command.files == {}
    assert command.shell_line.startswith("cd /opt/tabby && python main.py ")
    named = argv(plan("tabbyapi", "folder", flags={"model_dir": "/models"}))
    assert named[2:4] == ["--model-name", "folder"] and named[-2:] == ["--model-dir", "/models"]


def test_tabbyapi_writes_a_file_for_settings_without_a_flag() -> None:
    flags = {
        "template_vars_default": {"enable_thinking": False},
        "loras": [{"name": "x", "scaling": 1.0}],
    }
    command = engines.get_engine("tabbyapi").command(plan("tabbyapi", "m", flags=flags))
    assert command.argv[-2:] == ("--config", "{run_dir}/config.yml")
    assert json.loads(command.files["config.yml"]) == {
        "model": {"template_vars_default": {"enable_thinking": False}},
        "lora": {"loras": [{"name": "x", "scaling": 1.0}]},
    }
    with pytest.raises(PlanError, match="template-vars-default"):
        argv(plan("tabbyapi", "m", flags={**flags, "config": "mine.yml"}))


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("/m/x.gguf", ["--model", "/m/x.gguf"]),
        ("tiny.gguf", ["--model", "tiny.gguf"]),
        ("./dir/x", ["--model", "./dir/x"]),
        ("ggml-org/gemma-GGUF:Q4_K_M", ["--hf-repo", "ggml-org/gemma-GGUF:Q4_K_M"]),
    ],
)
def test_llamacpp_model(model: str, arguments: list[str]) -> None:
    assert argv(plan("llamacpp", model))[1:3] == arguments


def test_llamacpp_values() -> None:
    flags = {
        "flash_attn": True,
        "tensor_split": [3, 1],
        "cont_batching": False,
        "logit_bias": ["1+2", "3-1"],
        "n_gpu_layers": "all",
    }
    assert argv(plan("llamacpp", "x.gguf", flags=flags))[7:] == [
        *("--flash-attn", "on", "--tensor-split", "3,1", "--no-cont-batching"),
        *("--logit-bias", "1+2", "--logit-bias", "3-1", "--n-gpu-layers", "all"),
    ]


def test_values_that_look_like_flags() -> None:
    assert argv(plan("vllm", flags={"chat_template": "-x", "max_logprobs": -1}))[-3:] == [
        "--chat-template=-x",
        "--max-logprobs",
        "-1",
    ]
    assert argv(plan("llamacpp", "x.gguf", flags={"alias": "-x"}))[-2:] == [
        "--alias",
        "-x",
    ]  # it takes the next word as it is


def test_unknown_flags_are_kept() -> None:
    flags = {"frobnicate": 3, "brand_new": True, "old_thing": False, "many": ["a", "b"]}
    expected = ["--frobnicate", "3", "--brand-new", "--no-old-thing", "--many", "a", "--many", "b"]
    assert argv(plan("vllm", flags=flags))[-8:] == expected


class OtherNames(Engine):
    name = "sglang"
    launch = ("serve",)
    default_port = 8000
    model_flags = ("model-path",)
    option_names: ClassVar[Mapping[str, str]] = {
        "host": "server-name",
        "tensor-parallel-size": "tp",
    }


def test_an_engine_may_call_the_flags_of_plans_by_other_names() -> None:
    made = OtherNames().command(plan("sglang", "m", flags={"tensor-parallel-size": 2}))
    expected = ("serve", "--model-path", "m", "--server-name", "127.0.0.1", "--port", "8000")
    assert made.argv == (*expected, "--tp", "2")
    printed = [{"names": [f"--{n}"], "kind": "str"} for n in ("server-name", "port", "model-path")]
    flags = make_catalog_data(OtherNames(), "0.5.23", {"flags": printed})["flags"]
    assert [flag["name"] for flag in flags] == ["host", "port", "model-path"]
    assert flags[0]["aliases"] == ["--server-name"]  # a command line with it is read


def test_host_and_port_are_explicit_and_occur_once() -> None:
    command = engines.get_engine("vllm").command(
        plan("vllm", flags={"host": "0.0.0.0", "port": "9000"})
    )
    assert (command.host, command.port) == ("0.0.0.0", 9000)
    assert command.argv.count("--port") == command.argv.count("--host") == 1
    with pytest.raises(PlanError, match="port"):
        engines.get_engine("vllm").command(plan("vllm", flags={"port": "eighty"}))


def test_nodes_get_their_own_flags_and_environment() -> None:
    nodes = (
        Node("head", 0, {"node-rank": 0}),
        Node("worker", 1, {"node-rank": 1, "headless": True}, {"IP": "10.0.0.2"}),
    )
    p = plan("vllm", flags={"nnodes": 2}, nodes=nodes)
    head, worker = (engines.get_engine("vllm").command(p, n) for n in nodes)
    assert head.argv[-2:] == ("--node-rank", "0") and head.env == {}
    assert worker.argv[-3:] == ("--node-rank", "1", "--headless") and worker.env == {
        "IP": "10.0.0.2"
    }
    assert "--node-rank" not in engines.get_engine("vllm").command(p).argv


def test_plans_without_a_valid_command_raise() -> None:
    with pytest.raises(PlanError, match="model"):
        argv(plan("vllm", ""))
    with pytest.raises(PlanError, match="NUL"):
        argv(plan("vllm", "a\0b"))
