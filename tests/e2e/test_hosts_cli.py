"""The commands `hosts` on hosts behind a real sshd, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sshd import Sshd, free_port, sshd

WORKBENCH = [sys.executable, "-m", "workbench"]


class User:
    """A user with a HOME, an ssh configuration and a hosts.toml."""

    def __init__(self, directory: Path, server: Sshd) -> None:
        self.home = directory / "user"
        (self.home / ".ssh").mkdir(parents=True)
        dead = f"Host dead\n  HostName 127.0.0.1\n  Port {free_port()}\n"
        (self.home / ".ssh" / "config").write_text(server.stanza() + server.stanza("other") + dead)
        self.file = self.home / ".config" / "workbench" / "hosts.toml"
        self.env = {
            **os.environ,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
        }

    def runs(self, *words: str, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [*WORKBENCH, *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout, done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.runs("--json", *words, code=code)[0])


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with sshd(tmp_path / "ssh") as server:
        yield User(tmp_path, server)


@pytest.mark.slow
def test_a_host_is_added_listed_shown_checked_and_used(user: User, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    given = [
        "--ssh",
        "box",
        "--label",
        "the rack",
        "--env",
        "HF_TOKEN=hf_0123456789abcdefgh",
        "--env",
        "A_B=1",
    ]
    user.runs(
        "hosts",
        "add",
        "gpu",
        *given,
        "--models",
        str(models),
        "--models",
        "/no/such/place",
        "--no-sudo",
    )
    assert "already has a host gpu" in user.runs("hosts", "add", "gpu", code=2)[1]
    listed = {host["name"]: host for host in user.json("hosts", "list")["hosts"]}
    assert (listed["gpu"]["source"], listed["gpu"]["label"], listed["gpu"]["way"]) == (
        "hosts.toml",
        "the rack",
        "box",
    )
    assert listed["other"]["source"] == "ssh config"

    shown, _ = user.runs("hosts", "show", "gpu")
    assert (
        "@127.0.0.1:" in shown
        and "HF_TOKEN=***" in shown
        and "hf_0123" not in shown
        and "is not used" in shown
    )
    assert "did you mean gpu?" in user.runs("hosts", "show", "gpuu", code=2)[1]

    check = user.json("hosts", "check", "gpu")["hosts"][0]
    lines = dict(check["lines"])
    assert check["ok"] and lines["reached"].startswith("as ") and "python3 3" in lines["reached"]
    assert lines["models"] == str(models) and lines["sudo"] == (
        "not used: hosts.toml says sudo = false"
    )
    assert check["clock_skew_s"] == 0.0
    assert [f["code"] for f in check["findings"] if f["level"] == "warn"] == ["host.models"]

    plan = user.json("--host", "gpu", "plan", "vllm-any", "--var", "model=org/tiny")
    assert plan["env"]["HF_TOKEN"] == "***" and plan["env"]["A_B"] == "1"
    assert any(f["code"] == "host.env" for f in plan["findings"])


@pytest.mark.long
@pytest.mark.slow
def test_a_host_that_does_not_answer_costs_the_others_nothing(user: User) -> None:
    user.file.parent.mkdir(parents=True)
    user.file.write_text(
        '[hosts.gpu]\nssh = "box"\nrun_as = "systemd"\n[hosts.dead]\n[hosts.wrong]\nssh = 1\n'
        '[clusters.pair]\nnodes = ["gpu", "dead"]\n'
    )
    out, err = user.runs(
        "hosts", "check", "gpu", "dead", "wrong", "other", "--timeout", "20", code=1
    )
    assert "hosts.toml:6: hosts.wrong.ssh: text is expected" in err
    assert (
        "dead: cannot be used" in out and "other: ok" in out and ("2 of 4 hosts can be used") in out
    )
    assert "start as systemd (" in out
    assert user.json("--cluster", "pair", "servers")["servers"] == []
    assert "did you mean gpu?" in user.runs("--host", "gpu2", "servers", code=1)[1]


@pytest.mark.slow
def test_a_state_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with sshd(tmp_path / "ssh", environment={"XDG_STATE_HOME": f"{blocked}/x"}) as server:
        found = User(tmp_path, server).json("hosts", "check", "box", code=1)["hosts"][0]
    (finding,) = [f for f in found["findings"] if f["level"] == "error"]
    assert finding["code"] == "host.state-dir" and "XDG_STATE_HOME" in finding["fix"]


@pytest.mark.slow
def test_a_simulated_host_is_checked_without_an_entry(cli: Callable[..., Any]) -> None:
    """`--simulate` was ignored where no name was given: "hosts.toml names no host"."""
    (check,) = cli("--simulate", "four-pcie", "hosts", "check", "--json").document["hosts"]
    assert check["name"] == "sim:four-pcie" and dict(check["lines"])["GPUs"].startswith(
        "4 x NVIDIA A100"
    )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="says what root needs")
def test_root_needs_no_sudo(cli: Callable[..., Any]) -> None:
    said = cli("hosts", "check", "local").out
    assert "sudo     not needed: the login is root" in said, said
