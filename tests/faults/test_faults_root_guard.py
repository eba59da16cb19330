"""Attacks on a guard that sudo made root, by other programs of its user and by another account.
Accounts, sudo, its rules and a typed password are real; only the GPUs are simulated."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.procs import alive, eventually
from support.sudo_account import DEFAULT_W, SECRET, SudoAccount, accounts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
CAP_SYS_RESOURCE = 1 << 24  # include/uapi/linux/capability.h
SET = ("set", "--gpu", "0", "--power-limit", "200", "--yes")


@pytest.fixture(scope="module")
def people() -> Iterator[tuple[list[str], str, Path]]:
    with accounts(2) as made:
        yield made


@pytest.fixture
def ada(people: tuple[list[str], str, Path]) -> Iterator[SudoAccount]:
    """Make ada, who may run everything as root with her password."""
    names, python, roots = people
    made = SudoAccount(names[0], python, roots)
    made.allow(f"{made.name} ALL=(ALL) ALL\n")
    yield made
    made.end()


@pytest.fixture
def victim(ada: SudoAccount) -> Path:
    """Make a file that only root may read or write."""
    path = ada.driver / "victim"
    path.write_text("root's own")
    path.chmod(0o600)
    return path


def untouched(victim: Path) -> bool:
    found = victim.stat()
    return (victim.read_text(), found.st_uid, stat.S_IMODE(found.st_mode)) == (
        "root's own",
        0,
        0o600,
    )


def status_words(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))


def guard_of(ada: SudoAccount) -> int:
    (pid,) = ada.guards
    return pid


def on_trial(ada: SudoAccount, seconds: str = "4") -> int:
    code, shown = ada.typed(*SET, "--trial", seconds)
    assert code == 0 and ada.power_w() == 200.0, shown
    return guard_of(ada)


def ran_as_root(told: Path) -> bool:
    return told.exists() and "0" in told.read_text().split()


def hijack(ada: SudoAccount) -> Path:
    """Put an nvidia-smi of ada's first on her PATH. It records which user ran it."""
    told = ada.home / "told"
    ada.sh(
        f"printf '#!/bin/sh\\nid -u >>{told}\\nexec {ada.roots}/bin/nvidia-smi \"$@\"\\n' "
        f">{ada.bin}/nvidia-smi"
    )
    ada.sh(f"chmod 755 {ada.bin}/nvidia-smi")
    return told


def test_it_drops_its_rights_to_the_users(ada: SudoAccount) -> None:
    pid = on_trial(ada, "6")
    user = str(ada.home.stat().st_uid)

    def has_rights_of_user() -> bool:  # it is root while it runs a command
        users, capabilities = status_words(pid, "Uid"), status_words(pid, "CapEff")
        return users == ["0", user, "0", user] and capabilities == ["0" * 16]

    eventually(has_rights_of_user, "the user's rights", 30)
    eventually(lambda: ada.power_w() == DEFAULT_W and not ada.entries, "the end of the trial", 30)
    eventually(lambda: not alive(pid), "the guard's end")
    files = [ada.journal, *(ada.gpu / "guard").rglob("*")]
    assert {path.lstat().st_uid for path in files} == {ada.home.stat().st_uid}


@pytest.mark.long
def test_a_link_in_place_of_the_state_directory_is_not_followed(
    ada: SudoAccount, victim: Path
) -> None:
    elsewhere = ada.driver / "roots-but-open"
    elsewhere.mkdir()
    elsewhere.chmod(0o1777)
    told = hijack(ada)
    ada.sh(
        f"mkdir -p {ada.gpu.parent} && chmod 700 {ada.gpu.parent} && ln -s {elsewhere} {ada.gpu}"
    )
    ada.sh(
        f"mkdir {elsewhere}/guard; ln -s {victim} {elsewhere}/guard/pid; ln -s {victim} "
        f"{elsewhere}/guard/log"
    )
    code, shown = ada.typed(*SET)
    assert "guard: NOT RUNNING" in shown, shown
    assert "is a link, which Workbench does not follow" in shown and ada.guards == []
    code, shown = ada.typed(*SET, "--trial", "1")
    assert code == 1 and "a trial needs a guard" in shown and "None" not in shown
    assert untouched(victim) and not ran_as_root(told) and ada.calls


@pytest.mark.long
@pytest.mark.parametrize("name", ["log", "pid", "lock", "state.json", "beats", "leave"])
def test_links_to_roots_files_lead_nowhere(ada: SudoAccount, victim: Path, name: str) -> None:
    ada.sh(f"umask 077; mkdir -p {ada.gpu}/guard; ln -s {victim} {ada.gpu}/guard/{name}")
    on_trial(ada, "2")
    eventually(lambda: ada.power_w() == DEFAULT_W and not ada.entries, "the end of the trial", 30)
    assert untouched(victim)


def test_a_program_of_the_users_is_never_run_as_root(ada: SudoAccount) -> None:
    told = hijack(ada)
    on_trial(ada, "5")
    eventually(lambda: ada.power_w() == DEFAULT_W, "the end of the trial", 30)
    assert not ran_as_root(told) and ada.calls
    ada.env["PATH"] = ada.env["PATH"].replace(f"{ada.roots}/bin:", "")  # now hers is the only one
    if any((Path(d) / "nvidia-smi").exists() for d in ("/usr/bin", "/usr/local/bin")):
        return
    code, shown = ada.typed(*SET)
    assert (
        code == 1
        and "is not run as root, because users other than root can change" in shown
        and "sudoers" not in shown
    )
    assert ada.run("sudoers")[0] == 1 and not ran_as_root(told)


def test_a_link_of_the_users_is_not_what_root_runs(ada: SudoAccount) -> None:
    """It leads to a program of root's, until its plan is made."""
    ada.sh(
        f"ln -s {ada.roots}/bin/nvidia-smi {ada.bin}/nvidia-smi; ln -s $(command -v tee) "
        f"{ada.bin}/tee"
    )
    over = ada.roots / f"over-{ada.home.name}"  # root's, and leads through the user's
    over.mkdir()
    (over / "nvidia-smi").symlink_to(ada.bin / "nvidia-smi")
    ada.env["PATH"] = f"{over}:{ada.env['PATH']}"
    _, document = ada.run(*SET, "--dry-run")
    assert [words[2] for words in document["commands"]] == [f"{ada.roots}/bin/nvidia-smi"], document


@pytest.mark.long
def test_limits_of_the_users_do_not_end_it(ada: SudoAccount) -> None:
    wrapped = ada.roots / f"limited-{ada.home.name}"
    wrapped.write_text(
        f'#!/bin/sh\nulimit -t 60\nulimit -f 4000\nexec nice -n 5 {ada.python} "$@"\n'
    )
    wrapped.chmod(0o755)
    ada.python = str(wrapped)
    guard = on_trial(ada)
    assert os.getpriority(os.PRIO_PROCESS, guard) == 0
    # a container's root may lack it
    if int(status_words(os.getpid(), "CapEff")[0], 16) & CAP_SYS_RESOURCE:
        limits = Path(f"/proc/{guard}/limits").read_text().splitlines()
        assert all(
            "unlimited" in line for line in limits if line.startswith(("Max cpu", "Max file size"))
        )


@pytest.mark.long
def test_asked_to_make_way_for_nobody_it_stays(ada: SudoAccount) -> None:
    guard = on_trial(ada)
    ada.sh(f"touch {ada.gpu}/guard/leave")
    eventually(lambda: ada.power_w() == DEFAULT_W, "the end of the trial", 15)
    assert "did not take over; this guard continues" in (ada.gpu / "guard" / "log").read_text()
    assert not (ada.gpu / "guard" / "leave").exists()
    eventually(lambda: not alive(guard), "the guard to end")


def test_a_journal_that_is_forged_after_the_password_sets_nothing_else(ada: SudoAccount) -> None:
    assert ada.typed(*SET)[0] == 0
    pid, (entry,) = guard_of(ada), ada.entries
    one = ada.ok("status")["gpus"][1]["uuid"]
    watch = {"heartbeat_s": None, "trial": "x", "trial_s": 0.1}
    forged = [{**entry, "before": 160.0, "watch": watch}]
    forged += [{**entry, "gpu_uuid": one, "gpu_index": 1, "before": 170.0, "watch": watch}]
    write(ada, forged)
    eventually(lambda: ada.power_w() == DEFAULT_W, "the value that it saw at its start", 30)
    eventually(lambda: not alive(pid), "the guard's end", 30)
    assert [call.split("-pl ")[1] for call in ada.calls] == [
        "200",
        f"{DEFAULT_W:g}",
    ] and ada.power_w(1) == DEFAULT_W


@pytest.mark.long
def test_more_to_watch_takes_sudos_consent_again(ada: SudoAccount) -> None:
    assert ada.typed(*SET)[0] == 0
    first = guard_of(ada)
    code, shown = ada.typed("set", "--gpu", "1", "--power-limit", "180", "--yes", "--trial", "2")
    assert code == 0 and ada.power_w(1) == 180.0, shown
    eventually(lambda: ada.power_w(1) == DEFAULT_W, "the end of the second one's trial", 30)
    eventually(lambda: len(ada.entries) == 1, "the journal")
    assert not alive(first) and ada.power_w() == 200.0
    assert ada.typed("revert")[0] == 0 and ada.power_w() == DEFAULT_W


def write(ada: SudoAccount, entries: list[dict[str, Any]]) -> None:
    text = json.dumps({**json.loads(ada.journal.read_text()), "entries": entries})
    new = ada.journal.with_name("forged")
    new.write_text(text)
    os.chown(new, ada.home.stat().st_uid, ada.home.stat().st_gid)
    new.replace(ada.journal)


@pytest.mark.long
@pytest.mark.parametrize(
    "damage",
    [
        "rm {0}; mkfifo {0}",
        "rm {0}; truncate -s 3G {0}",
        "rm {0}; mkdir {0}",
        "rm {0}; ln -s /dev/zero {0}",
    ],
)
def test_a_journal_that_is_no_journal_stops_nothing(ada: SudoAccount, damage: str) -> None:
    pid = on_trial(ada)
    ada.sh(damage.format(ada.journal))
    assert ada.run("status", timeout_s=15)[0] in (0, 1)
    eventually(lambda: ada.power_w() == DEFAULT_W, "the end of the trial", 30)
    assert not alive(pid) or int(status_words(pid, "VmHWM")[0]) < 60_000  # kB


@pytest.mark.long
@pytest.mark.parametrize("name", ["state.json", "pid", "told"])
def test_a_fifo_among_the_guards_own_files_stops_no_status(ada: SudoAccount, name: str) -> None:
    on_trial(ada)
    ada.sh(f"rm -f {ada.gpu}/guard/{name}; mkfifo {ada.gpu}/guard/{name}")
    assert ada.run("status", timeout_s=15)[0] == 0
    eventually(lambda: ada.power_w() == DEFAULT_W, "the end of the trial", 30)


@pytest.mark.long
def test_a_claim_of_an_account_without_rights_keeps_no_limit_from_being_reverted(
    ada: SudoAccount, people: tuple[list[str], str, Path]
) -> None:
    """Another says to have set the same limit since, and in the year 5138."""
    on_trial(ada)
    (entry,) = ada.entries
    forged = {**entry, "since_unix_s": 1e11, "set_unix_s": 1e11, "watch": {}}
    text = json.dumps(
        {"journal": "j", "boot_id": entry["boot_id"], "made_ns": 1, "entries": [forged]}
    )
    path = ada.driver / "register" / "workbench-gpu.forged.json"
    subprocess.run(
        ["runuser", "-u", people[0][1], "--", "tee", str(path)], input=text, text=True, check=True
    )
    eventually(lambda: ada.power_w() == DEFAULT_W, "the end of the trial", 15)
    eventually(lambda: ada.entries == [], "the journal")


def forge(ada: SudoAccount, who: str, **changes: Any) -> None:
    """Write another account's claim of ada's setting, dated in the year 5138."""
    (entry,) = ada.entries
    forged = {**entry, "since_unix_s": 1e11, "set_unix_s": 1e11, "watch": {}, **changes}
    text = json.dumps(
        {"journal": "j", "boot_id": entry["boot_id"], "made_ns": 1, "entries": [forged]}
    )
    path = ada.driver / "register" / "workbench-gpu.forged.json"
    subprocess.run(
        ["runuser", "-u", who, "--", "tee", str(path)], input=text, text=True, check=True
    )


@pytest.mark.long
@pytest.mark.parametrize("allowed", [False, True])
def test_a_claim_of_a_lock_counts_if_sudo_lets_its_user_set_one(
    ada: SudoAccount, people: tuple[list[str], str, Path], allowed: bool
) -> None:
    """Nobody can read a lock: a forged claim must not keep ours on, and a true one is not
    overwritten."""
    other = people[0][1]
    ada.allow(
        f"{ada.name} ALL=(ALL) ALL\n"
        + (f"{other} ALL=(root) {ada.roots}/bin/nvidia-smi\n" if allowed else "")
    )
    code, shown = ada.typed(
        "set", "--gpu", "0", "--lock-gpu-clocks", "500,900", "--yes", "--trial", "3"
    )
    assert code == 0, shown
    forge(ada, other, now="400,800")
    eventually(lambda: [e for e in ada.entries if e["watch"]] == [], "the end of the trial", 15)
    resets = [call for call in ada.calls if "--reset-gpu-clocks" in call]
    assert bool(resets) is not allowed, (ada.calls, ada.entries)


@pytest.mark.long
def test_a_program_of_the_users_that_takes_the_guards_place_ends_no_guard(ada: SudoAccount) -> None:
    """It asks the guard to leave, in its own name and in that of a program of root's, and holds the
    lock."""
    guard, place = on_trial(ada), ada.gpu / "guard"
    taking = (
        "import fcntl, os, sys, time; f = open(sys.argv[1] + '/lock', 'r+')\n"
        "while True:\n"
        "    open(sys.argv[1] + '/leave', 'w').write(str(os.getpid() if sys.argv[2] == 'own' else "
        "1))\n"
        "    try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    except OSError: pass\n"
        "    time.sleep(0.01)\n"
    )
    takers = [
        subprocess.Popen(
            ["runuser", "-u", ada.name, "--", "/usr/bin/python3", "-c", taking, str(place), whose]
        )
        for whose in ("own", "1")
    ]
    try:
        eventually(lambda: ada.power_w() == DEFAULT_W, "the end of the trial", 30)
    finally:
        for taker in takers:
            taker.terminate()
            taker.wait()
    eventually(lambda: not alive(guard), "the guard's end", 30)


@pytest.mark.long
@pytest.mark.parametrize(
    "forged",
    [
        "ln -s '{lock}' {0}",
        *(
            pytest.param(f"{word} {{0}}", marks=pytest.mark.long)
            for word in ("touch", "mkdir", "mkfifo")
        ),
    ],
)
def test_a_forged_lock_stops_nothing(ada: SudoAccount, forged: str) -> None:
    start = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    script = forged.format(
        f"{ada.journal}.lock", lock=f"{boot_id}:1:{start}:root@{os.uname().nodename}"
    )
    on_trial(ada)
    ada.sh(script)
    eventually(lambda: ada.power_w() == DEFAULT_W and not ada.entries, "the end of the trial", 30)
    ada.sh(f"rm -rf {ada.journal}.lock")
    assert ada.typed(*SET)[0] == 0
    ada.sh(script)
    code, shown = ada.typed("revert")
    assert code == 0 and ada.power_w() == DEFAULT_W, shown


def test_another_account_can_do_nothing_to_it(
    ada: SudoAccount, people: tuple[list[str], str, Path]
) -> None:
    pid, other = on_trial(ada, "20"), people[0][1]

    def tried(*argv: str) -> str:
        done = subprocess.run(
            ["runuser", "-u", other, "--", *argv],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert done.returncode != 0, argv
        return done.stderr

    for sign in ("KILL", "STOP", "TERM", "HUP"):
        assert "not permitted" in tried("sh", "-c", f"kill -{sign} {pid}")
    for path in (ada.journal, ada.gpu / "guard" / "log", Path(f"/proc/{pid}/environ")):
        assert "Permission denied" in tried("cat", str(path))
    assert "Permission denied" in tried("touch", str(ada.gpu / "guard" / "leave"))
    assert alive(pid) and ada.power_w() == 200.0
    with pytest.raises(subprocess.CalledProcessError):
        ada.sh(f"kill -KILL {pid}")  # nor can her own programs
    assert ada.typed("revert")[0] == 0


@pytest.mark.long
def test_the_file_for_sudoers_is_all_that_is_needed(ada: SudoAccount) -> None:
    ada.allow("")
    code, refused = ada.run(*SET)
    assert (
        code == 1
        and "`workbench gpu sudoers`" in refused["outcomes"][0]["right"]
        and ada.calls == []
    )
    ada.allow(ada.ok("sudoers")["sudoers"])
    for words in (
        SET,
        ("set", "--lock-gpu-clocks", "600,1200", "--yes"),
        ("set", "--persistence", "off", "--yes"),
    ):
        done = ada.ok(*words)
        assert done["guard"]["running"], done
        assert not any("cannot be reverted" in o["message"] for o in done["outcomes"]), done
    assert status_words(guard_of(ada), "Uid") == [str(ada.home.stat().st_uid)] * 4, (
        "it needs no root for that"
    )
    assert (
        ada.ok("revert")["ok"]
        and ada.power_w() == DEFAULT_W
        and ada.sim.settings()[0].gpu_lock_mhz is None
    )
    ada.ok(*SET, "--trial", "2")
    eventually(lambda: ada.power_w() == DEFAULT_W and not ada.entries, "the end of the trial", 30)
    listed = subprocess.run(
        ["sudo", "-l", "-U", ada.name], capture_output=True, text=True, check=True
    ).stdout
    assert f"{ada.roots}/bin/nvidia-smi" in listed and str(ada.home) not in listed
    more = [
        "sudo",
        "-n",
        f"{ada.roots}/bin/nvidia-smi",
        "-i",
        ada.ok("status")["gpus"][0]["uuid"],
        "-pl",
        "200",
        "-q",
    ]
    assert (
        subprocess.run([*ada.prefix, *more], capture_output=True, check=False, cwd="/").returncode
        != 0
    )


@pytest.mark.long
def test_sudos_own_reasons_are_passed_on(ada: SudoAccount) -> None:
    code, shown = ada.typed(*SET, secret="not " + SECRET)
    assert code == 1 and "sudo rejects this password; nothing was changed" in shown
    ada.allow(f"Defaults:{ada.name} requiretty\n{ada.name} ALL=(ALL) ALL\n")
    right = ada.run(*SET)[1]["outcomes"][0]["right"]
    assert (
        "sudo says: sorry, you must have a tty to run sudo"
    ) in right and "gpu sudoers" not in right
    ada.allow(f"{ada.name} ALL=(ALL) ALL\n")
    subprocess.run(["chage", "-d", "0", ada.name], check=True)
    try:
        code, shown = ada.typed(*SET)
    finally:
        subprocess.run(["chage", "-d", "20000", ada.name], check=True)
    assert (
        code == 1
        and "expired" in shown
        and ("rejects this password") not in shown
        and ada.calls == []
    )
