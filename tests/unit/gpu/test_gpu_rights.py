"""Who may change settings: root, sudo with all or some commands, a password, nobody; and where a
password goes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from nvml_child import Driver
from smi_stub import Smi
from support.fake_sudo import Sudo
from support.procs import Watched

from workbench.gpu.guard import privileges
from workbench.gpu.settings import apply, current_values
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.journal import Journal, JournalEntry
from workbench.gpu.settings.plan import plan_commands
from workbench.gpu.settings.revert import drop_forged_claims_and_explain
from workbench.gpu.settings.rights import (
    SECURE_PATH,
    Rights,
    add_password,
    can_claimant_set_value,
    parse_sudo_refusal,
    read_rights,
    sudo_permission_for,
)
from workbench.gpu.settings.sudoers import sudoers_text
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.base import Completed, HostFacts
from workbench.hosts.local import LocalHost
from workbench.model import setting_commands
from workbench.model.errors import SettingsError
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.setting_records import SettingCommand
from workbench.model.settings import ClockRange, GpuSettings
from workbench.session.session import Session

SECRET = "Tr0ub4dor&3 quartz"
INFO = GpuInfo(
    0,
    "GPU-a",
    "RTX PRO 6000",
    sm_max_mhz=3090,
    memory_max_mhz=14001,
    power_min_w=150.0,
    power_max_w=600.0,
)
HOST = Telemetry(0.0, 0.0, DriverInfo(), HostSample(), (INFO,), (GpuSample(0, "GPU-a"),))
WANTED = {"0": GpuSettings(power_limit_w=450, gpu_clocks=ClockRange(1, 2))}


class Facts(LocalHost):
    """A host with the facts and the CapEff that a test wants."""

    name = "box"

    def __init__(self, capabilities: str = "000001ffffffffff", **facts: Any) -> None:
        base: dict[str, Any] = {"user": "ada", "uid": 1000, "nvidia_smi": "/usr/bin/nvidia-smi"}
        self._facts, self.capabilities = (
            HostFacts("box", "local", **{**base, **facts}),
            capabilities,
        )

    async def facts(self) -> HostFacts:
        return self._facts

    async def run(self, argv: Sequence[str], **options: Any) -> Completed:
        if argv[0] == "grep":
            return Completed(tuple(argv), 0, f"CapEff:\t{self.capabilities}\n".encode(), b"")
        return await super().run(argv, **options)


@pytest.fixture
def sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sudo:
    (tmp_path / "bin").mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    return Sudo(tmp_path / "bin", password=SECRET)


def rights(host: Facts) -> Rights:
    return asyncio.run(read_rights(host))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("sudo") is None, reason="asks sudo as root")
@pytest.mark.parametrize(
    ("name", "may"), [("root", True), ("nobody", False), ("uid 4711", False), ("-l", False)]
)
def test_a_claim_counts_only_if_its_user_could_have_made_it(name: str, may: bool) -> None:
    """Real sudo, asked about real accounts."""
    uid = {"root": 0, "nobody": 65534}.get(name, 4711)
    one = SettingClaim(name, "GPU-a", 0, "power_limit_w", 300.0, 240.0, 1.0, uid=uid)
    rights = Rights("/usr/bin/true")  # sudo names a program that is not there
    assert asyncio.run(can_claimant_set_value(LocalHost(), rights, one)) is may


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another group")
@pytest.mark.parametrize(
    ("uid", "group", "mode", "may"),
    [
        (4711, 0, 0o755, False),
        (4711, 0, 0o777, True),
        (4711, 0, 0o775, False),
        (4711, 65534, 0o775, False),
        (65534, 65534, 0o775, True),
        (65534, 0, 0o775, False),
        (0, 65534, 0o700, True),
    ],
)
def test_on_a_simulated_host_a_claim_counts_if_its_user_can_write_the_simulation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    group: int,
    mode: int,
    may: bool,
) -> None:
    """Workbench and the guard judge alike, and a group's right is the right of its members only."""

    class Simulated(Facts):
        async def run(self, argv: Sequence[str], **options: Any) -> Completed:
            env = {"WORKBENCH_SIM_STATE": str(tmp_path)}
            return await super().run(argv, **{**options, "env": env})

    tmp_path.chmod(mode)
    os.chown(tmp_path, -1, group)
    monkeypatch.setenv("WORKBENCH_SIM_STATE", str(tmp_path))
    host, rights = Simulated(simulated="gb10", uid=4712), Rights("/usr/bin/true")
    claim = SettingClaim("eve", "GPU-a", 0, "gpu_clocks", None, "1200,1200", 1.0, uid=uid)
    assert asyncio.run(can_claimant_set_value(host, rights, claim)) is may
    assert privileges.Programs({}).can_claimant_set_value(claim) is may
    entry = JournalEntry(
        *(
            "GPU-a",
            0,
            "x",
            "gpu_clocks",
            "default",
            "default",
            "1000,1000",
            0.0,
            "",
            None,
            "ada",
            {},
        )
    )
    state = Journal(entries=(entry,), others=(claim,))
    _, doubts = asyncio.run(drop_forged_claims_and_explain(host, state, rights))
    said = "eve claims 1200 MHz, but eve cannot write the state of the simulated GPUs"
    assert list(doubts.values()) == ([] if may else [said])


def test_root_runs_it_plainly() -> None:
    found = rights(Facts(uid=0, initial_user_namespace=True))
    assert found.refusal is None and found.argv_with_prefix(("nvidia-smi", "-i", "GPU-a")) == (
        "nvidia-smi",
        "-i",
        "GPU-a",
    )
    assert not found.sudo_password


def test_root_of_an_unprivileged_container_is_told_so() -> None:
    for uid in (0, 1000):
        found = rights(Facts(uid=uid, initial_user_namespace=False))
        assert found.refusal is not None and "unprivileged container" in found.refusal
        assert "NO_PERMISSION" in found.refusal and not found.sudo_password


def test_root_without_the_capability() -> None:
    found = rights(Facts("00000000a80425fb", uid=0, initial_user_namespace=True))
    assert "CAP_SYS_ADMIN" in (found.refusal or "")


def test_without_nvidia_smi_and_on_a_simulated_host() -> None:
    assert "not on this host's PATH" in (rights(Facts(nvidia_smi=None)).refusal or "")
    assert rights(Facts(simulated="gb10")).refusal is None


def test_sudo_that_asks_nothing(sudo: Sudo) -> None:
    sudo.allow("NOPASSWD: ALL")
    found = rights(Facts())
    assert found.argv_with_prefix(("nvidia-smi", "-i", "GPU-a", "-pl", "450")) == (
        "sudo",
        "-n",
        str(sudo.here / "nvidia-smi"),
        "-i",
        "GPU-a",
        "-pl",
        "450",
    )
    assert [c.right for c in plan_commands(WANTED, HOST, found)] == [
        None,
        None,
    ] and not found.sudo_password
    # looked at, nothing run
    assert all("-l" in options or "-v" in options for options, _ in sudo.calls)


def as_listed(file: str) -> list[str]:
    """The rules of a file for sudoers, as `sudo -l` lists them."""
    rules = file.partition("NOPASSWD: ")[2].replace("\\\n", " ")
    return [f"NOPASSWD: {rule.strip()}" for rule in re.split(r"(?<!\\),", rules)]


def test_the_file_that_is_proposed_is_the_file_that_helps(sudo: Sudo) -> None:
    """One file, for every set and every way back, of this GPU and with no other option."""
    sudo.allow("/usr/bin/true")
    before = plan_commands(WANTED, HOST, rights(Facts()))
    assert all(
        c.right and "needs root on box (ada is not, and sudo asks for a password)" in c.right
        for c in before
    )
    assert all("`workbench gpu sudoers`" in (c.right or "") for c in before)
    smi = str(sudo.here / "nvidia-smi")
    cores = {0: 2, 1: 2}
    files = [
        setting_commands.list_core_setting_files(key, cores) for key in setting_commands.OF_CORES
    ]
    sudo.allow(*as_listed(sudoers_text("ada", smi, "/usr/bin/tee", ["GPU-a"], files)))
    after = rights(Facts())
    values: list[tuple[str, Any]] = [("persistence", True), ("persistence", False)]
    values += [("power_limit_w", watts) for watts in (75.0, 450.0, 599.5, 165.75, 1200.0)]
    locks = ("0,500", "210,2400", "1005,1005", "2790,3090")
    values += [(lock, value) for lock in setting_commands.LOCKS for value in (*locks, "default")]
    values += [("memory_clocks", "405,14001"), ("memory_clocks", "13365,13365")]
    for name, value in values:
        (step,) = setting_commands.commands_to_set_value("GPU-a", name, value)
        assert after.missing_right_for(after.argv_with_prefix(step.argv)) is None, (name, value)
    for name, value in (("governor", "performance"), ("c_states", "off"), ("c_states", "on")):
        (step,) = setting_commands.commands_to_set_value(
            "host", name, value, cores=cores, tee="/usr/bin/tee"
        )
        assert sudo_permission_for(after.rules, step.argv) == "free"
    for words in (
        "-i GPU-a -pl 400 -f /etc/passwd",
        "-i GPU-b -pl 400",
        "-i GPU-a -pl 4x",
        "-i GPU-a --lock-gpu-clocks=1005,1005 -q",
        "-i GPU-a -q",
        "-i GPU-a -r",
    ):
        assert sudo_permission_for(after.rules, [smi, *words.split()]) == "", words


@pytest.mark.parametrize(("uid", "gid", "mode"), [(1000, 0, 0o755), (0, 0, 0o757), (0, 50, 0o775)])
def test_what_another_can_change_is_neither_run_nor_proposed(
    sudo: Sudo, uid: int, gid: int, mode: int
) -> None:
    smi = sudo.here / "nvidia-smi"
    stat = (sudo.here / "stat").read_text().replace("\nexec", "\n")
    mine = f'case $3 in {smi}) echo "{uid} {gid} {mode | 0o100000:x}"; exit ;; esac\n'
    (sudo.here / "stat").write_text(stat.replace("#!/bin/sh\n", f"#!/bin/sh\n{mine}"))
    sudo.allow("NOPASSWD: ALL")
    found = rights(Facts(nvidia_smi=str(smi)))
    if any((Path(d) / "nvidia-smi").exists() for d in SECURE_PATH.split(":")):
        assert found.nvidia_smi != str(smi), "the driver's own"
        return
    for command in plan_commands(WANTED, HOST, found):
        assert command.right == found.refusal and "sudo" not in command.argv
    assert (f"{smi} is not run as root, because users other than root can change {smi}") in (
        found.refusal or ""
    )
    assert (
        "gpu sudoers" not in (found.refusal or "")
        and not found.by_sudoers
        and not found.sudo_password
    )


def test_nobody_who_helps(sudo: Sudo) -> None:
    found = rights(Facts())  # no rule at all
    assert (
        "ada is not, and sudo says: Sorry, user ada may not run sudo on box"
        in (found.refusal or "")
        and not found.sudo_password
    )
    (sudo.here / "sudo").unlink()
    if not any(Path(d, "sudo").exists() for d in os.environ["PATH"].split(":")):
        assert "there is no sudo" in (rights(Facts()).refusal or "")


@pytest.mark.parametrize(
    ("rules", "command", "how"),
    [
        ("    (ALL : ALL) ALL", "/usr/bin/nvidia-smi -pm 1", "asks"),
        ("    (ALL) NOPASSWD: ALL", "/usr/bin/nvidia-smi -pm 1", "free"),
        (
            "    (ALL) ALL\n    (root) NOPASSWD: /usr/bin/nvidia-smi",
            "/usr/bin/nvidia-smi -pm 1",
            "free",
        ),
        # the last
        (
            "    (root) NOPASSWD: /usr/bin/nvidia-smi\n    (ALL) ALL",
            "/usr/bin/nvidia-smi -pm 1",
            "asks",
        ),
        (
            "    (root) NOPASSWD: /usr/bin/nvidia-smi -pm *, PASSWD: /usr/bin/tee",
            "/usr/bin/nvidia-smi -pl 4",
            "",
        ),
        (
            "    (root) NOPASSWD: /usr/bin/nvidia-smi -pm *, PASSWD: /usr/bin/tee",
            "/usr/bin/tee /x",
            "asks",
        ),
        (
            "    (root) NOPASSWD: SETENV: /usr/bin/nvidia-smi -i GPU-a --lock-gpu-clocks\\=1\\,2, "
            "/bin/ls",
            "/usr/bin/nvidia-smi -i GPU-a --lock-gpu-clocks=1,2",
            "free",
        ),
        ("    (root) NOPASSWD: /bin/tee", "/usr/bin/tee /x", "free"),  # /bin is /usr/bin
        ('    (root) NOPASSWD: /usr/bin/nvidia-smi ""', "/usr/bin/nvidia-smi -pm 1", ""),
        ("    (root) NOPASSWD: ALL, !/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi -pm 1", ""),
        ("    (postgres) NOPASSWD: ALL", "/usr/bin/nvidia-smi -pm 1", ""),
        (
            "    (root) NOPASSWD: /usr/bin/nvidia-smi ^-pl [0-9]+$",
            "/usr/bin/nvidia-smi -pl 40",
            "free",
        ),
        (
            "    (root) NOPASSWD: /usr/bin/nvidia-smi ^-pl [0-9]+$",
            "/usr/bin/nvidia-smi -pl 40 -x",
            "",
        ),
        ("Sorry, user ada may not run sudo on box.", "/usr/bin/nvidia-smi -pm 1", ""),
        (
            "    (root) NOPASSWD: /usr/bin/nvidia-smi ^-pl [0-9]{2,4}$, /bin/ls",
            "/usr/bin/nvidia-smi -pl 400",
            "free",
        ),
    ],
)
def test_rules_as_sudo_lists_them(rules: str, command: str, how: str) -> None:
    text = (
        f"Matching Defaults entries for ada on box:\n    env_reset\n\nUser ada may run:\n{rules}\n"
    )
    assert sudo_permission_for(text, command.split()) == how


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("sudo: a password is required", None),
        (
            "\nSorry, try again.\n\nsudo: no password was provided\nsudo: 1 incorrect password "
            "attempt",
            None,
        ),
        (
            "sudo: Account or password is expired, reset your password and try again\nsudo: unable "
            "to change expired "
            "password: Authentication token manipulation error\nsudo: a password is required",
            "sudo says: Account or password is expired, reset your password and try again",
        ),
        (
            "sudo: sorry, you must have a tty to run sudo",
            "sudo says: sorry, you must have a tty to run sudo",
        ),
        (
            "Sorry, user ada may not run sudo on box.",
            "sudo says: Sorry, user ada may not run sudo on box",
        ),
        ("ada is not in the sudoers file.", "sudo says: ada is not in the sudoers file"),
        (
            "sudo: account validation failure, is your account locked?",
            "sudo says: account validation failure, is your account locked?",
        ),
    ],
)
def test_sudos_own_reasons_are_passed_on(said: str, reason: str | None) -> None:
    assert parse_sudo_refusal(said) == reason


# ---- a password


class Box(Facts):
    """This machine, as ada who has no rights of her own; everything that was run and given on
    stdin."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self.ran: list[tuple[str, bytes | None]] = []

    async def run(self, argv: Sequence[str], **options: Any) -> Completed:
        self.ran.append((shlex.join(argv), options.get("input")))
        return await super().run(argv, **options)


class Bench:
    def __init__(self, sudo: Sudo, smi: Smi, cores: Path, journal: Path) -> None:
        self.sudo, self.smi, self.cores, self.journal = sudo, smi, cores, journal
        self.host = Box(nvidia_smi=str(smi.here / "nvidia-smi"))

    def governors(self) -> list[str]:
        return [
            p.read_text().strip() for p in sorted(self.cores.glob("*/cpufreq/scaling_governor"))
        ]


@pytest.fixture
def bench(
    driver: Driver, sudo: Sudo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    journal = tmp_path / "xdg-state" / "workbench" / "gpu" / "journal.json"
    smi = Smi(tmp_path / "bin", driver.script, journal)
    cores = tmp_path / "sys" / "devices" / "system" / "cpu"
    for cpu in range(2):
        (cores / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (cores / f"cpu{cpu}" / "cpufreq" / "scaling_governor").write_text("powersave\n")
        (cores / f"cpu{cpu}" / "cpufreq" / "scaling_available_governors").write_text(
            "performance powersave\n"
        )
    monkeypatch.setenv("WORKBENCH_SIM_SYSFS", str(tmp_path / "sys"))
    sudo.allow("ALL")
    yield Bench(sudo, smi, cores, journal)


BOTH = GpuSettings(power_limit_w=450.0, governor="performance")


@pytest.mark.slow
def test_a_password_goes_to_sudos_stdin_and_nowhere_else(bench: Bench, tmp_path: Path) -> None:
    async def work() -> tuple[Session, list[Any]]:
        session = Session(bench.host)
        with pytest.raises(SettingsError) as wrong:
            await session.gpu.apply_settings(BOTH, 0, password="not " + SECRET)
        assert "rejects this password; nothing was changed" in str(wrong.value)
        assert bench.smi.setters == [] and not bench.journal.exists()
        with Watched(every_s=0.002) as watched:
            done = await session.gpu.apply_settings(BOTH, 0, password=SECRET)
            assert done.ok and bench.governors() == ["performance"] * 2
            assert "power_limit_w" in bench.journal.read_text()
            text = bench.journal.read_text()
            back = await session.gpu.revert_settings(password=SECRET)
        assert (
            back.ok
            and bench.governors() == ["powersave"] * 2
            and bench.smi.setters == ["-pl 450", "-pl 600"]
        )
        await session.close()
        return session, [wrong.value, repr(wrong.value.__dict__), done, back, text, *watched.seen]

    session, shown = asyncio.run(asyncio.wait_for(work(), 60))
    assert session.state.host.sudo_password
    shown += [repr(session.state), repr(session.__dict__), json.dumps(bench.sudo.calls)]
    shown += [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "sudo.json"]
    leaks = [
        one
        for one in shown
        if SECRET in (one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one))
    ]
    assert not leaks
    commands = [command for command, _ in bench.host.ran]
    assert not any(SECRET in command or "quartz" in command for command in commands)
    given = [data for _, data in bench.host.ran if data and SECRET.encode() in data]
    assert given and all(data.count(SECRET.encode()) == 1 for data in given)


def test_a_command_that_sudo_runs_unasked_never_reads_the_password(bench: Bench) -> None:
    """tee would write it into the governor's file and onto its output."""
    bench.sudo.allow("ALL", "NOPASSWD: /usr/bin/tee", "NOPASSWD: /bin/tee")

    async def work() -> None:
        known = await add_password(bench.host, await read_rights(bench.host), SECRET)
        reading = await read_telemetry_once(bench.host)
        commands = plan_commands(
            {"0": BOTH}, reading, known, await current_values.read_core_settings(bench.host)
        )
        assert all(c.right is None for c in commands)
        report = await apply.apply_commands(bench.host, commands, rights=known)
        assert report.ok and bench.governors() == ["performance"] * 2
        written = [
            data
            for command, data in bench.host.ran
            if command.startswith("sudo") and "cpufreq" in command
        ]
        assert written == [b"performance\n"]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_without_a_password_what_needs_one_is_refused_with_its_line(bench: Bench) -> None:
    async def work() -> None:
        session = Session(bench.host)
        report = await session.gpu.apply_settings(BOTH, 0)
        assert not report.ok and bench.smi.setters == [] and bench.governors() == ["powersave"] * 2
        assert all("sudo asks for a password" in o.message for o in report.outcomes)
        tee = report.outcomes[0].command.right or ""
        assert "`workbench gpu sudoers`" in tee
        assert (await session.gpu.sudoers_file_text()).count("scaling_governor") == 2
        assert session.state.host.can_change_gpus and session.state.host.sudo_password
        await session.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_password_of_someone_whom_sudo_does_not_know(bench: Bench) -> None:
    bench.sudo.allow()

    async def work() -> None:
        known = await read_rights(bench.host)
        with pytest.raises(
            SettingsError,
            match="sudo says: Sorry, user ada may not run sudo on box; nothing was changed",
        ):
            await add_password(bench.host, known, SECRET)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_password_that_no_line_can_hold(bench: Bench) -> None:
    async def work() -> None:
        known = await read_rights(bench.host)
        before = len(bench.sudo.calls)
        with pytest.raises(SettingsError, match="rejects this password"):
            await add_password(bench.host, known, f"{SECRET}\nperformance")
        assert len(bench.sudo.calls) == before

    asyncio.run(asyncio.wait_for(work(), 60))


def test_rights_do_not_show_their_password() -> None:
    held = Rights(password=SECRET)
    assert SECRET not in repr(held) and SECRET not in str(held)
    assert SECRET not in repr(
        SettingCommand(0, "GPU-a", "persistence", held.argv_with_prefix(("nvidia-smi",)))
    )
    assert asdict(held)["password"] == SECRET  # so no Rights goes into a document


@pytest.mark.long
@pytest.mark.slow
def test_rights_that_allow_a_change_and_not_its_undoing_are_warned_of(bench: Bench) -> None:
    smi = f"{bench.smi.here / 'nvidia-smi'} -i GPU-00000000-0000-4000-8000-000000000000"
    bench.sudo.allow(f"NOPASSWD: {smi} -pl 450")

    async def work() -> None:
        session = Session(bench.host)
        for dry_run in (True, False):
            (outcome,) = (
                await session.gpu.apply_settings(
                    GpuSettings(power_limit_w=450.0), 0, dry_run=dry_run
                )
            ).outcomes
            assert (
                outcome.ok
                and ("these rights allow the change but not its revert") in outcome.message
            )
            assert "the file that `workbench gpu sudoers` prints" in outcome.message
        back = await session.gpu.revert_settings()
        assert (
            not back.ok and back.outcomes[0].command.right and "By hand" in back.outcomes[0].message
        )
        bench.sudo.allow(f"NOPASSWD: {smi} -pl 450", f"NOPASSWD: {smi} -pl 600")
        assert (await session.gpu.revert_settings()).ok and bench.smi.setters == [
            "-pl 450",
            "-pl 600",
        ]
        await session.close()

    asyncio.run(asyncio.wait_for(work(), 60))
