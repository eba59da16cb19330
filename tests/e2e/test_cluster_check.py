"""`cluster check` on two hosts, each behind a real sshd of its own and with other answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ssh_box import driver_environment
from support.sshd import Sshd, sshd

pytestmark = pytest.mark.slow


class Pair:
    """A HOME with the ssh configuration and the hosts.toml of a cluster of two hosts."""

    def __init__(self, directory: Path, one: Sshd, two: Sshd) -> None:
        self.home = directory / "person"
        (self.home / ".ssh").mkdir(parents=True)
        known = self.home / ".ssh" / "known_hosts"
        known.write_bytes(one.known_hosts_path.read_bytes() + two.known_hosts_path.read_bytes())
        stanzas = (
            s.stanza(name, UserKnownHostsFile=str(known))
            for name, s in (("node-1", one), ("node-2", two))
        )
        (self.home / ".ssh" / "config").write_text("".join(stanzas))
        folders = {
            f"XDG_{name}_HOME": str(self.home / name.lower())
            for name in ("STATE", "DATA", "CONFIG", "CACHE")
        }
        self.env = {**os.environ, "HOME": str(self.home), **folders}

    def check(self, nodes: str, *words: str) -> tuple[int, Any]:
        """Return (exit code, JSON) of the check of a cluster with these nodes."""
        done = self.run(nodes, "--json", "cluster", "check", "pair", *words)
        return done.returncode, json.loads(done.stdout)

    def run(self, nodes: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Workbench with `words` and with a cluster "pair" of these nodes."""
        file = Path(self.env["XDG_CONFIG_HOME"]) / "workbench" / "hosts.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"[clusters.pair]\nreserve_gib = 4\nnodes = [{nodes}]\n")
        argv = [sys.executable, "-m", "workbench", *words]
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert "Traceback" not in done.stderr and "defect" not in done.stderr, done.stderr
        return done


NODES = '{host = "node-1", address = "127.0.0.2"}, {host = "node-2", address = "127.0.0.3"}'


@contextlib.contextmanager
def pair_of(directory: Path, second: dict[str, str], profile: str = "gb10") -> Iterator[Pair]:
    """Run the two hosts; `second` is added to the environment of the second host's logins."""
    environments = []
    for number, name in ((1, "gb10"), (2, profile)):
        (directory / str(number)).mkdir(parents=True)
        environments.append(driver_environment(directory / str(number), name))
    with (
        sshd(directory / "ssh-1", environment=environments[0]) as one,
        sshd(directory / "ssh-2", environment={**environments[1], **second}) as two,
    ):
        yield Pair(directory, one, two)


def codes(found: Any) -> set[str]:
    # of this machine
    return {f["code"].removeprefix("cluster.") for f in found["findings"]} - {"name-loopback"}


def test_two_nodes_reach_each_other_and_are_alike(tmp_path: Path) -> None:
    with pair_of(tmp_path, {}) as pair:
        code, found = pair.check(NODES)
    assert (code, codes(found)) == (0, set())
    assert [(c["source"], c["target"], c["address"]) for c in found["connections"]] == [
        ("node-1", "node-2", "127.0.0.3"),
        ("node-2", "node-1", "127.0.0.2"),
    ]
    assert all(c["ms"] is not None and c["problem"] is None for c in found["connections"])
    assert all(
        abs(node["clock_ahead_s"]) < 0.5 and node["driver"] == "580.95.05"
        for node in found["nodes"]
    )


def test_a_node_without_python3_and_with_other_gpus(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in (p for place in ("/bin", "/usr/bin") for p in Path(place).iterdir()):
        if not program.name.startswith("python") and not (tools / program.name).exists():
            (tools / program.name).symlink_to(program)
    path = driver_environment(tmp_path, "gb10")["PATH"].partition(":")[0]
    with pair_of(tmp_path, {"PATH": f"{path}:{tools}"}, "rtx-pro-6000") as pair:
        code, found = pair.check(NODES)
    assert codes(found) - {"unequal-driver"} == {"unlooked", "unequal-gpus"}
    assert code == 0
    unlooked = next(f for f in found["findings"] if f["code"] == "cluster.unlooked")
    assert "python3" in unlooked["text"] and unlooked["fix"] == "install python3 on node-2"


def test_leftovers_and_a_taken_port(tmp_path: Path) -> None:
    with pair_of(tmp_path, {}) as pair, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        left = {**os.environ, **driver_environment(tmp_path / "2", "gb10")}
        argv = [sys.executable, "-c", "import sys; sys.stdin.read()", "vllm serve some/model"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, env=left) as process:
            code, found = pair.check(NODES, "vllm-any", "--set", f"port={port}")
            process.communicate()
    assert code == 1 and {"left-engines", "port-taken"} <= codes(found)
    engines = next(f for f in found["findings"] if f["code"] == "cluster.left-engines")
    assert (
        "on node-2 1 process of an engine still lives" in engines["text"]
        and str(process.pid) in engines["evidence"]
    )
    taken = next(f for f in found["findings"] if f["code"] == "cluster.port-taken")
    assert f"on node-1 other programs listen on port {port}" in taken["text"]


@pytest.mark.long
def test_an_address_of_no_interface_and_a_node_that_is_gone(tmp_path: Path) -> None:
    with pair_of(tmp_path, {}) as pair:
        code, found = pair.check(
            '{host = "node-1", address = "127.0.0.2"}, {host = "node-2", address = "203.0.113.9"}'
        )
        assert code == 1 and {"address-foreign", "connection"} <= codes(found)
        text = next(f["text"] for f in found["findings"] if f["code"] == "cluster.connection")
        assert "node-1 cannot connect to 203.0.113.9 of node-2: node-2 cannot listen there" in text
        config = pair.home / ".ssh" / "config"
        config.write_text(config.read_text().replace("Host node-2", "Host node-3"))
        code, found = pair.check(
            '{host = "node-1", address = "127.0.0.2"}, {host = "127.0.0.1", address = "127.0.0.3"}'
        )
        assert code == 1 and "unreached" in codes(found)


@pytest.mark.long
def test_every_command_names_the_node_that_is_down(tmp_path: Path) -> None:
    preset = "vllm-llama-3.3-70b-2x-spark"
    nodes = '{host = "node-1"}, {host = "node-2"}'
    with pair_of(tmp_path, {}) as pair:
        config = pair.home / ".ssh" / "config"
        config.write_text(config.read_text().replace("Host node-2", "Host node-3"))
        for words in (
            ("cluster", "start", "pair", preset),
            ("--cluster", "pair", "plan", preset),
            ("--cluster", "pair", "start", preset),
        ):
            done = pair.run(nodes, *words)
            first = done.stderr.splitlines()[0]
            assert done.returncode and "node-2" in first and "cannot be reached" in first, done
            assert "head_ip" not in done.stderr
        for words in (
            ("--cluster", "pair", "servers"),
            ("cluster", "status", "pair"),
            ("cluster", "stop", "pair"),
            ("--cluster", "pair", "stop", "20261122-200000-vllm-abcd"),
            ("--cluster", "pair", "gpu", "status"),
            ("--cluster", "pair", "doctor"),
        ):
            done = pair.run(nodes, *words)
            assert done.stderr.startswith("warning: node node-2 cannot be reached"), (words, done)
            assert "on this host" not in done.stderr and "on this cluster" not in done.stderr
        code, found = pair.check(nodes, preset)
    assert code == 1 and found["findings"][0]["code"] == "cluster.unreached"


def test_an_error_of_the_check_is_an_error_of_the_start(tmp_path: Path) -> None:
    nodes = '{host = "node-1", address = "127.0.0.2"}, {host = "node-2", address = "203.0.113.9"}'
    with pair_of(tmp_path, {}) as pair:
        sets = ("--set", "tensor-parallel-size=2", "--set", "gpu-memory-utilization=0.8")
        words = ("cluster", "start", "pair", "vllm-any", "--var", "model=org/model", *sets)
        done = pair.run(nodes, *words)
    assert done.returncode == 1
    assert "node-2 does not have the address 203.0.113.9" in done.stderr, done.stderr
    assert "workbench cluster check pair vllm-any" in done.stderr
