"""gpu set, sweep and revert with each kind of rights, at a terminal and in a script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine
from support.procs import Watched
from support.serving import free_port
from support.sudoer import Sudoer
from support.typed_screen import TypedScreen

from workbench.gpu.settings.sudoers import SUDOERS_PATH

SECRET = "Tr0ub4dor&3 quartz"
ASKED = ("gpu", "set", "--power-limit", "400", "--lock-gpu-clocks", "1005")
Cli = Callable[..., Any]
Typed = Callable[..., TypedScreen]


@pytest.fixture
def ada(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sudoer]:
    made = Sudoer(tmp_path, SECRET)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.sudo.allow("NOPASSWD: ALL")
    made.uid(1000)
    ran = cli("gpu", "revert", "--json")
    assert ran.code == 0, ran.out


@pytest.fixture
def typed(ada: Sudoer, tmp_path: Path) -> Iterator[Typed]:
    screens: list[TypedScreen] = []

    def start(*words: str) -> TypedScreen:
        screens.append(TypedScreen(words, (200, 50), CommandLine(tmp_path).env, tmp_path))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def ok(cli: Cli, *words: str) -> Any:
    ran = cli(*words, "--json")
    assert ran.code == 0, ran
    return ran.document


def with_password(screen: TypedScreen, secret: str = SECRET) -> None:
    """Answer yes if the command asks, then type the password of sudo."""
    if "[y/N]" in screen.until(lambda text: "[y/N]" in text or "[sudo]" in text):
        screen.type("y\n")
    screen.until("[sudo] password for ada on local (sent to sudo only):")
    screen.type(f"{secret}\n")


@pytest.mark.long
@pytest.mark.slow
def test_without_a_sudo_rule_one_sudoers_file_is_suggested_for_all_commands(
    cli: Cli, ada: Sudoer
) -> None:
    for words in (("--yes",), ("--dry-run",)):
        done = cli(*ASKED, *words, "--json")
        assert done.code == 1 and ada.power_w is None and done.document["host"] == "local"
        (right,) = {o["right"] for o in done.document["outcomes"]}
        assert (
            "needs root on local (ada is not, and sudo says: Sorry, user ada may not run sudo "
            "on box)"
        ) in right
        assert right.endswith(
            "the file that `workbench gpu sudoers` prints allows every set and revert, as "
            + SUDOERS_PATH
        )
    file = ok(cli, "gpu", "sudoers")
    assert file["path"] == SUDOERS_PATH and file["sudoers"] == cli("gpu", "sudoers").out
    rules = file["sudoers"].partition("NOPASSWD: ")[2].replace("\\\n", "")
    ada.sudo.allow(*(f"NOPASSWD: {rule.strip()}" for rule in re.split(r"(?<!\\),", rules)))
    done = ok(cli, *ASKED, "--yes")
    assert (ada.power_w, ada.lock_mhz) == (400.0, (1005, 1005)) and done["guard"]["running"]
    assert not any("cannot be reverted" in o["message"] for o in done["outcomes"])
    assert ok(cli, "gpu", "revert")["ok"] and (ada.power_w, ada.lock_mhz) == (None, None)


@pytest.mark.long
@pytest.mark.slow
def test_the_password_reaches_sudo_and_nothing_else(
    cli: Cli, ada: Sudoer, typed: Typed, tmp_path: Path
) -> None:
    """The password typed at the prompts is on no command line, in no environment, in no file, and
    not shown."""
    ada.sudo.allow("ALL")
    refused = cli(*ASKED, "--yes", "--json")  # nobody to ask
    assert (
        refused.code == 1
        and "sudo asks for a password" in refused.document["outcomes"][0]["message"]
    )
    shown = []
    with Watched() as watched:
        for secret, wanted, said in (
            (f"not {SECRET}", None, "sudo rejects this password; nothing was changed"),
            (SECRET, 400.0, "in force: yes"),
        ):
            screen = typed(*ASKED)
            with_password(screen, secret)
            screen.until(said)
            assert screen.ended() == (0 if wanted else 1) and ada.power_w == wanted
            shown.append(screen.raw)
        screen = typed("gpu", "revert")
        with_password(screen)
        screen.until("as it was before")
        assert screen.ended() == 0 and (ada.power_w, ada.lock_mhz) == (None, None)
        shown.append(screen.raw)
    # commands were seen, and the password in none
    assert watched.of("-pl\x00400") and not watched.of(SECRET)
    shown += [
        str(ok(cli, *words)) for words in (("gpu", "journal"), ("gpu", "status"), ("doctor",))
    ]
    assert not any(SECRET in text for text in shown)
    _in_no_file(tmp_path)


def _in_no_file(directory: Path) -> None:
    # that is sudo's own
    files = [p for p in directory.rglob("*") if p.is_file() and p.name != "sudo.json"]
    assert len(files) > 8 and not [p for p in files if SECRET.encode() in p.read_bytes()]


@pytest.mark.long
def test_a_sweep_shows_the_affected_processes_and_asks_for_the_password(
    cli: Cli, ada: Sudoer, typed: Typed, tmp_path: Path
) -> None:
    ada.sudo.allow("ALL")
    run_id = ok(cli, "start", "vllm-any", "--set", f"port={free_port()}", "--wait")["run_id"]
    with Watched() as watched:
        screen = typed(
            "gpu", "sweep", "--power-limit", "500,300", run_id, "--settle", "0", "--seconds", "3"
        )
        asked = screen.until(
            "one after the other on local (GPU0; 1 process uses it, 0 not started by Workbench)"
        )
        assert "-pl 500" in asked and "GPU0 NVIDIA RTX PRO 6000" in asked
        with_password(screen)
        screen.until("sweep 1: power limit", seconds=120)
        assert screen.ended() == 0 and ada.power_w is None
    assert watched.of("-pl\x00500") and not watched.of(SECRET)
    sweep = ok(cli, "sweep", "show", "1")
    result = ok(cli, "results", "show", str(sweep["points"][0]["result_ids"][0]))
    markdown = cli("results", "export", str(result["id"]), "--format", "md").out
    assert not any(
        SECRET in text for text in (screen.raw, str(sweep), str(result), markdown)
    ) and "500 W" in str(sweep)
    _in_no_file(tmp_path)


@pytest.mark.slow
def test_sudo_rules_without_a_password_and_root(cli: Cli, ada: Sudoer) -> None:
    ada.sudo.allow(f"NOPASSWD: {ada.here}/nvidia-smi *")
    done = ok(cli, *ASKED, "--yes")
    assert (
        done["commands"][0][:3] == ["sudo", "-n", f"{ada.here}/nvidia-smi"] and ada.power_w == 400.0
    )
    assert ok(cli, "gpu", "revert")["ok"] and ada.power_w is None
    ada.uid(0)
    if not _capable():
        return
    assert ok(cli, *ASKED, "--dry-run")["commands"][0][0] == "nvidia-smi"


def _capable() -> bool:
    """Return whether the driver treats this process as root: CAP_SYS_ADMIN in the first user
    namespace."""
    (line,) = [
        row
        for row in Path("/proc/self/status").read_text().splitlines()
        if row.startswith("CapEff")
    ]
    first = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    return first and bool(int(line.split()[1], 16) >> 21 & 1)


@pytest.mark.slow
def test_root_in_an_unprivileged_container_is_told_the_reason(ada: Sudoer, tmp_path: Path) -> None:
    """Run as uid 0 in a separate user namespace, as an unprivileged container does."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "-Ur", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no user namespace can be made here")
    ada.uid(0)
    argv = [unshare, "-Ur", sys.executable, "-m", "workbench", *ASKED, "--yes"]
    env = CommandLine(tmp_path).env
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and ada.power_w is None
    assert (
        "root in this unprivileged container is not root for the driver, which answers "
        "NO_PERMISSION"
    ) in done.stdout
    assert "change GPU settings on the machine that runs the container" in done.stdout


@pytest.mark.slow
def test_a_driver_that_denies_permission_to_root_is_explained(cli: Any) -> None:
    from workbench.sim import profiles
    from workbench.sim.driver_state import SimState

    host = ("--simulate", "gb10")
    cli(*host, "gpu", "status")
    driver = f"{os.environ['XDG_STATE_HOME']}/workbench/sim/gb10/driver"
    SimState(driver, profiles.get_profile("gb10")).set_faults(no_permission=True)
    ran = cli(*host, "gpu", "set", "--lock-gpu-clocks", "1005", "--yes", "--json")
    (outcome,) = ran.document["outcomes"]
    assert (
        ran.code == 1
        and ("NO_PERMISSION: the driver does not accept this root") in outcome["message"]
    )
    assert (
        "change settings on the machine that runs it. By hand: sudo nvidia-smi -i GPU-"
    ) in outcome["message"]
