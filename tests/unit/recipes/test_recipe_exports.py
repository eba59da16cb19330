"""Exports: the words and the environment arrive as they are, secrets are references, and a round
trip loses nothing."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recipe_properties import argv_of, random_plan

from workbench import engines
from workbench.model.errors import InputError
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, Node
from workbench.recipes.exports import shell, systemd
from workbench.recipes.launch import Launch, build_launch
from workbench.recipes.recipe import Notes
from workbench.recipes.registry import EXPORT_FORMS, find_export_form, parse_recipe_text

WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"W_[A-Z]{1,8}", fullmatch=True)
READ_BACK = ("shell", "docker", "podman", "compose", "slurm", "pbs", "sparkrun", "llamaswap")
IN_IMAGE = ("docker", "podman", "compose", "sparkrun")
SECRET = LaunchPlan(
    "vllm",
    "org/Model",
    flags=(
        FlagSetting("api-key", "sk-abcdefghijklmnopqrst"),
        FlagSetting("admin-api-key", "sk-zyxwvutsrqponmlkjihg"),
    ),
    env=(FlagSetting("HF_TOKEN", "hf_abcdefghijklmnopqrst"), FlagSetting("PLAIN", "1")),
)


def exported(plan: LaunchPlan, form: str, **known: Any) -> tuple[str, Notes]:
    notes = Notes()
    launch = build_launch(plan, notes, "a-name", "A title", **known)
    return find_export_form(form).render(launch, notes), notes


def launch_with(argv: list[str], env: dict[str, str], **changes: Any) -> Launch:
    return replace(
        build_launch(LaunchPlan("vllm", "m"), Notes(), "a", "b"),
        argv=tuple(argv),
        env=env,
        **changes,
    )


@settings(max_examples=60, deadline=None)
@given(argv=st.lists(WORDS, max_size=6), env=st.dictionaries(NAMES, WORDS, max_size=3))
def test_a_script_gives_back_exactly_argv_and_environment(
    argv: list[str], env: dict[str, str]
) -> None:
    """Run by sh: whatever the words hold, nothing of them is executed, expanded or lost."""
    show = 'for a do printf "%s\\0" "$a"; done; env -0 | grep -z "^W_" | sort -z'
    script = shell.shell_script(launch_with(["sh", "-c", show, "sh", *argv], env), Notes())
    done = subprocess.run(
        ["sh"],
        input=script.encode(),
        capture_output=True,
        timeout=20,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode in (0, 1), done.stderr  # 1: grep found no variable
    expected = [*argv, *(f"{k}={v}" for k, v in sorted(env.items()))]
    assert done.stdout.decode().split("\0")[:-1] == expected


def test_a_script_writes_its_files(tmp_path: Path) -> None:
    files = {"config.yml": "a: 'b'\n$(touch x)\n"}
    (tmp_path / "empty").mkdir()
    launch = launch_with(["cat", "{run_dir}/config.yml"], {}, files=files)
    launch = replace(launch, plan=replace(launch.plan, workdir=str(tmp_path)))
    script = shell.shell_script(launch, Notes())
    done = subprocess.run(
        ["sh"], input=script, capture_output=True, text=True, cwd=tmp_path / "empty", timeout=20
    )
    assert (done.stdout, done.stderr) == ("a: 'b'\n$(touch x)\n", "")
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("form", READ_BACK)
@pytest.mark.parametrize("seed", range(25))
def test_a_round_trip_loses_nothing_that_both_sides_can_say(form: str, seed: int) -> None:
    plan = random_plan(random.Random(seed))
    try:
        text, notes = exported(plan, form)
    except InputError as error:
        assert form in ("sparkrun", "llamaswap"), error
        return
    if any(finding.code == "recipe.replaced" for finding in notes.findings):
        return
    read = parse_recipe_text(text).plan
    assert read is not None
    hidden = ("CUDA_VISIBLE_DEVICES",) if form in ("slurm", "pbs") else ()
    assert {e.name: e.value for e in read.env} == {
        e.name: e.value for e in plan.env if e.name not in hidden
    }
    wanted, found = list(argv_of(plan)), list(argv_of(read))
    if form == "llamaswap":  # it chooses the port
        for words in (wanted, found):
            words[words.index("--port") + 1] = "PORT"
    assert found == wanted
    if form in IN_IMAGE and plan.image:
        assert (read.image or "").removeprefix("docker.io/") == plan.image
    if form in ("shell", "slurm", "pbs"):
        assert read.workdir == plan.workdir


@pytest.mark.parametrize("form", [form.name for form in EXPORT_FORMS])
def test_no_export_contains_a_secret_and_each_names_its_variable(form: str) -> None:
    text, notes = exported(SECRET, form)
    everything = text + repr(notes.findings)
    assert (
        "sk-" not in everything
        and "hf_" not in everything.replace("hf_token", "")
        and "\ue001" not in everything
    )
    for name in ("VLLM_API_KEY", "ADMIN_API_KEY", "HF_TOKEN"):
        assert name in everything
    assert "--api-key" not in text and "--admin-api-key" in text


@pytest.mark.parametrize("form", ["shell", "docker", "podman", "slurm", "pbs"])
def test_every_script_is_valid_for_bash_and_stops_without_its_secrets(form: str) -> None:
    text, _ = exported(SECRET, form)
    assert (
        subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, timeout=20
        ).stderr
        == ""
    )
    done = subprocess.run(
        ["bash"],
        input=text,
        capture_output=True,
        text=True,
        timeout=20,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0 and "set VLLM_API_KEY to the secret" in done.stderr


def systemd_words(line: str) -> list[str]:
    """Return the words of a line as systemd.syntax(7) and systemd.service(5) define them: quotes, C
    escapes, %%, $$."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    plain = [word.replace("%%", "%").replace("$$", "$") for word in words]
    return [re.sub(r'\\(x[0-9a-f]{2}|.)', _unescaped, word).encode("latin-1", "surrogateescape").decode("utf-8") if
            word.isascii() else re.sub(r"\\(.)", _unescaped, word) for word in plain]  # fmt: skip


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) == 3 else {"n": "\n", "t": "\t"}.get(code, code)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=12),
        min_size=1,
        max_size=4,
    )
)
def test_words_of_a_unit_are_those_of_the_plan(argv: list[str]) -> None:
    lines = systemd.systemd_unit_text(launch_with(argv, {"A": argv[0]}), Notes()).splitlines()
    start = next(line for line in lines if line.startswith("ExecStart="))
    assert systemd_words(start) == argv
    environment = next(line for line in lines if line.startswith("Environment="))
    assert "$$" not in environment or "$$" in argv[0]


def test_a_description_does_not_continue_in_the_next_line() -> None:
    lines = systemd.systemd_unit_text(
        replace(launch_with(["x"], {}), title="ends with \\"), Notes()
    ).splitlines()
    assert lines[1:3] == ["Description=ends with ", "Wants=network-online.target"]


def test_each_masked_or_renamed_secret_is_named() -> None:
    env = (FlagSetting("PROXY", "https://user:s3cretword@host"),)
    flags = (FlagSetting("x.y-token", "s3cretword"),)
    text, notes = exported(LaunchPlan("vllm", "m", flags=flags, env=env), "shell")
    assert "s3cretword" not in text and '--x.y-token "$X_Y_TOKEN"' in text
    assert "PROXY is masked" in next(f.text for f in notes.findings if f.code == "recipe.masked")
    assert subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True).returncode == 0


def test_a_unit_needs_an_absolute_directory() -> None:
    with pytest.raises(InputError, match="absolute working directory"):
        exported(LaunchPlan("vllm", "m", workdir="here"), "systemd")


def test_helm_values_say_the_flags_as_the_chart_does() -> None:
    plan = LaunchPlan(
        "vllm",
        "org/Model",
        flags=tuple(
            FlagSetting(*pair)
            for pair in (("max-model-len", 4096), ("tensor-parallel-size", 2), ("seed", 7))
        ),
        env=(FlagSetting("A", "$(B) $C $$"), FlagSetting("HF_TOKEN", "hf_x")),
        image="vllm/vllm-openai@sha256:00ff",
    )
    spec = yaml.safe_load(exported(plan, "helm")[0])["servingEngineSpec"]["modelSpec"][0]
    assert (spec["repository"], spec["tag"], spec["requestGPU"]) == (
        "vllm/vllm-openai@sha256",
        "00ff",
        2,
    )
    config = spec["vllmConfig"]
    assert (config["maxModelLen"], config["enablePrefixCaching"], config["extraArgs"]) == (
        4096,
        True,
        ["--seed", "7"],
    )
    assert spec["env"] == [{"name": "A", "value": "$$(B) $$C $$$$"}]
    assert spec["hf_token"] == {"secretName": "a-name-secrets", "secretKey": "HF_TOKEN"}


@pytest.mark.parametrize(
    ("flags", "cores", "memory"),
    [
        ({}, 3, "16Gi"),
        ({"tensor-parallel-size": 4, "cpu-offload-gb": 10}, 6, "56Gi"),
        ({"tensor-parallel-size": 2, "data-parallel-size": 4}, 17, "16Gi"),
        ({"kv-offloading-size": 7.5}, 3, "24Gi"),
    ],
)
def test_helm_values_request_what_the_processes_of_the_engine_need(
    flags: dict[str, float], cores: int, memory: str
) -> None:
    """The chart's schema takes a whole number of cores and a text for the memory."""
    settings = tuple(FlagSetting(name, value) for name, value in flags.items())
    text, _ = exported(LaunchPlan("vllm", "org/Model", flags=settings), "helm")
    spec = yaml.safe_load(text)["servingEngineSpec"]["modelSpec"][0]
    assert (spec["requestCPU"], spec["requestMemory"]) == (cores, memory)


@pytest.mark.parametrize(
    ("plan", "form", "said"),
    [
        (
            LaunchPlan("tabbyapi", "/m/x", workdir="/srv"),
            "sparkrun",
            "sparkrun cannot start TabbyAPI",
        ),
        (LaunchPlan("sglang", "m"), "helm", "cannot start SGLang"),
        (LaunchPlan("vllm", "m", env=(FlagSetting("A", "${b}"),)), "llamaswap", "cannot pass"),
        (
            LaunchPlan("tabbyapi", "/m/x", workdir="/srv", flags=(FlagSetting("loras", ["a"]),)),
            "systemd",
            "needs the file config.yml",
        ),
        (
            LaunchPlan("vllm", "m", nodes=(Node("h", 0), Node("w", 1))),
            "systemd",
            "choose the node with --node: h, w",
        ),
    ],
)
def test_what_a_form_cannot_say_is_an_error(plan: LaunchPlan, form: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        exported(plan, form)
    assert said in f"{caught.value}"


def test_an_image_without_a_digest_is_named_and_one_with_a_digest_is_not() -> None:
    for image, codes in ((None, ["recipe.image-not-pinned"]), ("a/b@sha256:00", [])):
        _, notes = exported(LaunchPlan("vllm", "m", image=image), "docker")
        assert [finding.code for finding in notes.findings] == codes


def test_a_slurm_job_of_two_nodes_starts_each_with_its_own_words(tmp_path: Path) -> None:
    """srun is a stand-in that starts each task with its number, one after the other."""
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$IP $*"\n')
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\nshift\nfor SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done\n'
    )
    for each in (program, srun):
        each.chmod(0o755)
    nodes = tuple(
        Node(name, rank, {"node-rank": rank}, {"IP": f"10.0.0.{rank}"})
        for rank, name in enumerate("hw")
    )
    text, _ = exported(
        LaunchPlan("vllm", "org/it's", executable=(str(program),), nodes=nodes), "slurm", gpus=2
    )
    assert "#SBATCH --nodes=2" in text and "--gres=gpu:1" in text
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, timeout=20, env=env)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["10.0.0.0", "10.0.0.1"]
    assert "serve org/it's" in done.stdout and done.stdout.rstrip().endswith("--node-rank 1")


def test_the_engines_of_all_forms_are_known() -> None:
    for name in engines.engine_names():
        words = shlex.split(
            exported(LaunchPlan(name, "org/Model", workdir="/srv"), "docker")[0].splitlines()[-1]
        )
        assert engines.get_engine(name).image in " ".join(words)
