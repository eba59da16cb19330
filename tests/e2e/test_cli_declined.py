"""Every command that asks a question is answered with no."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT
from support.ended_runs import make_ended
from support.serving import free_port

from workbench.cli.questions import Declined
from workbench.model.watch import Watch
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.store import paths
from workbench.store.watches import WatchStore

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
# the modules of workbench/cli that ask, and the test of each
IN_THIS_FILE = {
    "bisect.py",
    "experiments.py",
    "gpu_settings.py",
    "gpu_sweep.py",
    "preset_apply.py",
    "quality.py",
    "recipes.py",
    "runs.py",
    "servers.py",
    "sweeps.py",
    "tune.py",
    "watch.py",
}
BY_SSH = {"open_session.py"}  # test_ssh_cli.py asks about host keys


class Typing(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def declined(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command whose question is answered with `answer`, and check how it ends."""

    def run(*words: str, answer: str = "n\n") -> Any:
        monkeypatch.setattr("sys.stdin", Typing(answer))
        ran = cli(*words)
        assert "[y/N]" in ran.err, (words, ran)
        assert ran.code == 1 and Declined().message in ran.err, (words, ran)
        assert ran.err.count("nothing was done") == 1
        return ran

    return run


def test_this_file_knows_every_command_that_asks() -> None:
    asks = re.compile(r"\b(require_confirmation|require_yes_answer)\(")
    sources = Path(ROOT, "workbench", "cli").glob("*.py")
    asking = {source.name for source in sources if asks.search(source.read_text())}
    calls_the_guard = {"questions.py"}
    assert asking - calls_the_guard == IN_THIS_FILE | BY_SSH


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yess\n"])
def test_any_answer_but_yes_declines(
    declined: Callable[..., Any], answer: str, clean_environment: None
) -> None:
    recipe = ("import", "--command", "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 64")
    declined(*recipe, "--name", "mine", answer=answer)
    assert not list(paths.config_dir().rglob("mine*"))


def test_runs_are_kept_if_the_user_declines(
    declined: Callable[..., Any], clean_environment: None
) -> None:
    root = paths.state_dir() / "runs"
    make_ended(root, 3, days_ago=3)
    declined("runs", "prune", "--keep", "1")
    assert len(list(root.iterdir())) == 3


def test_no_night_begins_and_no_unit_is_written_if_the_user_declines(
    declined: Callable[..., Any], clean_environment: None
) -> None:
    one = Watch(preset="vllm-any", candidate="venv:/opt/new", nightly="03:00", simulate=PRO[1])
    WatchStore(paths.watches_dir()).add(one)
    declined("watch", "run")
    declined("watch", "install")
    versions = ("venv:/opt/old", "venv:/opt/new", "--var", "model=org/m")
    declined(*PRO, "bisect", "vllm-any", *versions)
    assert not paths.bisections_dir().exists()
    assert WatchStore(paths.watches_dir()).nights() == ()
    assert not list(paths.config_dir().parent.rglob("*.timer"))


@pytest.mark.slow
def test_no_setting_is_changed_and_no_server_is_stopped_if_the_user_declines(
    cli: Cli, declined: Callable[..., Any]
) -> None:
    port = f"port={free_port()}"
    declined(*PRO, "presets", "apply", "vllm-any", "--set", port)
    declined(*PRO, "gpu", "set", "--power-limit", "400")
    started = cli(*PRO, "start", "vllm-any", "--set", port, "--wait", "--json")
    run_id = started.document["run_id"]
    declined(*PRO, "restart", run_id)
    declined(*PRO, "sweep", "vllm-any", "--set", port, "--flag", "max-num-seqs=64,128")
    declined(*PRO, "tune", "vllm-any", "--set", port)
    declined(*PRO, "gpu", "sweep", "--power-limit", "500,400", run_id)
    declined(*PRO, "experiment", run_id, "--b", "enforce-eager")
    declined(*PRO, "quality", run_id, "kv-cache-dtype=fp8")
    (server,) = cli(*PRO, "servers", "--json").document["servers"]
    assert (server["run_id"], server["state"]) == (run_id, "ready")
    directory = str(paths.state_dir() / "sim" / PRO[1] / "driver")
    assert SimState(directory, profiles.get_profile(PRO[1])).settings()[0].limit_w is None
