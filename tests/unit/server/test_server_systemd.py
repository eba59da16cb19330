"""The launcher systemd on hosts that lack something, and the texts that it shows before a start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_host import FakeHost

from workbench.hosts.local import LocalHost
from workbench.model.errors import ServerError
from workbench.model.findings import Finding, Level
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.server.launchers.launcher import Launch, LaunchedServer
from workbench.server.launchers.systemd import Systemd

OTHERS = ("sh", "id", "sed", "tail", "head", "dirname")


def launch(*options: str) -> Launch:
    plan = with_launcher_and_options(
        LaunchPlan("vllm", "org/model", preset_id="my-preset"), "systemd", options
    )
    argv = ("vllm", "serve", "org/model", "--note", 'a "b" $c %d')
    return Launch("RUN", "/state/runs/RUN", plan, argv, {"HF_TOKEN": "hf-secret-word"}, "/w", 4096)


def found(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    programs: dict[str, str],
    *options: str,
    may_sudo: bool = True,
) -> Finding:
    """Return what the launcher says of a host that has only `programs`, scripts by their names."""
    directory.mkdir()
    for name in OTHERS:
        path = next(
            place for place in (Path("/usr/bin", name), Path("/bin", name)) if place.exists()
        )
        if name not in programs:
            (directory / name).symlink_to(path)
    for name, text in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))

    async def check() -> Sequence[Finding]:
        return await Systemd("systemd").check(
            LocalHost(), replace(launch(*options), may_sudo=may_sudo)
        )

    (finding,) = asyncio.run(check())
    return finding


NEW = 'case "$*" in --version) echo "systemd 252 (252.38)";; *is-active*) exit 3;; esac'


@pytest.mark.parametrize(
    ("programs", "level", "says"),
    [
        ({}, Level.ERROR, "no systemd"),
        ({"systemctl": "echo 'systemd 219'"}, Level.ERROR, "no systemd"),
        (
            {"systemctl": "echo 'systemd 219'", "systemd-run": "", "journalctl": ""},
            Level.ERROR,
            "systemd 219 is too old: Workbench needs 236",
        ),
        (
            {
                "systemctl": 'case $* in --version) echo "systemd 252";; *) echo "No medium found" '
                ">&2; exit 1;; esac",
                "systemd-run": "",
                "journalctl": "",
            },
            Level.ERROR,
            "cannot be reached: No medium found",
        ),
        (
            {
                "systemctl": NEW,
                "systemd-run": "",
                "journalctl": "echo 'insufficient permissions' >&2; exit 1",
            },
            Level.ERROR,
            "may not read the journal of the unit: insufficient permissions",
        ),
        (
            {
                "systemctl": 'case $* in --version) echo "systemd 252";; esac',
                "systemd-run": "",
                "journalctl": "",
            },
            Level.ERROR,
            "workbench-RUN.service runs already",
        ),
        (
            {
                "systemctl": NEW,
                "systemd-run": "",
                "journalctl": "",
                "id": "[ $1 = -un ] && echo nobody-here || echo 7",
            },
            Level.WARN,
            "lingering is off for nobody-here",
        ),
    ],
)
def test_what_a_host_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    programs: dict[str, str],
    level: Level,
    says: str,
) -> None:
    if "id" in programs:
        monkeypatch.setattr(
            sys.modules[__name__], "OTHERS", tuple(name for name in OTHERS if name != "id")
        )
    finding = found(monkeypatch, tmp_path / "bin", programs)
    assert finding.level is level
    assert says in finding.text
    assert finding.fix


def test_the_command_names_no_value_of_the_environment() -> None:
    command = Systemd("systemd").command(launch("scope=system", "property=Nice=5"))
    assert command.argv[:3] == ("systemd-run", "--system", "--unit=workbench-RUN.service")
    assert {"--property=Nice=5", "--property=LimitNOFILE=4096", "--setenv=HF_TOKEN"} <= set(
        command.argv
    )
    assert command.argv[-1] == 'a "b" $$c %d'
    assert not [word for word in command.argv if "secret" in word]


def test_an_installed_unit_is_shown_as_it_is_written() -> None:
    command = Systemd("systemd").command(launch("installed=boot", "restart=always"))
    assert command.argv == ("systemctl", "--user", "enable", "--now", "workbench-my-preset.service")
    (text,) = command.files.values()
    assert "Restart=always\n" in text
    assert '"a \\"b\\" $$c %%d"' in text
    assert "WantedBy=default.target" in text
    assert "secret" not in text
    keeper = Systemd("systemd").make_keeper(launch("installed=boot", "restart=always"))
    assert keeper.files == {"unit": text}


@pytest.mark.parametrize("handle", ["*", "vllm*.service", "vllm?", "[a-z]"])
def test_a_pattern_is_no_unit(handle: str) -> None:
    """A restart would be that of every unit that matches."""
    host = FakeHost(lambda call: "MainPID=1\n")
    with pytest.raises(ServerError, match="is a pattern"):
        asyncio.run(Systemd("systemd").find_adoptable(host, handle, {}))


def test_a_host_without_sudo_has_no_units_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """hosts.toml says sudo = false: sudo is never run, and the fix is named."""
    programs = {
        "systemctl": NEW,
        "systemd-run": "",
        "journalctl": "",
        "sudo": f"/usr/bin/touch {tmp_path}/asked; echo sudo: a password is required; exit 1",
        "id": "case $1 in -u) echo 1000 ;; *) echo ann ;; esac",
    }
    finding = found(monkeypatch, tmp_path / "one", programs, "scope=system", may_sudo=False)
    assert finding.level is Level.ERROR and "hosts.toml says sudo = false" in finding.text
    assert "scope=user" in (finding.fix or "") and not (tmp_path / "asked").exists()
    allowed = found(monkeypatch, tmp_path / "two", programs, "scope=system")
    assert "allow it in sudoers" in (allowed.fix or "") and (tmp_path / "asked").exists()


def test_what_sudo_may_do_is_known_by_every_command_of_a_run() -> None:
    host = FakeHost(lambda call: "LoadState=loaded")
    host.may_sudo = False
    one = replace(launch("scope=system"), may_sudo=False)
    asyncio.run(Systemd("systemd").read_exit_state(host, one, LaunchedServer()))
    keepers = (
        Systemd("systemd").make_keeper(one),
        Systemd("systemd").make_adopting_keeper(one, "vllm.service"),
    )
    scopes = [
        word
        for words in (host.calls[0].argv, *(keeper.argv for keeper in keepers))
        for word in words
    ]
    assert scopes.count("own") == 3 and "system" not in scopes
