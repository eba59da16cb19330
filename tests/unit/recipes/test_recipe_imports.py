"""Recipes of other tools as presets: each form's settings arrive, the rest is named, and nothing is
run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.model.errors import InputError
from workbench.model.gpu import GpuInfo
from workbench.model.untrusted_text import UNSAFE
from workbench.recipes.imports import running_process
from workbench.recipes.preset_document import preset_document_of_recipe
from workbench.recipes.recipe import Given, Recipe
from workbench.recipes.registry import parse_recipe_text

SPARKRUN = """
recipe_version: "2"
model: org/Model-7B
runtime: vllm
container: example/vllm@sha256:0011
min_nodes: 1
defaults: {port: 8100, host: 0.0.0.0, tensor_parallel: 2, gpu_memory_utilization: 0.85, max_model_len: 32768}
env: {VLLM_LOGGING_LEVEL: DEBUG, HF_TOKEN: "hf_abcdefghijklmnopqrst"}
pre_exec: ["touch CANARY"]
mods: [mods/some-patch]
command: |
  vllm serve {model} \\
      --port {port} --host {host} -tp {tensor_parallel} \\ 
      --gpu-memory-utilization {gpu_memory_utilization} --max-model-len {max_model_len} \\
      --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
"""
SPARKRUN_WITHOUT_COMMAND = """
model: org/Model-7B
runtime: sglang
defaults: {tensor_parallel: 2, gpu_memory_utilization: 0.8, max_model_len: 4096, trust_remote_code: true, odd: 3}
"""
VLLM_RECIPE = """
meta: {title: A model, description: for tests}
model:
  model_id: org/Model-7B
  min_vllm_version: "0.11.0"
  docker_image: {nvidia: "vllm/vllm-openai:v0.11.0", amd: other}
  base_args: ["--trust-remote-code"]
  base_env: {VLLM_USE_FLASHINFER_MOE_FP4: "1"}
features:
  tools: {args: ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]}
  speculation: {args: ["--speculative-config", "{}"]}
opt_in_features: [speculation]
variants:
  default: {precision: bf16}
  fp8: {model_id: org/Model-7B-FP8, extra_args: ["--kv-cache-dtype", "fp8"]}
dependencies: [{command: "touch CANARY"}]
hardware_overrides: {blackwell: {extra_args: ["--x"]}}
"""
CLUB = json.dumps(
    {
        "schema_version": "1.0",
        "id": "model-2x",
        "title": "A model on two cards",
        "hardware": {
            "gpu_count": 2,
            "gpu_model": "NVIDIA GeForce RTX 5060 Ti",
            "vram_per_gpu_gb": 16,
        },
        "runtime": {"engine": "llama.cpp", "preset_file": "examples/x.sh"},
        "model": {"id": "Model", "source": "org/Model-GGUF"},
        "serving": {
            "kv_cache_k": "q8_0",
            "parallel": 1,
            "tensor_split": "50,50",
            "speculation": "MTP n=3",
        },
        "context": {"target_tokens": 65536},
        "caveats": ["slow"],
    }
)
COMPOSE = """
services:
  ui: {image: "example/ui:1"}
  model:
    image: ${IMAGE:-vllm/vllm-openai:v0.11.0}
    entrypoint: [/bin/bash, -c, 'bash /patches/install.sh && exec vllm serve --enforce-eager "$$@"', --]
    command: [--model, /models/seven, --port, "8000", --max-model-len, "${LEN:-${CTX:-4096}}", --seed, "${SEED}"]
    environment: ["NVIDIA_VISIBLE_DEVICES=0,1", "PRICE=5$$"]
    ports: ["${HOST:-0.0.0.0}:${PORT:-8033}:8000"]
    volumes: ["/srv/models:/models:ro"]
    build: .
"""
LLAMA_SWAP = """
macros: {dir: /srv/models}
models:
  small:
    cmd: |
      # the small one
      llama-server --port ${PORT} -m ${dir}/small.gguf --ctx-size 4096
      --cache-type-k q8_0
    env: ["CUDA_VISIBLE_DEVICES=1"]
    ttl: 60
  large: {cmd: "llama-server -m /x.gguf", cmdStop: "touch CANARY"}
"""
ENGINE_CONFIG = (
    "model: org/Model-7B\nno-enable-prefix-caching: true\nmax-num-batched-tokens: 8192\n"
)
DOCKER = """docker run --rm -it --gpus '"device=2,3"' --ipc=host -p 8090:8000 -eVLLM_LOGGING_LEVEL=DEBUG \\
    -v /srv/models:/models:ro -v ~/.cache/huggingface:/root/.cache/huggingface --env-file secrets.env \\
    vllm/vllm-openai:v0.11.0 --model /models/seven --max-num-seqs 4"""
SCRIPT = """#!/bin/bash
set -euo pipefail
source /opt/venv/bin/activate
export VLLM_LOGGING_LEVEL=DEBUG
MODEL=org/Model-7B TP=2
cd /srv
numactl --cpunodebind=0 vllm serve "$MODEL" -tp $TP --seed ${SEED:-7} --served-model-name 'a b' \\
    --max-num-seqs $(nproc) --revision "$REVISION" > server.log 2>&1 &
curl -s localhost:8000/health
"""


def settings(recipe: Recipe) -> dict[str, Any]:
    assert recipe.plan is not None
    return {setting.name: setting.value for setting in (*recipe.plan.flags, *recipe.plan.env)}


def texts(recipe: Recipe, code: str) -> list[str]:
    return [finding.text for finding in recipe.findings if finding.code == f"recipe.{code}"]


@pytest.mark.parametrize(
    ("text", "engine", "model", "wanted", "image"),
    [
        (
            SPARKRUN,
            "vllm",
            "org/Model-7B",
            {
                "port": 8100,
                "host": "0.0.0.0",
                "tensor-parallel-size": 2,
                "gpu-memory-utilization": 0.85,
                "max-model-len": 32768,
                "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
                "VLLM_LOGGING_LEVEL": "DEBUG",
            },
            "example/vllm@sha256:0011",
        ),
        (
            SPARKRUN_WITHOUT_COMMAND,
            "sglang",
            "org/Model-7B",
            {
                "tensor-parallel-size": 2,
                "mem-fraction-static": 0.8,
                "context-length": 4096,
                "trust-remote-code": True,
            },
            None,
        ),
        (
            VLLM_RECIPE,
            "vllm",
            "org/Model-7B",
            {
                "trust-remote-code": True,
                "enable-auto-tool-choice": True,
                "tool-call-parser": "hermes",
                "VLLM_USE_FLASHINFER_MOE_FP4": "1",
            },
            "vllm/vllm-openai:v0.11.0",
        ),
        (
            CLUB,
            "llamacpp",
            "org/Model-GGUF",
            {
                "cache-type-k": "q8_0",
                "parallel": 1,
                "tensor-split": [50.0, 50.0],
                "ctx-size": 65536,
            },
            None,
        ),
        (
            COMPOSE,
            "vllm",
            "/srv/models/seven",
            {
                "enforce-eager": True,
                "port": 8033,
                "max-model-len": 4096,
                "seed": "${seed}",
                "PRICE": "5$",
                "CUDA_VISIBLE_DEVICES": "0,1",
            },
            "vllm/vllm-openai:v0.11.0",
        ),
        (
            LLAMA_SWAP,
            "llamacpp",
            "/srv/models/small.gguf",
            {"ctx-size": 4096, "cache-type-k": "q8_0", "CUDA_VISIBLE_DEVICES": "1"},
            None,
        ),
        (
            ENGINE_CONFIG,
            "vllm",
            "org/Model-7B",
            {"enable-prefix-caching": False, "max-num-batched-tokens": 8192},
            None,
        ),
        (
            DOCKER,
            "vllm",
            "/srv/models/seven",
            {
                "max-num-seqs": 4,
                "VLLM_LOGGING_LEVEL": "DEBUG",
                "CUDA_VISIBLE_DEVICES": "2,3",
                "port": 8090,
            },
            "vllm/vllm-openai:v0.11.0",
        ),
        (
            SCRIPT,
            "vllm",
            "org/Model-7B",
            {
                "tensor-parallel-size": 2,
                "seed": 7,
                "served-model-name": "a b",
                "VLLM_LOGGING_LEVEL": "DEBUG",
                "revision": "${revision}",
            },
            None,
        ),
    ],
)
def test_each_form_gives_its_settings(
    text: str, engine: str, model: str, wanted: dict[str, Any], image: str | None
) -> None:
    recipe = parse_recipe_text(text)
    assert recipe.plan is not None
    assert (recipe.plan.engine, recipe.plan.model, recipe.plan.image) == (engine, model, image)
    assert settings(recipe) == wanted


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (SPARKRUN, "refused", "the recipe's pre_exec is not run: touch CANARY"),
        (SPARKRUN, "refused", "the recipe's mods is not run: mods/some-patch"),
        (
            SPARKRUN.replace("-tp {tensor_parallel}", ""),
            "left-out",
            "defaults: tensor_parallel = 2 is left out",
        ),
        (SPARKRUN, "secret", "a secret is left out, because no preset stores one: HF_TOKEN"),
        (
            SPARKRUN_WITHOUT_COMMAND,
            "not-understood",
            "defaults: odd is not understood and left out: 3",
        ),
        (VLLM_RECIPE, "refused", "an installation step is not run: touch CANARY"),
        (VLLM_RECIPE, "left-out", "the variant fp8 is left out: --entry fp8 reads it"),
        (VLLM_RECIPE, "left-out", "the feature speculation is left out"),
        (CLUB, "not-understood", "serving: speculation is not understood and left out: MTP n=3"),
        (COMPOSE, "refused", "a shell command is not run: bash /patches/install.sh"),
        (COMPOSE, "refused", "the service's build is not run: ."),
        (COMPOSE, "left-out", "the service ui is left out"),
        (LLAMA_SWAP, "left-out", "the model large is left out: --entry large reads it"),
        (DOCKER, "refused", "--env-file secrets.env"),
        (DOCKER, "left-out", "--ipc host is left out"),
        (SCRIPT, "refused", "a shell command is not run: curl -s localhost:8000/health"),
        (SCRIPT, "left-out", "the redirection > server.log 2>&1 is left out"),
        (SCRIPT, "computed", "--max-num-seqs is left out: only a shell could compute its value"),
        (SCRIPT, "left-out", "`numactl --cpunodebind=0` is left out"),
    ],
)
def test_what_is_not_taken_over_is_named(text: str, code: str, said: str) -> None:
    assert any(said in found for found in texts(parse_recipe_text(text), code)), texts(
        parse_recipe_text(text), code
    )


def test_an_entry_chooses_the_variant_the_service_or_the_model() -> None:
    fp8 = parse_recipe_text(VLLM_RECIPE, Given("fp8"))
    assert (
        fp8.plan is not None
        and fp8.plan.model == "org/Model-7B-FP8"
        and settings(fp8)["kv-cache-dtype"] == "fp8"
    )
    assert fp8.plan.engine_versions == ">=0.11.0"
    large = parse_recipe_text(LLAMA_SWAP, Given("large"))
    assert large.plan is not None and large.plan.model == "/x.gguf"
    assert texts(large, "refused") == ["the stop command is not run: touch CANARY"]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (VLLM_RECIPE, "default, fp8"),
        (LLAMA_SWAP, "small, large"),
        (COMPOSE, "ui"),
        (SPARKRUN, "--entry"),
        (CLUB, "--entry"),
        (ENGINE_CONFIG, "--entry"),
        ("[Service]\nExecStart=/usr/bin/vllm serve org/m\n", "--entry"),
        ("vllm serve org/m\nvllm serve org/n\n", "1, 2"),
    ],
)
def test_an_unknown_entry_is_refused_and_the_known_ones_are_named(text: str, known: str) -> None:
    with pytest.raises(InputError, match=r"has no .*'nosuch'") as refused:
        parse_recipe_text(text, Given("nosuch"))
    assert known in (refused.value.next_step or "")


def test_an_entry_chooses_a_server_command_of_a_script() -> None:
    recipe = parse_recipe_text("vllm serve org/m\nvllm serve org/n --seed 2\n", Given("2"))
    assert recipe.plan is not None
    assert (recipe.plan.model, settings(recipe)) == ("org/n", {"seed": 2})


SPARKRUN_VARIANTS = """
recipe_version: "2"
model: org/Model-7B
runtime: vllm
container: vllm/vllm-openai:v0.24.0
defaults: {max_num_seqs: 4, gpu_memory_utilization: 0.65}
env: {A: "1", B: "1"}
variants:
  max_context: {description: long, max_num_seqs: 1, max_model_len: 262144}
  concurrent: {max_num_seqs: 8, container: "vllm/vllm-openai:v0.27.1", env: {B: "2"}}
command: |
  vllm serve {model} --max-num-seqs {max_num_seqs} --gpu-memory-utilization {gpu_memory_utilization}
"""


def test_an_entry_chooses_a_variant_of_a_sparkrun_recipe() -> None:
    usual = parse_recipe_text(SPARKRUN_VARIANTS)
    assert settings(usual)["max-num-seqs"] == 4
    assert "the variant max_context is left out: --entry max_context reads it" in texts(
        usual, "left-out"
    )
    concurrent = parse_recipe_text(SPARKRUN_VARIANTS, Given("concurrent"))
    assert concurrent.plan is not None
    assert concurrent.plan.image == "vllm/vllm-openai:v0.27.1"
    assert settings(concurrent) == {
        "max-num-seqs": 8,
        "gpu-memory-utilization": 0.65,
        "A": "1",
        "B": "2",
    }
    long = parse_recipe_text(SPARKRUN_VARIANTS, Given("max_context"))
    assert settings(long)["max-num-seqs"] == 1
    assert any("max_model_len = 262144 is left out" in said for said in texts(long, "left-out"))


VLLM_LARGE = """
meta: {title: Large}
model: {model_id: org/Large, architecture: moe, nightly_required: true}
variants:
  default: {precision: bf16, vram_minimum_gb: 564}
  fp8: {model_id: org/Large-FP8, vram_minimum_gb: 240, tp: 4}
  nvfp4: {model_id: org/Large-FP4, vram_minimum_gb: 141, tp: {h200: 1, hopper: 2}}
  int4: {model_id: org/Large-INT4, vram_minimum_gb: 90}
  small: {model_id: org/Large-FP2, vram_minimum_gb: 141}
compatible_strategies: [single_node_tp, single_node_tep, multi_node_tp]
strategy_overrides:
  single_node_tep: {extra_args: ["--max-num-seqs", "7"]}
hardware_overrides:
  hopper: {extra_args: ["--max-num-seqs", "5"]}
  blackwell: {extra_args: ["--max-num-seqs", "6"]}
"""


def cards(count: int, name: str, memory_gb: float, capability: str) -> tuple[GpuInfo, ...]:
    size = int(memory_gb * 1e9)
    return tuple(
        GpuInfo(at, f"GPU-{at}", name, compute_capability=capability, memory_total_bytes=size)
        for at in range(count)
    )


PRO_6000 = cards(2, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 102.6, "12.0")
H200 = cards(8, "NVIDIA H200", 150.7, "9.0")


@pytest.mark.parametrize(
    ("entry", "gpus", "wanted"),
    [
        (None, H200, 4),  # 564 GB on cards of 151 GB
        ("fp8", H200, 4),  # the variant's own number
        ("nvfp4", H200, None),  # one card: the exact name counts before the generation
        ("int4", PRO_6000, None),
        ("small", PRO_6000, 2),
        (None, PRO_6000, 8),
        ("fp8", None, 4),
        (None, None, None),
    ],
)
def test_a_vllm_recipe_gets_the_smallest_number_of_gpus_with_the_memory(
    entry: str | None, gpus: tuple[GpuInfo, ...] | None, wanted: int | None
) -> None:
    recipe = parse_recipe_text(VLLM_LARGE, Given(entry, gpus=gpus))
    assert recipe.plan is not None
    assert recipe.plan.flag("tensor-parallel-size") == wanted
    assert recipe.depends_on_gpus
    of_generation = 5 if gpus is H200 else 6
    assert recipe.plan.flag("max-num-seqs") == (of_generation if gpus else None)


def test_a_vllm_recipe_says_at_once_whether_it_fits_and_what_does() -> None:
    large = parse_recipe_text(VLLM_LARGE, Given(gpus=PRO_6000))
    found = next(f for f in large.findings if f.code == "recipe.does-not-fit")
    assert "needs 564 GB of GPU memory on 8 GPUs; this host has 2 x 103 GB" in found.text
    assert found.fix == "take --entry nvfp4 (141 GB on 2 GPUs) or " + (
        "--entry int4 (90 GB on 1 GPU) or --entry small (141 GB on 2 GPUs)"
    )
    fits = parse_recipe_text(VLLM_LARGE, Given("small", gpus=PRO_6000))
    assert not texts(fits, "does-not-fit")
    assert (fits.gpus, fits.memory_gib) == (2, 65.7)
    unknown = parse_recipe_text(VLLM_LARGE)
    assert any("needs 564 GB" in said for said in texts(unknown, "memory"))
    said = texts(unknown, "left-out")
    assert any("the strategies single_node_tep, multi_node_tp" in text for text in said)
    assert any("strategy_overrides for single_node_tep" in text for text in said)
    assert any("hardware_overrides of the recipe for hopper" in text for text in said)
    assert any("nightly_required" in text for text in texts(unknown, "not-understood"))


@pytest.mark.parametrize(
    ("strategies", "flags"),
    [
        (
            "default_strategy: single_node_tep\ncompatible_strategies: [single_node_tp, "
            "single_node_tep]",
            {"tensor-parallel-size": 4, "enable-expert-parallel": True},
        ),
        (
            "compatible_strategies: [single_node_dep]",
            {"data-parallel-size": 4, "enable-expert-parallel": True},
        ),
        (
            "compatible_strategies: [single_node_tp]\nstrategy_min_gpus: {h200: 8}",
            {"tensor-parallel-size": 8},
        ),
        (
            "compatible_strategies: [single_node_tp]\nstrategy_overrides: {single_node_tp: "
            "{tp: 8}}",
            {"tensor-parallel-size": 8},
        ),
        (
            "compatible_strategies: [single_node_tp, single_node_dep]\nstrategy_hardware: "
            "{single_node_tp: {hopper: unsupported}}",
            {"data-parallel-size": 4, "enable-expert-parallel": True},
        ),
    ],
)
def test_the_strategy_of_a_vllm_recipe_becomes_flags(
    strategies: str, flags: dict[str, Any]
) -> None:
    head = VLLM_LARGE.partition("compatible_strategies")[0]
    recipe = parse_recipe_text(f"{head}{strategies}\n", Given(gpus=H200))
    assert settings(recipe) == flags


def bomb(step: str, first: str) -> str:
    """Return a document of which each value stands for several of the one before."""
    lines = [f"a0: &a0 {first}"]
    return "\n".join([*lines, *(f"a{i}: &a{i} {step.format(f'*a{i - 1}')}" for i in range(1, 12))])


def grown(hole: str) -> str:
    """Return lines of defaults of which each is filled into the one before many times."""
    return "".join(f'  d{i}: "{hole.format(i + 1) * 900}"\n' for i in range(6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [1,2,3,4,5,6,7,8,9]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c "
        "[*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d]\n", "more than 20,000 values"),
        ("a: &a [*a]\n", "contains itself"),
        ("a: &a\n  <<: *a\n", "contains itself"),
        (bomb("{{<<: [{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, "
        "{0}]}}", "{k: 1}"), "more than 20,000 values"),
        (bomb("!!pairs [a: {0}, b: {0}, c: {0}, d: {0}]", "[x]"), "line 2: Workbench reads no "
        "values with the tag"),
        ("model: m\nruntime: vllm\ndefaults: {speculative_config: {a: !!binary "
        "aGk=}}\n", "no values with the tag"),
        ("A=aaaaaaaa\n" + "A=$A$A\n" * 40 + "vllm serve $A", "grow beyond 1 MiB"),
        ("A=" + "a" * 100_000 + "\nvllm serve m" + " $A." * 20_000, "grow beyond 1 MiB"),
        ("model: m\nruntime: vllm\ncommand: vllm serve m "
        "{d0}\ndefaults:\n" + grown("{{d{}}}"), "values filled in"),
        ("models: {m: {cmd: 'vllm serve m "
        "${d0}'}}\nmacros:\n" + grown("${{d{}}}"), "values filled in"),
        ("services: {s: {image: vllm/vllm-openai, command: "
        "['" + "${A:-" * 3000 + "}" * 3000 + "']}}", "too deeply"),
        ("services: {s: {image: [a], command: {a: b}, volumes: 5, ports: {a: "
        "1}}}", "starts no server"),
        ("a: " + "[" * 2000, "not valid YAML"),
        ("model: !!python/object/apply:os.system ['touch "
        "CANARY']\n", "not valid YAML: line 1: Workbench reads no"),
        ("model: a\nmodel: b\n", "'model' is given twice"),
        ("model: a\n  runtime: b\n", "line 2"),
        ("{" * 3000, "not valid JSON"),
        ("model: x\n" + "#" * 200_000, "more than 128 KiB"),
        ("- a\n- b\n", "starts no server"),
        ("--- [1, 2]\n", "a list or a single value"),
        ("title: x\n", "no recipe format that Workbench knows"),
        ("vllm serve 'a", "is not closed"),
        ("vllm serve $(a", "is not closed"),
        ("vllm serve " + "${a:-" * 5000 + "}" * 5000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_faulty_document_is_refused_with_its_place(text: str, said: str) -> None:
    try:
        recipe = parse_recipe_text(text)
    except InputError as error:
        assert said in str(error)
    else:
        assert recipe.plan is None and said in recipe.findings[0].text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ollama run x", "no-server"),
        ("echo vllm serve x", "no-server"),
        ("vllm serve m --max-num-seqs", "no-value"),
        ("vllm serve a --model b", "two-models"),
        ("vllm serve", "no-model"),
        ("vllm serve m stray -O3", "not-understood"),
        ("llama-server --ctx-size=4096 -m m", "equals-sign"),
        ("vllm serve m --api-key sk-abcdefgh", "secret"),
        ('vllm serve m --hf-overrides \'{"token": "hf_abcdefghijklmnopqrst"}\'', "secret"),
        ("vllm serve m; vllm serve n", "left-out"),
        ("docker run --rm", "no-image"),
        ('bash -c \'bash -c "bash -c \\"bash -c vllm\\""\'', "refused"),
    ],
)
def test_each_fault_of_a_command_line_has_a_finding(line: str, code: str) -> None:
    assert texts(parse_recipe_text(line), code)


def test_an_empty_list_is_the_value_of_a_flag_that_is_unknown() -> None:
    assert (
        parse_recipe_text("vllm serve m --flag-of-another-version []").plan.flag(
            "flag-of-another-version"
        )
        == []
    )


def test_no_secret_and_no_escape_sequence_of_a_document_appears_anywhere() -> None:
    secret = "hf_abcdefghijklmnopqrst"
    for text in (
        f"name: {secret}\nmodel: m\nruntime: vllm\ncontainer: https://u:{secret}@r/i\ndescription: "
        f"use {secret}\n"
        f'"x\\x1b]0;a\\x07 {secret}": 1\ndefaults: {{"\\u202e": 1}}\n',
        f'{{"title": "{secret}", "runtime": {{"engine": "vllm", "image": "{secret}"}}, "serving": '
        f"{{}}, "
        f'"model": {{"id": "m"}}, "purpose": "{secret}", '
        f'"hardware": {{"gpu_model": "{secret}", "vram_per_gpu_gb": 1{"0" * 400}}}, '
        f'"caveats": ["{secret} \\u001b[31m"]}}',
        f"name: n\nmodel: m\nruntime: {secret}\n",
    ):
        recipe = parse_recipe_text(text)
        shown = str([recipe, *(finding.text for finding in recipe.findings)])
        assert (
            secret not in shown
            and "hf_" not in shown
            and UNSAFE.search(shown) is None
            and "x1b" not in shown
        )


@pytest.mark.parametrize("image", ["--privileged", "a b", "a:${TAG}", "a\nb", "$(touch CANARY)"])
def test_an_image_that_is_no_name_of_an_image_reaches_no_preset(image: str) -> None:
    recipe = parse_recipe_text(json.dumps({"model": "m", "runtime": "vllm", "container": image}))
    assert recipe.plan is not None and recipe.plan.image is None and texts(recipe, "not-understood")


def test_no_secret_of_a_command_line_appears_anywhere() -> None:
    line = (
        "HF_TOKEN=hf_abcdefghijklmnopqrst vllm serve m --api-key=sk-abcdefghijklmnopqrst "
        "hf_abcdefghijklmnopqrst; "
        "curl -H 'Authorization: Bearer abcdefgh12345678'"
    )
    shown = repr(parse_recipe_text(line))
    assert "hf_abc" not in shown and "sk-abc" not in shown and "abcdefgh1" not in shown


@pytest.mark.parametrize(
    ("argv", "executable"),
    [
        (["/venv/bin/python3", "/venv/bin/vllm", "serve", "m"], ("/venv/bin/vllm",)),
        (["python3.11", "-u", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
         ("python3.11", "-m", "vllm.entrypoints.openai.api_server")),
        (["/opt/llama-server", "-m", "m"], ("/opt/llama-server",)),
        (["vllm", "serve", "m"], ()),
    ],
)  # fmt: skip
def test_a_running_process_gives_its_program_and_its_tuning_variables(
    argv: list[str], executable: tuple[str, ...]
) -> None:
    env = {"VLLM_LOGGING_LEVEL": "DEBUG", "HF_TOKEN": "hf_abcdefghijklmnopqrst", "SHELL": "/bin/sh"}
    recipe = running_process.recipe_of_process(argv, env, "/srv")
    assert recipe.plan is not None
    assert (recipe.plan.executable, recipe.plan.model) == (executable, "m")
    assert settings(recipe) == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert texts(recipe, "secret") and any(
        "(1 variable) is left out" in text for text in texts(recipe, "left-out")
    )


def test_a_process_that_is_no_server_is_refused() -> None:
    recipe = running_process.recipe_of_process(["sleep", "5"], None, None)
    assert recipe.plan is None and "starts no server" in recipe.findings[0].text


def test_nothing_of_these_recipes_was_run() -> None:
    assert not Path("CANARY").exists()


def test_parallel_sizes_of_a_recipe_for_one_node_give_the_number_of_gpus() -> None:
    recipe = parse_recipe_text(SPARKRUN)
    assert preset_document_of_recipe(recipe, "r", "r.yaml")["hardware"]["count"] == 2
    two_nodes = parse_recipe_text(
        SPARKRUN.replace("min_nodes: 1", "cluster_only: true").replace(
            "tensor_parallel: 2", "tensor_parallel: 1"
        )
    )
    assert preset_document_of_recipe(two_nodes, "r", "r.yaml")["hardware"]["count"] == 2


@pytest.mark.parametrize(
    ("word", "variable"),
    [
        ("VLLM_MODEL_PLACEHOLDER", "vllm_model"),
        ("<your model>", "your_model"),
        ("{{ model }}", "model"),
    ],
)
def test_a_placeholder_of_a_template_is_asked_for_and_never_passed_on(
    word: str, variable: str
) -> None:
    """The unit of a write-up has them for its model, its name and its port."""
    line = f"vllm serve --model '{word}' --served-model-name VLLM_SERVED_MODEL_NAME_PLACEHOLDER"
    recipe = parse_recipe_text(f"{line} --port VLLM_PORT_PLACEHOLDER --max-model-len 8192")
    assert (
        recipe.plan is not None
        and recipe.plan.model == f"${{{variable}}}"
        and variable in recipe.variables
    )
    assert [setting.name for setting in recipe.plan.flags] == ["max-model-len"]
    named = [f.flag for f in recipe.findings if f.code == "recipe.placeholder"]
    assert {"served-model-name", "port", None} == {*named} and "PLACEHOLDER" not in str(recipe.plan)


@pytest.mark.parametrize("word", ["-p {0}:8000", "-p 8000:{0}", "--gpus {0}"])
def test_a_number_of_thousands_of_digits_in_a_container_is_not_understood(word: str) -> None:
    long = "9" * 5000
    recipe = parse_recipe_text(f"docker run {word.format(long)} vllm/vllm-openai --model org/m")
    assert recipe.plan is not None and texts(recipe, "not-understood")


COMPOSE_OF_A_TREE = """
services:
  vllm:
    image: vllm/vllm-openai:v0.24.0
    volumes:
      - ${MODEL_DIR:-../../models-cache}:/root/.cache/huggingface
      - ../templates/chat.jinja:/etc/chat.jinja:ro
      - {type: bind, source: ./drafts, target: /drafts}
      - named:/var/lib/x
    command: >-
      --model /root/.cache/huggingface/seven --chat-template /etc/chat.jinja
      --speculative-config '{"model": "/drafts/small", "num_speculative_tokens": 2}'
      ${THINKING:+--seed ${SEED:-${OTHER_SEED:-3}}} --max-num-seqs ${SEQS:-${OTHER_SEQS:-4}}
"""


def test_relative_volumes_and_dotenv_of_a_compose_file_count_from_its_directory(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    recipe = parse_recipe_text(COMPOSE_OF_A_TREE, Given(directory=directory))
    assert recipe.plan is not None
    assert recipe.plan.model == f"{tmp_path}/models-cache/seven"
    assert settings(recipe) == {
        "chat-template": f"{tmp_path}/a/templates/chat.jinja",
        "speculative-config": {"model": f"{directory}/drafts/small", "num_speculative_tokens": 2},
        "max-num-seqs": 4,
    }
    assert any("THINKING has no value" in said for said in texts(recipe, "left-out"))
    (directory / ".env").write_text(
        "# a comment\nMODEL_DIR=/srv/models\nexport THINKING=1\n"
        "OTHER_SEED='8'\nSEQS=  # empty\nOTHER_SEQS=16 # many\n"
    )
    recipe = parse_recipe_text(COMPOSE_OF_A_TREE, Given(directory=directory))
    assert recipe.plan is not None and recipe.plan.model == "/srv/models/seven"
    found = settings(recipe)
    assert (found["seed"], found["max-num-seqs"]) == (8, 16)


def test_without_its_directory_a_relative_volume_is_named() -> None:
    recipe = parse_recipe_text(COMPOSE_OF_A_TREE)
    said = texts(recipe, "left-out")
    assert any("the volume ../templates/chat.jinja" in text for text in said)


TABBY_CONFIG = """
network: {host: 0.0.0.0, port: 5001, disable_auth: true, api_servers: [OAI, Kobold]}
logging: {log_prompt: false}
model:
  model_dir: models
  model_name: Seven-exl3
  max_seq_len: 32768
  cache_mode: "6,6"
  gpu_split: [40, 44.5]
  gpu_split_auto: false
  use_as_default: [max_seq_len]
  inline_model_loading:
draft_model: {draft_model_dir: models, draft_model_name: Small-exl3}
lora: {lora_dir: loras, loras: [{name: one, scaling: 0.5}]}
odd: {x: 1}
"""


def test_the_configuration_file_of_tabbyapi_gives_its_settings(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    recipe = parse_recipe_text(TABBY_CONFIG, Given(directory=tmp_path))
    assert recipe.plan is not None
    assert (recipe.plan.engine, recipe.plan.model) == ("tabbyapi", f"{tmp_path}/models/Seven-exl3")
    assert recipe.plan.workdir == str(tmp_path)
    found = settings(recipe)
    assert found["cache-mode"] == "6,6" and found["port"] == 5001
    assert found["api-servers"] == ["OAI", "Kobold"]
    assert found["gpu-split"] == [40, 44.5] and found["gpu-split-auto"] is False
    assert found["draft-model-dir"] == f"{tmp_path}/models"
    assert found["loras"] == [{"name": "one", "scaling": 0.5}]
    assert texts(recipe, "not-understood") == ["odd is not understood and left out: {'x': 1}"]


def test_a_command_line_of_tabbyapi_reads_its_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(TABBY_CONFIG)
    line = f"python main.py --config {tmp_path}/own.yml --port 5002"
    recipe = parse_recipe_text(line)
    assert recipe.plan is not None and recipe.plan.model == "Seven-exl3"
    found = settings(recipe)
    assert (found["port"], found["max-seq-len"]) == (5002, 32768)
    assert "config" not in found
    (tmp_path / "config.yml").write_text("model: {model_name: Usual}")
    usual = parse_recipe_text(f"cd {tmp_path} && python main.py")
    assert usual.plan is not None and usual.plan.model == "Usual"
    missing = parse_recipe_text("python main.py --config /nonexistent/config.yml")
    assert any("/nonexistent/config.yml is not read" in text for text in texts(missing, "config"))


def test_an_empty_section_of_the_configuration_of_tabbyapi_says_nothing() -> None:
    recipe = parse_recipe_text("model: {model_name: Seven}\nsampling:\nlora: ''\ndeveloper:\n")
    assert recipe.plan is not None and texts(recipe, "not-understood") == []


COMPOSE_OF_FILES = """
services:
  vllm:
    image: vllm/vllm-openai:v0.24.0
    env_file:
      - server.env
      - {path: absent.env, required: false}
      - ../outside.env
    environment:
      VLLM_LOGGING_LEVEL: INFO
      HF_TOKEN: ${HF_TOKEN:-}
      HF_HOME: /root/.cache/huggingface
      VLLM_CACHE_ROOT: /cache/vllm
      TRITON_CACHE_DIR: /kernels/triton
    volumes:
      - cache:/cache
      - /srv/kernels:/kernels
    command: --model org/m
"""


def test_files_of_variables_in_the_directory_of_a_compose_file_are_read(tmp_path: Path) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    (tmp_path / "outside.env").write_text("OUTSIDE=1\n")
    (directory / "server.env").write_text(
        "VLLM_LOGGING_LEVEL=DEBUG\nNCCL_DEBUG=INFO\nA_KEY=s3cret\n"
    )
    recipe = parse_recipe_text(COMPOSE_OF_FILES, Given(directory=directory))
    assert recipe.plan is not None
    env = {s.name: s.value for s in recipe.plan.env}
    assert (env["VLLM_LOGGING_LEVEL"], env["NCCL_DEBUG"]) == ("INFO", "INFO")
    assert "OUTSIDE" not in env and "s3cret" not in str(recipe)
    assert len(texts(recipe, "env-file")) == 1 and "../outside.env" in texts(recipe, "env-file")[0]


def test_paths_that_only_a_container_has_reach_no_environment_of_the_host() -> None:
    recipe = parse_recipe_text(COMPOSE_OF_FILES)
    assert recipe.plan is not None
    env = {s.name: s.value for s in recipe.plan.env}
    assert env == {"VLLM_LOGGING_LEVEL": "INFO", "TRITON_CACHE_DIR": "/srv/kernels/triton"}
    said = " ".join(texts(recipe, "left-out"))
    assert "HF_HOME=/root/.cache/huggingface" in said and "VLLM_CACHE_ROOT=/cache/vllm" in said


def test_volumes_of_a_sparkrun_recipe_give_the_paths_of_the_host() -> None:
    recipe = parse_recipe_text(
        "model: org/Seven\nruntime: vllm\ncontainer: some/image:1\ndraft_model: org/Small\n"
        "volumes: ['~/models/seven:/model:ro', '/srv/draft:/draft']\n"
        "command: 'vllm serve /model --speculative-config {spec}'\n"
        "defaults: {spec: '''{\"model\": \"/draft\"}'''}\n"
    )
    assert recipe.plan is not None and recipe.plan.model == f"{Path.home()}/models/seven"
    assert settings(recipe)["speculative-config"] == {"model": "/srv/draft"}
    assert texts(recipe, "not-understood") == []


def test_a_llama_swap_model_that_starts_no_server_is_not_chosen_by_default() -> None:
    text = "models:\n  draw: {cmd: sd-server -m x}\n  chat: {cmd: llama-server -m /m.gguf}\n"
    recipe = parse_recipe_text(text)
    assert recipe.plan is not None and (recipe.plan.model, recipe.name) == ("/m.gguf", "chat")
    assert "the model draw is left out" in texts(recipe, "left-out")[0]
    assert parse_recipe_text(text, Given("draw")).plan is None


def test_a_variable_of_the_environment_in_a_llama_swap_command_becomes_one_of_the_preset() -> None:
    recipe = parse_recipe_text("models:\n  chat: {cmd: 'llama-server -m ${env.MODELS}/m.gguf'}\n")
    assert recipe.plan is not None and recipe.plan.model == "${models}/m.gguf"
    assert list(recipe.variables) == ["models"]
