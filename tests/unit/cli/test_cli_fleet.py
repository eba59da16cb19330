"""Which hosts `workbench fleet` reads: those named, those of a cluster, those of hosts.toml."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.cli.parser import parse_command_line
from workbench.model.errors import InputError
from workbench.session.fleet.fleet import fleet_host_names_and_labels

HOSTS = """
[hosts.spark-01]
label = "left"
[hosts.spark-02]
ssh = "other-name"
[clusters.sparks]
nodes = ["spark-01", {host = "spark-02", address = "10.0.0.2"}]
"""


@pytest.fixture
def written() -> None:
    path = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "hosts.toml")
    path.parent.mkdir(parents=True)
    path.write_text(HOSTS)


def test_without_names_it_is_hosts_toml_with_its_labels(written: None) -> None:
    assert fleet_host_names_and_labels([], None) == (["spark-01", "spark-02"], {"spark-01": "left"})
    assert fleet_host_names_and_labels(["sim:gb10", "spark-02"], None)[0] == [
        "sim:gb10",
        "spark-02",
    ]
    assert fleet_host_names_and_labels([], "sparks")[0] == ["spark-01", "spark-02"]
    with pytest.raises(InputError, match="has no cluster 'nothing'"):
        fleet_host_names_and_labels([], "nothing")


def test_without_hosts_toml_it_is_this_machine_and_the_ssh_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "local" in fleet_host_names_and_labels([], None)[0] and not [
        n for n in fleet_host_names_and_labels([], None)[0] if n.startswith("sim:")
    ]


@pytest.mark.parametrize("before", ["--host gpu-box", "--simulate gb10", "--container podman:vllm"])
def test_one_host_given_as_for_other_commands_is_refused(before: str) -> None:
    arguments = parse_command_line([*before.split(), "fleet"])
    with pytest.raises(InputError, match="takes its hosts as arguments"):
        arguments.handler(arguments)
