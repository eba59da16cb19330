"""import and export: recipes of other tools become presets, and nothing in them is run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

Cli = Callable[..., Any]
RECIPE = """
model: org/Model-7B
container: example/vllm
defaults: {port: 8100}
pre_exec: ["touch CANARY"]
command: vllm serve {model} --port {port} --max-num-seqs $(touch CANARY) --trust-remote-code
"""


def test_a_recipe_becomes_a_preset_that_plans(cli: Cli, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    shown = cli("import", str(recipe), "--name", "mine", "--json")
    document = json.loads(shown.out)
    assert (shown.code, document["saved"], document["id"]) == (0, None, "mine")
    assert document["preset"]["flags"] == {"port": 8100, "trust-remote-code": True}
    assert {"recipe.refused", "recipe.computed", "preset.runs-code"} <= {
        f["code"] for f in document["findings"]
    }
    asked = cli("import", str(recipe), "--name", "mine")
    assert asked.code == 2 and "--yes" in asked.err and "org/Model-7B" in asked.out
    saved = cli("import", str(recipe), "--name", "mine", "--yes")
    assert saved.code == 0 and "touch CANARY" in saved.err and "saved: " in saved.out
    plan = cli("plan", "mine", "--json")
    assert json.loads(plan.out)["argv"][:3] == ["vllm", "serve", "org/Model-7B"]
    again = cli("import", str(recipe), "--name", "mine", "--yes")
    assert again.code == 2 and "exists already" in again.err
    assert not list(tmp_path.rglob("CANARY")) and not Path("CANARY").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "exactly one source"),
        (("x.yaml", "--command", "vllm serve m"), "exactly one source"),
        (("nosuch.yaml",), "is not a file"),
        (("--command", "ollama serve"), "starts no server"),
        (("--pid", "99999999"), "no process"),
        (("--command", "vllm serve m", "--name", "No Id", "--yes"), "cannot be saved"),
    ],
)
def test_bad_sources_are_errors_with_a_next_step(
    cli: Cli, argv: tuple[str, ...], said: str
) -> None:
    ran = cli("import", *argv)
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err


def test_a_running_server_becomes_a_preset(cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho on\nread line\n")
    program.chmod(0o755)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "1", "LLAMA_API_KEY": "verysecretkey123"}
    argv = [str(program), "-m", "/models/a b.gguf", "-c", "4096", "--api-key", "verysecretkey123"]
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert (
            server.stdout is not None
            and server.stdin is not None
            and server.stdout.readline() == "on\n"
        )
        shown = cli("import", "--pid", str(server.pid), "--json")
        server.stdin.close()
    preset = json.loads(shown.out)["preset"]
    assert preset["engine"] == {"name": "llamacpp", "executable": [str(program)]}
    assert (preset["model"]["id"], preset["flags"]) == ("/models/a b.gguf", {"ctx-size": 4096})
    assert preset["env"]["CUDA_VISIBLE_DEVICES"] == "1" and "LANG" not in preset["env"]
    assert "verysecret" not in shown.out + shown.err


def test_an_export_is_written_once_and_has_no_secret(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "model.service"
    argv = (
        "export",
        "vllm-any",
        "--var",
        "model=org/M",
        "--env",
        "HF_TOKEN=hf_abcdefghijklmnopqrst",
        "--as",
        "systemd",
    )
    shown = cli(*argv)
    assert shown.code == 0 and '"org/M"' in shown.out and "hf_abc" not in shown.out + shown.err
    assert cli(*argv, "-o", str(file)).code == 0 and file.read_text().rstrip() == shown.out.rstrip()
    again = cli(*argv, "--output", str(file))
    assert again.code == 2 and "exists already" in again.err
    document = json.loads(cli(*argv, "--json").out)
    assert document["form"] == "systemd" and document["text"] == file.read_text()
    assert {"recipe.secret", "recipe.relative-program"} == {f["code"] for f in document["findings"]}


def test_an_export_of_nothing_known_is_an_error(cli: Cli) -> None:
    assert cli("export", "nosuch").code == 2
    ran = cli(
        "export",
        "vllm-llama-3.3-70b-2x-spark",
        "--as",
        "compose",
        "--var",
        "head_ip=1",
        "--var",
        "worker_ip=2",
    )
    assert ran.code == 2 and "--node" in ran.err


def test_a_run_is_exported_with_the_words_that_started_it(cli: Cli) -> None:
    here = ("--simulate", "four-pcie")
    run_id = cli(
        *here,
        "start",
        "vllm-any",
        "--var",
        "model=org/M",
        "--set",
        "max-num-seqs=3",
        "--set",
        f"port={free_port()}",
    ).out.strip()
    try:
        ran = cli(*here, "export", run_id, "--as", "shell")
    finally:
        cli(*here, "stop", run_id)
    assert ran.code == 0 and "vllm serve org/M" in ran.out and "--max-num-seqs 3" in ran.out


CLUSTER = """[clusters.pair]
nodes = [
  { host = "sim:gb10@a", address = "127.0.0.1", interface = "lo" },
  { host = "sim:gb10@b", address = "127.0.0.1", interface = "lo" },
]
"""


def test_an_export_for_a_cluster_needs_no_addresses(cli: Cli) -> None:
    from workbench.store import paths

    paths.hosts_file().parent.mkdir(parents=True, exist_ok=True)
    paths.hosts_file().write_text(CLUSTER)
    ran = cli("--cluster", "pair", "export", "vllm-llama-3.3-70b-2x-spark")
    assert ran.code == 0, ran.err
    assert "export VLLM_HOST_IP=127.0.0.1" in ran.out
    assert "--master-addr 127.0.0.1" in ran.out and "--node-rank 1 --headless" in ran.out
    ray = cli("--cluster", "pair", "export", "vllm-llama-3.3-70b-2x-spark-ray")
    assert "exec ray start --head" in ray.out and "start Ray on the first node" in ray.err


def test_the_program_of_a_typed_line_is_trusted_and_that_of_a_file_is_not(
    cli: Cli, tmp_path: Path
) -> None:
    line = f"{tmp_path}/venv/bin/vllm serve {tmp_path}/model"
    script = tmp_path / "start.sh"
    script.write_text(f"#!/bin/sh\n{line}\n")
    assert cli("import", str(script), "--name", "from-file", "--yes").code == 0
    asked = cli("start", "from-file")
    assert asked.code != 0 and "--trust" in asked.err
    typed = f"{line} --port 8123"
    assert cli("import", "--command", typed, "--name", "typed", "--yes").code == 0
    assert "--trust" not in cli("start", "typed").err  # it fails, since there is no such program
