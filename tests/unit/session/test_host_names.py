"""Names of hosts: hosts.toml first, then ssh; containers on them; and what hosts.toml says in a
plan."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from workbench.cli.open_session import read_selected_host_name
from workbench.cli.parser import parse_command_line
from workbench.gpu.settings.rights import Rights
from workbench.hosts import ssh_names
from workbench.hosts.container import ContainerHost
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.model.errors import InputError
from workbench.model.flags import Origin
from workbench.session.gpu import rights as gpu_rights
from workbench.session.hosts import names as host_names
from workbench.session.session import Session
from workbench.store import paths

HOSTS = """\
[hosts.local]
env = { HF_HOME = "/data/hf", VLLM_LOGGING_LEVEL = "DEBUG", HF_TOKEN = "hf_abcdefghijklmnopqrst" }
engines = { vllm = "/opt/v/bin/vllm" }
sudo = false

[hosts.spark-01]
ssh = "nvidia@10.0.0.1"
label = "left Spark"
env = { NCCL_IB_HCA = "rocep1s0f0" }
run_as = "systemd"
run_options = { scope = "system" }

[hosts.again]
ssh = "spark-01"

[hosts.desk]
ssh = "local"

[hosts.box]

[hosts.llm]
ssh = "spark-01"
container = "pct:101"

[hosts.wrong]
ssh = 1

[clusters.sparks]
nodes = ["spark-01", "spark-02"]
"""
PRESET = """schema = 1
id = "mine"
title = "Mine"
summary = "A small preset."
[hardware]
count = 1
[engine]
name = "vllm"
[model]
id = "org/tiny"
[env]
VLLM_LOGGING_LEVEL = "WARN"
[provenance]
document = "none"
status = "untested"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ssh_names, "_name_resolves", lambda host: False)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host box gpu-box\n  HostName 192.0.2.1\n")
    paths.hosts_file().parent.mkdir(parents=True)
    paths.hosts_file().write_text(HOSTS)
    paths.own_presets_dir().mkdir()
    (paths.own_presets_dir() / "mine.toml").write_text(PRESET)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("spark-01", "nvidia@10.0.0.1"),
        ("again", "nvidia@10.0.0.1"),
        ("box", "box"),
        ("gpu-box", "gpu-box"),
    ],
)
def test_a_name_is_looked_up_in_hosts_toml_first(name: str, address: str) -> None:
    host = host_names.open_host_by_name(name)
    assert isinstance(host, SshHost) and (host.name, host.address) == (name, address)


def test_this_machine_has_a_name_of_its_own() -> None:
    host = host_names.open_host_by_name("desk")
    assert isinstance(host, LocalHost) and (host.name, host.is_local) == ("desk", True)
    assert host_names.open_host_by_name(None).name == "local"


@pytest.mark.parametrize(
    ("name", "inner", "address"),
    [
        ("llm", "spark-01", "nvidia@10.0.0.1"),
        ("spark-01/pct:101", "spark-01", "nvidia@10.0.0.1"),
        ("gpu-box/pct:101", "gpu-box", "gpu-box"),
        ("llm/podman:x", "llm", None),
        ("podman:x", "local", None),
    ],
)
def test_a_container_is_opened_on_the_machine_around_it(
    name: str, inner: str, address: str | None
) -> None:
    host = host_names.open_host_by_name(name)
    assert isinstance(host, ContainerHost) and host.name == name and host.inner.name == inner
    assert getattr(host.inner, "address", None) == address and host_names.is_host_name_resolvable(
        name
    )


def test_a_host_that_cannot_be_used_is_not_another_machine() -> None:
    with pytest.raises(InputError, match="the host wrong cannot be used"):
        host_names.open_host_by_name("wrong")
    with pytest.raises(InputError, match="the host wrong cannot be used"):
        parse_command_line(["wrong"])


def test_all_names_are_listed_with_their_sources() -> None:
    listed = {host.name: host for host in host_names.known_non_simulated_hosts()}
    assert list(listed) == ["local", "spark-01", "again", "desk", "box", "llm", "gpu-box"]
    assert listed["spark-01"] == host_names.KnownHost(
        "spark-01", "hosts.toml", "left Spark", "nvidia@10.0.0.1"
    )
    assert (listed["box"].source, listed["gpu-box"].source) == ("hosts.toml", "ssh config")
    assert (host_names.nearest_known_name("sprak-01"), host_names.nearest_known_name("zzz")) == (
        "spark-01",
        None,
    )
    assert host_names.is_host_name_resolvable("desk") and not host_names.is_host_name_resolvable(
        "nowhere"
    )


def named(*words: str) -> str | None:
    return read_selected_host_name(parse_command_line([*words, "servers"]))


def test_the_command_line_names_hosts_containers_and_clusters() -> None:
    assert (named(), named("--host", "box"), named("--cluster", "sparks")) == (
        None,
        "box",
        "cluster:sparks",
    )
    assert parse_command_line(["servers", "--cluster=sparks"]).cluster == "sparks"
    assert parse_command_line(["--cluster", "sparks"]).command == "screen"
    assert parse_command_line(["spark-01"]).target == "spark-01"
    with pytest.raises(InputError) as unknown:
        host_names.open_host_by_name("cluster:spark")
    assert unknown.value.next_step == "did you mean sparks?"
    assert (named("--container", "podman:x"), named("--host", "box", "--container", "pct:101")) == (
        "podman:x",
        "box/pct:101",
    )
    with pytest.raises(InputError, match="does not name a container") as mistyped:
        named("--container", "podmn:x")
    assert str(mistyped.value.next_step).startswith("did you mean podman?")
    with pytest.raises(InputError, match="--host and --cluster are both given"):
        named("--cluster", "sparks", "--host", "box")


def test_a_mistyped_host_is_suggested() -> None:
    with pytest.raises(InputError, match="Did you mean `workbench spark-01`"):
        parse_command_line(["sprak-01"])


def plan_of(session: Session, preset: str = "mine"):  # type: ignore[no-untyped-def]
    session.plans.edit_plan(session.presets.make_plan(preset), preset)
    return session.plans.editor.plan


def test_hosts_toml_counts_in_a_plan_where_the_preset_says_nothing() -> None:
    session = Session.of_host()
    plan = plan_of(session)
    env = {setting.name: (setting.value, setting.origin) for setting in plan.env}
    assert env["HF_HOME"] == ("/data/hf", Origin.HOST) and env["VLLM_LOGGING_LEVEL"] == (
        "WARN",
        Origin.PRESET,
    )
    assert (plan.executable, plan.executable_from) == (("/opt/v/bin/vllm",), "hosts.toml")
    view = session.plans.view()
    texts = " ".join(finding.text for finding in view.findings)
    assert (
        "hosts.toml sets the environment variables HF_HOME, HF_TOKEN for servers on local"
    ) in texts
    assert "the plan's own value of VLLM_LOGGING_LEVEL is used, not DEBUG of hosts.toml" in texts
    assert "/opt/v/bin/vllm, which hosts.toml names for this host" in texts
    assert view.command and view.command.env["HF_TOKEN"] == "***" and "hf_abc" not in repr(view)
    assert session.plans.editor.launch_command().env["HF_TOKEN"] == "hf_abcdefghijklmnopqrst"
    assert not session.plans.untrusted_findings()  # the user wrote hosts.toml
    assert view.edit_count == 0


def test_a_choice_kept_on_the_screen_counts_before_hosts_toml() -> None:
    session = Session.of_host()
    session._config.set(("executables", "local", "vllm"), "/usr/bin/vllm")
    assert plan_of(session).executable_from == "config.toml"


def test_a_saved_preset_has_nothing_of_the_host() -> None:
    session = Session.of_host()
    plan_of(session)
    file = asyncio.run(session.plans.write_preset_file("saved", "Saved"))
    text = Path(file).read_text()
    assert "HF_HOME" not in text and "hf_abc" not in text and "VLLM_LOGGING_LEVEL" in text


def test_a_saved_plan_is_that_of_its_preset_and_has_no_changes() -> None:
    session = Session.of_host()
    plan_of(session)
    session.plans.editor.set_flag("port", "9001")
    assert session.plans.view().edit_count == 1
    asyncio.run(session.plans.write_preset_file("my-tiny", "My tiny"))
    view = session.plans.view()
    assert (view.plan.preset_id, view.title, view.edit_count) == ("my-tiny", "My tiny", 0)
    assert view.plan.flag("port") == 9001


def test_a_plan_taken_to_another_host_follows_that_hosts_entry() -> None:
    session = Session.of_host()
    plan_of(session)
    session.plans.editor.set_env("OWN", "1")
    session.core.host = host_names.open_host_by_name("spark-01")
    session.plans.adapt_plan_to_new_host()
    editor = session.plans.editor
    assert [setting.name for setting in editor.plan.env] == [
        "VLLM_LOGGING_LEVEL",
        "OWN",
        "NCCL_IB_HCA",
    ]
    assert (editor.plan.executable, editor.plan.run_as, dict(editor.plan.run_options)) == (
        (),
        "systemd",
        {"scope": "system"},
    )
    assert session.plans.view().edit_count == 1
    editor.undo()
    assert [setting.name for setting in editor.plan.env] == ["VLLM_LOGGING_LEVEL", "NCCL_IB_HCA"]
    session.core.host = host_names.open_host_by_name("box")
    session.plans.adapt_plan_to_new_host()
    assert (editor.plan.run_as, dict(editor.plan.run_options)) == ("process", {})
    assert [setting.name for setting in editor.plan.env] == ["VLLM_LOGGING_LEVEL"]


def test_sudo_is_not_used_where_hosts_toml_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_rights(host: object) -> Rights:
        return Rights(prefix=("sudo", "-n"), by_sudoers=True, unasked=True, user="me")

    monkeypatch.setattr(gpu_rights, "read_rights", read_rights)
    rights = asyncio.run(Session.of_host().gpu.rights.load_rights())
    assert rights.refusal == "hosts.toml says sudo = false for local" and not rights.prefix
    session = Session.of_host("box")
    assert asyncio.run(session.gpu.rights.load_rights()).prefix == ("sudo", "-n")


def test_the_namespace_has_the_hosts_options() -> None:
    space: argparse.Namespace = parse_command_line(["--container", "podman:x", "servers"])
    assert (space.container, space.cluster) == ("podman:x", None)


def test_containers_in_containers_have_an_end() -> None:
    deep = "/".join(["podman:a"] * 2000)
    for ask in (host_names.is_host_name_resolvable, host_names.open_host_by_name):
        with pytest.raises(InputError, match="more than 8 nested containers"):
            ask(deep)


def test_every_part_of_a_session_knows_where_sudo_is_forbidden() -> None:
    with paths.hosts_file().open("a") as file:
        file.write('[hosts.kept]\nssh = "desk"\nsudo = false\n[hosts.through]\nssh = "kept"\n')
    allowed = {
        name: host_names.open_host_by_name(name).may_sudo
        for name in (None, "desk", "kept", "through", "box")
    }
    assert allowed == {None: False, "desk": False, "kept": False, "through": False, "box": True}
    assert host_names.open_host_by_name("kept", "four-pcie").may_sudo is False


@pytest.mark.parametrize("name", ["pbs:4711", "gpu-box/pbs:4711.pbs01"])
def test_a_job_of_pbs_is_no_host(name: str) -> None:
    with pytest.raises(InputError, match="PBS has no command that enters a job") as refused:
        host_names.open_host_by_name(name)
    assert "--as pbs" in (refused.value.next_step or "")


def test_the_name_of_a_simulated_driver_on_a_host_leads_back_to_it() -> None:
    """The fleet of `workbench --simulate four-pcie gpu-box`, and a stored experiment there, could
    not open the host: "'gpu-box/sim:four-pcie' is not a valid host name"."""
    name = host_names.open_host_by_name("gpu-box", "four-pcie@2").name
    again = host_names.open_host_by_name(name)
    assert (again.name, again.kind, again.simulated) == (name, "ssh", "four-pcie")
