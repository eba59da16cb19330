"""Tests of names, quoting, known_hosts, facts and the fake host, which need hardly any process."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_host import Call, FakeHost, FakeStream

from workbench.hosts import host_facts, known_hosts, shell_scripts, ssh_names
from workbench.hosts.base import (
    CommandFailed,
    CommandNotFound,
    Completed,
    FileError,
    Host,
    HostUnreachable,
)
from workbench.hosts.line_splitter import LINE_MAX_BYTES, split_lines
from workbench.hosts.reconnecting_link import LinkEvent
from workbench.model.errors import InputError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)


@settings(max_examples=40)
@given(st.lists(TEXT, min_size=1, max_size=3), TEXT)
def test_arguments_and_variables_arrive_as_they_are(words: list[str], value: str) -> None:
    """Through the line that only sh reads; the rest of stdin goes to the command."""
    order = shell_scripts.shell_command_line(
        ["sh", "-c", 'printf "%s|" "$A" "$@"; cat', "sh", *words], {"A": value}
    )
    assert order.count(b"\n") == 1
    done = subprocess.run(
        ["sh", "-c", shell_scripts.LINE], input=order + b"rest\n", capture_output=True, check=True
    )
    expected = "".join(f"{text}|" for text in (value, *words)) + "rest\n"
    assert done.stdout == os.fsencode(f"{shell_scripts.MARK}\n{expected}")


def test_the_line_for_the_login_shell_means_the_same_in_every_shell() -> None:
    """csh allows no newline within quotes and expands "!" there; fish interprets a backslash there."""
    assert not set(shell_scripts.LINE) & set("\n!\\`")


@pytest.mark.parametrize(
    "env", [{"A B": ""}, {"1A": ""}, {"A=B": ""}, {"": ""}, {"A": "nul\0"}, {"A;id": ""}]
)
def test_names_that_no_shell_variable_can_have_are_rejected(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="environment"):
        shell_scripts.shell_command_line(["true"], env)


@pytest.mark.parametrize(
    "name", ["box", "box.example.org", "me@box", "10.0.0.1", "fe80::1%eth0", "gpu_1", "a.b@c-d"]
)
def test_host_names(name: str) -> None:
    assert ssh_names.require_host_name(name) == name


@given(st.text(max_size=30))
def test_a_host_name_is_never_an_option_nor_shell_text(text: str) -> None:
    try:
        assert ssh_names.require_host_name(text) == text
    except InputError:
        return
    assert not text.startswith("-")
    assert not text.rpartition("@")[2].startswith("-")
    assert not set(text) & set(" \t\n'\"\\$`;&|<>(){}[]*?!#~/,=")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jump", ("jump", {})),
        ("me@jump:2222", ("jump", {"username": "me", "port": 2222})),
        ("[fe80::1]:22", ("fe80::1", {"port": 22})),
        ("fe80::1", ("fe80::1", {})),
        ("ssh://a@b", ("b", {"username": "a"})),
    ],
)
def test_jump_hosts(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert ssh_names.parse_jump_host_and_options(text) == expected


def test_a_key_is_added_to_known_hosts_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    known_hosts.append_line(str(file), "a ssh-ed25519 AAAA")
    file.write_text(file.read_text() + "b ssh-ed25519 BBBB")  # somebody's editor left no newline
    known_hosts.append_line(str(file), "c ssh-ed25519 CCCC")
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["a", "b", "c"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("said", "container", "virtualization"),
    [
        ("arch=x86_64\ncpu_hypervisor=yes\ndmi_vendor=VMware, Inc.", None, "vmware"),
        ("arch=x86_64\ncpu_hypervisor=yes\ndmi_vendor=QEMU", None, "kvm"),
        ("arch=x86_64\ncpu_hypervisor=yes", None, "vm-other"),
        ("arch=x86_64\ndmi_vendor=ASUS", None, "none"),
        ("arch=aarch64", None, None),
        ("arch=aarch64\ndmi_vendor=NVIDIA\ndmi_product=NVIDIA_DGX_Spark", None, "none"),
        ("detect_container=lxc\ndetect_vm=none", "lxc", "none"),
        ("detect_container=none\ndetect_vm=vmware\ncontainer_file=docker", "docker", "vmware"),
        ("container_manager=podman\nhypervisor_type=xen", "podman", "xen"),
    ],
)
def test_containers_and_hypervisors(
    said: str, container: str | None, virtualization: str | None
) -> None:
    found = host_facts.parse_host_facts(said, "box", "ssh")
    assert (found.container, found.virtualization) == (container, virtualization)


def test_facts_that_are_missing_stay_unknown() -> None:
    found = host_facts.parse_host_facts(
        "uid=1000\nuid_map=         0     100000      65536\n\ngarbage", "box", "ssh"
    )
    assert (found.uid, found.initial_user_namespace) == (1000, False)
    assert (found.user, found.memory_total_bytes, found.boot_id, found.path) == (
        None,
        None,
        None,
        (),
    )
    assert (
        host_facts.parse_host_facts("uid_map=0 0 4294967295", "box", "ssh").initial_user_namespace
        is True
    )
    assert host_facts.parse_host_facts("", "box", "ssh").initial_user_namespace is None


@given(st.lists(st.binary(max_size=30)))
def test_lines_do_not_depend_on_how_the_bytes_came(pieces: list[bytes]) -> None:
    async def main() -> list[bytes]:
        return [line async for line in split_lines(FakeStream(pieces).chunks())]

    whole = b"".join(pieces)
    assert asyncio.run(main()) == (whole.removesuffix(b"\n").split(b"\n") if whole else [])


def test_a_line_without_an_end_is_given_in_pieces() -> None:
    async def main() -> list[bytes]:
        return [line async for line in split_lines(FakeStream([b"x" * 600_000] * 4).chunks())]

    lines = asyncio.run(main())
    assert max(len(line) for line in lines) <= LINE_MAX_BYTES + 600_000
    assert b"".join(lines) == b"x" * 2_400_000


def answer(call: Call) -> Any:
    return {
        "text": "out\n",
        "code": 3,
        "bytes": b"a\nb\n",
        "error": CommandNotFound("error"),
        "whole": Completed(call.argv, 1, b"", b"why\n"),
        "pieces": [b"a", b"b\n"],
    }[call.argv[0]]


def test_fake_host_answers_by_its_handler_and_records_calls() -> None:
    async def main() -> None:
        host = FakeHost(answer)
        assert isinstance(host, Host)
        assert (await host.run(["text"], env={"A": "1"})).out == "out\n"
        assert (await host.run(["code"])).returncode == 3
        assert [line async for line in (await host.stream(["pieces"])).lines()] == [b"ab"]
        with pytest.raises(CommandNotFound):
            await host.run(["error"])
        with pytest.raises(CommandFailed, match="why"):
            await host.run(["whole"], check=True)
        assert host.calls[0] == Call(("text",), b"", {"A": "1"})
        await host.write_file("/a", b"0123")
        assert await host.read_file("/a", offset=1, limit=2) == b"12"
        with pytest.raises(FileError):
            await host.read_file("/b")

    asyncio.run(main())


def test_fake_host_can_lose_its_link() -> None:
    async def main() -> None:
        events: list[LinkEvent] = []
        host = FakeHost(lambda call: FakeStream([b"a\n"], open_ended=True))
        host.on_link(events.append)
        lines = (await host.stream(["x"])).lines()
        assert await anext(lines) == b"a"
        host.link(False)
        with pytest.raises(HostUnreachable):
            await anext(lines)
        with pytest.raises(HostUnreachable):
            await host.run(["x"])
        host.link(True)
        await host.connect()
        assert [e.connected for e in events] == [False, True]

    asyncio.run(main())


def test_host_lines_are_read_as_ssh_reads_them(tmp_path: Path) -> None:
    """A tab after the keyword hid the host, and the words of a comment counted as hosts."""
    config = tmp_path / "config"
    config.write_text(
        "Host\ttabbed\n"
        "\tHOST  one   two # the box under the desk\n"
        "Host=equal\nHost = spaced\n"
        'Host "quoted" next#door\n'
        "Host .host ..\n"
        "# Host commented\n"
        "HostName other\n"
        'Host "open\n'
        "Host # nothing\n"
    )
    names = ["tabbed", "one", "two", "equal", "spaced", "quoted", ".host"]
    assert ssh_names.list_host_aliases(config) == names


def test_files_are_included_as_ssh_includes_them(tmp_path: Path) -> None:
    """A wildcard for a directory was not followed, and a file below a `Host` line counted always."""
    config = tmp_path / "config"
    files = {
        "config": f"Include {tmp_path}/*/hosts {tmp_path}/parts/*.conf\n"
        "Include ~nobody-here/config\n"
        f"Host gpu-* !gpu-9 build\n  Include {tmp_path}/lab\n",
        "work/hosts": f"Include {tmp_path}/more\nHost first\n",
        "more": "Host second\n",
        "parts/a.conf": "Host third\n",
        "parts/.b.conf": "Host hidden\n",
        "lab": "Host gpu-1 gpu-9 elsewhere\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    names = ["second", "first", "third", "build", "gpu-1"]
    assert ssh_names.list_host_aliases(config) == names
    assert _names_that_ssh_knows(config, [*names, "hidden", "gpu-9", "elsewhere"]) == names


def test_files_are_relative_to_that_of_the_user_and_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "config").write_text("Include work/hosts\n")
    (tmp_path / "work" / "hosts").write_text("Include more config\n")
    (tmp_path / "work" / "more").write_text("Host wrong-directory\n")
    (tmp_path / "more").write_text("Host right\n")
    assert ssh_names.list_host_aliases(tmp_path / "config") == ["right"]


def _names_that_ssh_knows(config: Path, names: list[str]) -> list[str]:
    """Return those of `names` for which ssh finds a `Host` line with the same text."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    known = []
    for name in names:
        told = subprocess.run(
            ["ssh", "-v", "-G", "-F", config, name], capture_output=True, text=True, check=True
        )
        if f"Applying options for {name}\n" in told.stderr.replace("\r", ""):
            known.append(name)
    return known


def test_a_pattern_of_the_configuration_knows_the_names_that_ssh_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu-? !gpu-9\nHost [ab]\nHost *\n")
    monkeypatch.setattr(ssh_names, "_name_resolves", lambda host: False)
    known = [name for name in ("gpu-1", "gpu-9", "a", "other") if ssh_names.can_find_ssh_name(name)]
    assert known == ["gpu-1"]
