"""Start scripts and systemd units as people write them: which program, model, flags, environment
and limits a preset of them has, and what is said about the rest."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.plan import LaunchPlan
from workbench.recipes.preset_document import preset_document_of_recipe
from workbench.recipes.recipe import Recipe
from workbench.recipes.registry import parse_recipe_text
from workbench.recipes.shell_text import SimpleCommand, split_simple_commands
from workbench.session.plans.recipes import Recipes
from workbench.session.session import Session

VF_VLLM = """#!/bin/bash
#PBS -l select=1:ngpus=4
MODEL_NAME="${1:-Qwen/Qwen3-VL-2B-Instruct}"
HOST=0.0.0.0
PORT=${2:-8004}
# Use stdbuf to disable buffering and redirect to log files
stdbuf -o0 -e0 vf-vllm \\
    --model "$MODEL_NAME" \\
    --data-parallel-size 4 \\
    --host "$HOST" \\
    --port "$PORT" \\
    --max-num-seqs 512 \\
    > "$REALTIME_LOG" 2> "$REALTIME_ERR"
"""
VENV = """#!/bin/bash
source /home/ivan/sglang/sglang-env/bin/activate
export CUDA_VISIBLE_DEVICES=0
ulimit -n 65535

python -m sglang.launch_server \\
    --model-path /home/ivan/models/Mistral-Large-Instruct-2411-AWQ \\
    --port 30000 \\
    --tp 1
"""
UNIT = """# /etc/systemd/system/vllm.service
[Unit]
Description=vLLM of Qwen
After=network-online.target

[Service]
Type=simple
User=vllm
WorkingDirectory=/srv/vllm
Environment="HF_HOME=/srv/my cache" VLLM_LOGGING_LEVEL=DEBUG
Environment=MODEL=Qwen/Qwen2.5-7B-Instruct
EnvironmentFile=-/etc/default/vllm
ExecStartPre=/usr/bin/nvidia-smi -pm 1
ExecStart=/opt/vllm/bin/vllm serve ${MODEL} \\
    # a comment between the lines of a command
    --port 8000 --max-model-len ${LENGTH} \\
    --served-model-name "qwen \\"7b\\"" --seed 100%% $EXTRA
LimitNOFILE=65535:65536
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
"""
UNIT_OF_SHELL = """[Service]
WorkingDirectory=%h/llm
ExecStart=/bin/bash -lc 'source /opt/v/bin/activate && exec vllm serve m --port 9000'
LimitNOFILE=infinity
"""
UNIT_OF_DOCKER = """[Service]
ExecStart=/usr/bin/docker run --rm --gpus all -p 9000:8000 vllm/vllm-openai:v0.11.0 --model m
"""
ARRAYS = """#!/usr/bin/env bash
cd "$(dirname "${BASH_SOURCE[0]}")"
SCRIPT_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
ARGS=(
    --ctx-size 8192   # tokens
    --alias "a name"
)
ARGS+=(--port 9000)
EXTRA="--parallel 4 --metrics"
EXTRA+=" --mlock"
OPTION=
PORT=$(free_port)
sudo systemctl stop llama-server
pkill -f llama-server || true
mkdir -p /var/lib/llama-server
"$SCRIPT_DIR/build/bin/llama-server" -m "$SCRIPT_DIR/m.gguf" "${ARGS[@]}" $EXTRA $OPTION
"""


def _plan(text: str) -> LaunchPlan:
    plan = parse_recipe_text(text).plan
    assert plan is not None
    return plan


def _flags(plan: LaunchPlan) -> dict[str, Any]:
    return {flag.name: flag.value for flag in plan.flags}


def _env(plan: LaunchPlan) -> dict[str, Any]:
    return {variable.name: variable.value for variable in plan.env}


def _said(recipe: Recipe) -> str:
    return "\n".join(finding.text for finding in recipe.findings)


def test_vf_vllm_is_read_as_vllm_serve_and_said() -> None:
    recipe = parse_recipe_text(VF_VLLM)
    plan = _plan(VF_VLLM)
    assert (plan.engine, plan.executable, plan.model) == ("vllm", (), "Qwen/Qwen3-VL-2B-Instruct")
    wanted = {"data-parallel-size": 4, "host": "0.0.0.0", "port": 8004, "max-num-seqs": 512}
    assert _flags(plan) == wanted
    assert "vf-vllm left the package verifiers" in _said(recipe)
    beside = _plan("/opt/verifiers/bin/vf-vllm --model m")
    assert beside.executable == ("/opt/verifiers/bin/vllm",)


def test_the_programs_of_an_activated_environment_are_named_by_their_path() -> None:
    plan = _plan(VENV)
    python = "/home/ivan/sglang/sglang-env/bin/python"
    assert plan.executable == (python, "-m", "sglang.launch_server")
    assert (plan.open_files, _env(plan)) == (65535, {"CUDA_VISIBLE_DEVICES": "0"})
    assert _plan(". /v/bin/activate\nvllm serve m").executable == ("/v/bin/vllm",)
    assert _plan(". /v/bin/activate\nllama-server -m x.gguf").executable == ()
    relative = _plan("source .venv/bin/activate\nexec nohup vllm serve m")
    assert relative.executable == ("${start_dir}/.venv/bin/vllm",)
    at_home = _plan("source ~/v/bin/activate\nvllm serve ~/models/m")
    assert (at_home.executable, at_home.model) == (("${home}/v/bin/vllm",), "${home}/models/m")
    assert _plan("cd /srv\nsource v/bin/activate\nvllm serve m").executable == ("/srv/v/bin/vllm",)


def test_a_unit_gives_command_environment_directory_and_limit() -> None:
    plan = _plan(UNIT)
    assert (plan.executable, plan.model) == (("/opt/vllm/bin/vllm",), "Qwen/Qwen2.5-7B-Instruct")
    assert (plan.workdir, plan.open_files) == ("/srv/vllm", 65535)
    assert _env(plan) == {
        "HF_HOME": "/srv/my cache",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "MODEL": "Qwen/Qwen2.5-7B-Instruct",
    }
    assert _flags(plan) == {
        "port": 8000,
        "max-model-len": "${length}",
        "served-model-name": 'qwen "7b"',
        "seed": "100%",
    }


@pytest.mark.parametrize(
    "said",
    [
        "the variables in the file /etc/default/vllm are not read",
        "the command in ExecStartPre is not run: /usr/bin/nvidia-smi -pm 1",
        "the user of the unit, User=vllm, is left out",
        "each of the settings Type, Restart, RestartSec is left out",
        "$EXTRA is left out",
    ],
)
def test_what_a_preset_does_not_take_from_a_unit_is_named(said: str) -> None:
    assert said in _said(parse_recipe_text(UNIT))


def test_a_unit_may_start_a_shell_or_a_container() -> None:
    shell = _plan(UNIT_OF_SHELL)
    assert (shell.executable, shell.workdir) == (("/opt/v/bin/vllm",), "${home}/llm")
    assert (_flags(shell), shell.open_files) == ({"port": 9000}, None)
    assert "LimitNOFILE is not understood and left out: infinity" in _said(
        parse_recipe_text(UNIT_OF_SHELL)
    )
    docker = _plan(UNIT_OF_DOCKER)
    assert (docker.image, _flags(docker)) == ("vllm/vllm-openai:v0.11.0", {"port": 9000})


def test_a_unit_that_runs_a_script_names_the_script() -> None:
    recipe = parse_recipe_text("[Service]\nExecStart=/usr/bin/bash /opt/vllm/run_vllm.sh --fast\n")
    assert recipe.plan is None and recipe.findings[0].level is Level.ERROR
    assert recipe.findings[0].fix == (
        "the unit runs a script; import it: workbench import /opt/vllm/run_vllm.sh"
    )


def test_the_preset_of_a_unit_can_be_saved() -> None:
    session = Session.of_host()
    recipes: Recipes = session.presets.recipes
    imported = recipes.read_recipe_text(UNIT, "vllm.service")
    assert imported.preset is not None, imported.findings
    assert imported.preset.engine.open_files == 65535
    assert set(imported.preset.variables) == {"length"}


def test_arrays_words_without_quotes_and_the_directory_of_the_script_are_read() -> None:
    plan = _plan(ARRAYS)
    assert plan.executable == ("${script_dir}/build/bin/llama-server",)
    assert plan.model == "${script_dir}/m.gguf"
    assert _flags(plan) == {
        "ctx-size": 8192,
        "alias": "a name",
        "port": 9000,
        "parallel": 4,
        "metrics": True,
        "mlock": True,
    }


@pytest.mark.parametrize(
    "line",
    [
        "sudo pkill -f llama-server",
        "sudo systemctl enable llama-server",
        "sudo mkdir -p /etc/llama-server",
        "/opt/llama.cpp/build/bin/llama-server --version",
    ],
)
def test_a_command_that_only_names_a_server_starts_none(line: str) -> None:
    assert parse_recipe_text(line).plan is None


def test_a_value_that_a_shell_would_compute_does_not_replace_a_known_one() -> None:
    text = "PYTHON=/opt/v/bin/python\nif [ ! -x $PYTHON ]; then PYTHON=$(command -v python3); fi\n"
    plan = _plan(f"{text}$PYTHON -m vllm.entrypoints.openai.api_server --model m")
    assert plan.executable[0] == "/opt/v/bin/python"


def test_properties_of_systemd_run_are_no_variables() -> None:
    plan = _plan("systemd-run --user -p MemoryMax=90% env A=1 vllm serve m")
    assert _env(plan) == {"A": "1"}


@pytest.mark.parametrize(
    ("line", "flag", "value"),
    [
        ("vllm serve m --served-model-name a --served-model-name b", "served-model-name", "b"),
        ("vllm serve m --served-model-name a b --served-model-name c", "served-model-name", "c"),
        ("vllm serve m --max-num-seqs 8 --max-num-seqs 16", "max-num-seqs", 16),
        ("sglang serve --model-path m --tp 1 --tp-size 2", "tensor-parallel-size", 2),
    ],
)
def test_of_a_repeated_flag_the_last_value_counts_and_is_said(
    line: str, flag: str, value: Any
) -> None:
    recipe = parse_recipe_text(line)
    assert _flags(_plan(line)) == {flag: value}
    assert f"{flag} is given several times" in _said(recipe)


def test_a_flag_that_adds_its_values_up_keeps_all_of_them() -> None:
    plan = _plan("vllm serve m --middleware a --middleware b")
    assert _flags(plan) == {"middleware": ["a", "b"]}
    same = parse_recipe_text("vllm serve m --seed 1 --seed 1")
    assert "several times" not in _said(same)


def test_the_limit_of_open_files_of_a_container_is_read() -> None:
    line = "docker run --ulimit nofile=4096:8192 vllm/vllm-openai:latest --model m"
    assert _plan(line).open_files == 4096
    compose = "services: {s: {image: 'vllm/vllm-openai:latest', command: [--model, m], "
    assert _plan(f"{compose}ulimits: {{nofile: 2048}}}}}}").open_files == 2048
    assert _plan(f"{compose}ulimits: {{nofile: {{soft: 512, hard: 1024}}}}}}}}").open_files == 512


def test_a_conda_environment_is_entered_by_its_name() -> None:
    entered = {
        "source /opt/conda/bin/activate x": "/opt/conda/envs/x/bin/vllm",
        ". /opt/conda/bin/activate base": "/opt/conda/bin/vllm",
        ". /opt/conda/bin/activate /srv/env": "/srv/env/bin/vllm",
        "source /opt/c/etc/profile.d/conda.sh\nconda activate x": "/opt/c/envs/x/bin/vllm",
        "conda activate /srv/env": "/srv/env/bin/vllm",
    }
    for lines, program in entered.items():
        assert _plan(f"{lines}\nvllm serve m").executable == (program,), lines
        assert _plan(f"{lines}\nconda deactivate\nvllm serve m").executable == (), lines
    unknown = parse_recipe_text("conda activate x\nvllm serve m")
    assert unknown.plan is not None and unknown.plan.executable == ()
    assert "a shell command is not run: conda activate x" in unknown.findings[0].text


@pytest.mark.parametrize("chooser", ["conda run -n x", "uv run --python 3.12", "poetry run"])
def test_a_program_of_an_environment_is_not_silently_that_on_path(chooser: str) -> None:
    (finding,) = parse_recipe_text(f"{chooser} vllm serve m").findings
    assert finding.level is Level.WARN and chooser in finding.text
    assert "--executable PATH/bin/vllm" in (finding.fix or "")
    assert parse_recipe_text(f"{chooser} /v/bin/vllm serve m").findings[0].level is Level.INFO


def test_a_flag_of_another_version_keeps_all_its_values() -> None:
    plan = _plan("python -m sglang.launch_server --model-path m --cuda-graph-bs 1 2 4 --tp 2")
    assert plan.flag("cuda-graph-bs") == [1, 2, 4] and plan.flag("tensor-parallel-size") == 2
    assert _plan("vllm serve --not-known 1 m").model == "m"


def test_a_copy_of_the_output_is_left_out_as_a_redirection_is() -> None:
    findings = parse_recipe_text("vllm serve m 2>&1 | tee -a run.log").findings
    assert [f.level for f in findings] == [Level.INFO, Level.INFO]


def test_the_note_of_a_preset_tells_what_is_missing_and_what_is_read_otherwise() -> None:
    recipe = parse_recipe_text(
        "vf-vllm --model m --max-num-seqs 8 --max-num-seqs 16 --port 1\nset_up x"
    )
    note = preset_document_of_recipe(recipe, "x", "y")["provenance"]["note"]
    missing, _, changed = note.partition(". Taken over so: ")
    assert missing == "Not taken over: a shell command is not run: set_up x"
    assert "vllm serve has the same flags" in changed and "the engine takes the last" in changed


BRANCHES = """#!/bin/bash
FAST=${FAST:-0}
: "${RATE:=0.7}"
if [ "$FAST" = 1 ]; then
  EXTRA=--enforce-eager
  if [ -n "$UNKNOWN" ]; then SIZE=1; fi
elif [[ "$FAST" -ge 5 ]]; then
  EXTRA=--language-model-only
else
  EXTRA=--enable-prefix-caching
fi
vllm serve org/m $EXTRA --gpu-memory-utilization ${RATE} --port ${PORT:-"9100"}
"""


@pytest.mark.parametrize(
    ("first_line", "flag"),
    [
        ("", "enable-prefix-caching"),
        ("FAST=1\n", "enforce-eager"),
        ("FAST=7\n", "language-model-only"),
        ("FAST=\n", "enable-prefix-caching"),  # ":-" counts for an empty variable too
    ],
)
def test_the_branch_that_the_values_of_a_script_choose_is_read(first_line: str, flag: str) -> None:
    recipe = parse_recipe_text(f"{first_line}{BRANCHES}")
    assert recipe.plan is not None
    assert {s.name: s.value for s in recipe.plan.flags} == {
        flag: True,
        "gpu-memory-utilization": 0.7,
        "port": 9100,
    }


@pytest.mark.parametrize(
    "condition",
    [
        '[ "$1" = x ]',  # an argument of the script
        '[ "$MODE" = x ] && [ "$1" = y ]',
        '[ "$MODE" = x ] || true',
        "[ -f /etc/some-file ]",
        'test "$FROM_OUTSIDE" = x',
        '[ "$MODE" = a* ]',
    ],
)
def test_a_condition_that_is_not_decided_skips_no_branch(condition: str) -> None:
    recipe = parse_recipe_text(
        f"MODE=a\nif {condition}; then\n  vllm serve org/m --port 9000\nfi\n"
    )
    assert recipe.plan is not None and recipe.plan.flag("port") == 9000
    assert any(finding.code == "recipe.refused" for finding in recipe.findings)


def test_a_file_of_variables_leaves_a_condition_undecided() -> None:
    script = 'if [ "${FAST:-0}" = 1 ]; then vllm serve org/m --port 9000; fi\n'
    assert parse_recipe_text(script).plan is None
    recipe = parse_recipe_text(f"source /srv/settings.sh\n{script}")
    assert recipe.plan is not None and recipe.plan.flag("port") == 9000


def test_a_skipped_branch_is_named() -> None:
    script = 'FAST=0\nif [ "$FAST" = 1 ]; then vllm serve org/a; else vllm serve org/b; fi\n'
    recipe = parse_recipe_text(script)
    assert recipe.plan is not None and recipe.plan.model == "org/b"
    named = [finding for finding in recipe.findings if "condition does not hold" in finding.text]
    assert len(named) == 1 and named[0].level is Level.INFO


def test_a_path_in_a_variable_may_begin_at_home() -> None:
    recipe = parse_recipe_text("MODEL=~/models/a.gguf\nllama-server -m $MODEL\n")
    assert recipe.plan is not None and recipe.plan.model == "${home}/models/a.gguf"


def test_quotes_and_backslashes_in_a_default_are_those_of_the_shell() -> None:
    script = (
        'export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-"0,1"}\n'
        'vllm serve org/m --default-chat-template-kwargs "${KW:-{\\"a\\": 1}}"\n'
    )
    recipe = parse_recipe_text(script)
    assert recipe.plan is not None
    assert recipe.plan.flag("default-chat-template-kwargs") == {"a": 1}
    assert {s.name: s.value for s in recipe.plan.env} == {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize("end", ["EOF", "'EOF'"])
def test_the_unit_that_a_script_writes_is_read(end: str) -> None:
    script = (
        "PORT=9000\nsudo tee /etc/systemd/system/llm.service <<" + end + "\n[Unit]\n"
        "Description=LLM\n[Service]\nEnvironment=PORT=9000\n"
        "ExecStart=/opt/llama-server -m /m/a.gguf --port ${PORT}\n[Install]\nEOF\n"
        "systemctl start llm\n"
    )
    recipe = parse_recipe_text(script)
    assert recipe.plan is not None
    assert (recipe.form, recipe.plan.flag("port")) == ("systemd unit", 9000)


@pytest.mark.parametrize(
    "line",
    [
        'N=$(grep -c \') ("\' "/etc/x")',
        'A="$(ask -d "{\\"text\\": \\"$(quoted "a b")\\"}" -H \'x: (y\')"',
        "T=$(echo it's fine)",  # an apostrophe that no quote closes
    ],
)
def test_a_bracket_in_quotes_closes_no_substitution(line: str) -> None:
    recipe = parse_recipe_text(f"{line}\nvllm serve org/m\n")
    assert recipe.plan is not None and recipe.plan.model == "org/m"


def test_a_flag_whose_value_is_asked_for_has_no_wrong_type() -> None:
    unit = "[Service]\nEnvironmentFile=/etc/llm\nExecStart=llama-server -m /m.gguf --port ${PORT}\n"
    imported = Recipes(None, None, lambda: None).read_recipe_text(unit)  # type: ignore[arg-type]
    codes = [finding.code for finding in imported.findings]
    assert "variable.missing" in codes and "flag.type" not in codes


CASES = """case "${SPEC:-}" in off|OFF|no) TOKENS=0 ;; esac
case "$TOKENS" in
  ""|*[!0-9]*) echo wrong; exit 1 ;;
  0) ;;
  *)
    if [ "$TOKENS" -gt 4 ]; then case x in x) MANY=1 ;; esac; fi
    EXTRA="--seed $TOKENS"
esac
vllm serve org/m $EXTRA
"""


@pytest.mark.parametrize(
    ("lines", "seed"),
    [
        ("TOKENS=3\n", 3),
        ("TOKENS=7\n", 7),
        ("TOKENS=3\nSPEC=off\n", None),
        ("TOKENS=3\nSPEC=of\n", 3),
    ],
)
def test_the_branch_of_a_case_that_the_values_choose_is_read(lines: str, seed: int | None) -> None:
    recipe = parse_recipe_text(lines + CASES)
    assert recipe.plan is not None and recipe.plan.flag("seed") == seed


def test_a_case_that_is_not_decided_skips_no_branch() -> None:
    recipe = parse_recipe_text(
        'case "$1" in\n  a) SEED=1 ;;\n  b) SEED=2 ;;\nesac\nvllm serve org/m --seed $SEED\n'
    )
    assert recipe.plan is not None and recipe.plan.flag("seed") == 2
    assert any(finding.code == "recipe.refused" for finding in recipe.findings)


@pytest.mark.parametrize(
    "before",
    [
        "X=\"$(cat <<'END'\nit's ) one \" \nEND\n)\"",
        "X=$(cat <<END\nit's ) one \" \nEND\n)",
        "X=\"$(python3 - <<PY\n# it's\nprint('(')\nPY\n)\"",
        "X=$(\n  # don't stop ) here\n  echo a\n)",
        'X="$(echo a # say "hi\n)"',
        "X=$(case $1 in a) echo \"b)\";; *) echo 'c';; esac)",
        "X=$(if true; then case $1 in (a) echo b ;& (c|d) (echo e) ;; esac; fi)",
        "case $1 in\n  \\'*) b=1 ;;&\n  \\\"*) b=2 ;;\nesac",
        "X=$'it\\'s'",
        "X=$(echo $'it\\'s )')",
        'X=`echo \\`date\\` "a"`',
        'X="$(echo "$(echo "a\'b")" ")")"',
        'X=${A:-"}"}',
        "X=\"${A%%'}'*}\"",
        "# not continued, it's a comment \\",
        "cat <<'END'\na \\\nEND",
        "(( (a+1) << 2 ))",
        '[[ $a =~ ^\\"(.*)\\"$ ]]',
    ],
)
def test_a_script_is_read_on_after_any_quotes(before: str) -> None:
    commands = split_simple_commands(f"{before}\nvllm serve some/model --port 8001\n")
    words = [("vllm",), ("serve",), ("some/model",), ("--port",), ("8001",)]
    assert commands[-1].words == words


@pytest.mark.parametrize("opened", ['"$(', "$(", "`", '"${a:-', "$((", "("])
def test_a_script_of_nothing_but_openings_is_refused_soon(opened: str) -> None:
    commands: list[SimpleCommand] = []
    with suppress(InputError):
        commands = split_simple_commands(opened * 20_000)
    assert not any(command.words == [("vllm",)] for command in commands)
