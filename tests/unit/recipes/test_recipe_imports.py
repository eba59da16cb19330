"""Recipes of other tools as presets: each form's settings arrive, the rest is named, and nothing is
run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.model.errors import InputError
from workbench.model.untrusted_text import UNSAFE
from workbench.recipes.imports import running_process
from workbench.recipes.preset_document import document_of
from workbench.recipes.recipe import Recipe
from workbench.recipes.registry import read_text

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
    recipe = read_text(text)
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
    assert any(said in found for found in texts(read_text(text), code)), texts(
        read_text(text), code
    )


def test_an_entry_chooses_the_variant_the_service_or_the_model() -> None:
    fp8 = read_text(VLLM_RECIPE, "fp8")
    assert (
        fp8.plan is not None
        and fp8.plan.model == "org/Model-7B-FP8"
        and settings(fp8)["kv-cache-dtype"] == "fp8"
    )
    assert fp8.plan.engine_versions == ">=0.11.0"
    large = read_text(LLAMA_SWAP, "large")
    assert large.plan is not None and large.plan.model == "/x.gguf"
    assert texts(large, "refused") == ["the stop command is not run: touch CANARY"]
    for text in (VLLM_RECIPE, LLAMA_SWAP, COMPOSE):
        with pytest.raises(InputError, match="has no"):
            read_text(text, "nosuch")


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
        recipe = read_text(text)
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
    assert texts(read_text(line), code)


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
        recipe = read_text(text)
        shown = str([recipe, *(finding.text for finding in recipe.findings)])
        assert (
            secret not in shown
            and "hf_" not in shown
            and UNSAFE.search(shown) is None
            and "x1b" not in shown
        )


@pytest.mark.parametrize("image", ["--privileged", "a b", "a:${TAG}", "a\nb", "$(touch CANARY)"])
def test_an_image_that_is_no_name_of_an_image_reaches_no_preset(image: str) -> None:
    recipe = read_text(json.dumps({"model": "m", "runtime": "vllm", "container": image}))
    assert recipe.plan is not None and recipe.plan.image is None and texts(recipe, "not-understood")


def test_no_secret_of_a_command_line_appears_anywhere() -> None:
    line = (
        "HF_TOKEN=hf_abcdefghijklmnopqrst vllm serve m --api-key=sk-abcdefghijklmnopqrst "
        "hf_abcdefghijklmnopqrst; "
        "curl -H 'Authorization: Bearer abcdefgh12345678'"
    )
    shown = repr(read_text(line))
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
    recipe = running_process.read(argv, env, "/srv")
    assert recipe.plan is not None
    assert (recipe.plan.executable, recipe.plan.model) == (executable, "m")
    assert settings(recipe) == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert texts(recipe, "secret") and any(
        "1 other variable" in text for text in texts(recipe, "left-out")
    )


def test_a_process_that_is_no_server_is_refused() -> None:
    recipe = running_process.read(["sleep", "5"], None, None)
    assert recipe.plan is None and "starts no server" in recipe.findings[0].text


def test_nothing_of_these_recipes_was_run() -> None:
    assert not Path("CANARY").exists()


def test_parallel_sizes_of_a_recipe_for_one_node_give_the_number_of_gpus() -> None:
    recipe = read_text(SPARKRUN)
    assert document_of(recipe, "r", "r.yaml")["hardware"]["count"] == 2
    two_nodes = read_text(
        SPARKRUN.replace("min_nodes: 1", "cluster_only: true").replace(
            "tensor_parallel: 2", "tensor_parallel: 1"
        )
    )
    assert document_of(two_nodes, "r", "r.yaml")["hardware"]["count"] == 2


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
    recipe = read_text(f"{line} --port VLLM_PORT_PLACEHOLDER --max-model-len 8192")
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
    recipe = read_text(f"docker run {word.format(long)} vllm/vllm-openai --model org/m")
    assert recipe.plan is not None and texts(recipe, "not-understood")
