"""Two users on one GPU, in every order in which they can get in each other's way, and a third with
nvidia-smi."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.procs import eventually
from support.serving import free_port
from support.two_users import ORIGINAL_W, PRO, TwoUsers, User, done, two_accounts, two_directories
from support.typed_screen import TypedScreen

A_W, B_W = 450.0, 400.0
Step = Callable[[TwoUsers], None]


def who(users: TwoUsers, name: str) -> User:
    return users.a if name == "a" else users.b


def power(name: str) -> tuple[str, ...]:
    watts = str(A_W if name == "a" else B_W)
    return ("set", "--power-limit", watts, "--foreign", "replace", "--yes")


def set_(name: str) -> Step:
    return lambda users: (who(users, name).ok(*power(name)), None)[1]


def lock(name: str) -> Step:
    mhz = "1000,2000" if name == "a" else "1500,1500"
    words = ("set", "--lock-gpu-clocks", mhz, "--foreign", "replace")
    return lambda users: (who(users, name).ok(*words, "--yes"), None)[1]


def trial(name: str, seconds: float) -> Step:
    return lambda users: (who(users, name).ok(*power(name), "--trial", str(seconds)), None)[1]


def ended(name: str) -> Step:
    return lambda users: who(users, name).reverted()


def revert(name: str) -> Step:
    return lambda users: (who(users, name).ok("revert"), None)[1]


def keep(name: str) -> Step:
    return lambda users: (who(users, name).ok("keep"), None)[1]


def no_guard(name: str) -> Step:
    return lambda users: who(users, name).kill_guard()


def both(users: TwoUsers) -> None:
    """At once: neither fails, and neither is undone by the other."""
    users.a.ok("status")  # makes the simulated host
    processes = [user.spawn(*power(name)) for name, user in (("a", users.a), ("b", users.b))]
    for code, document in map(done, processes):
        assert code == 0, document


ORDERS: dict[str, tuple[Step, ...]] = {
    "a b, a reverts first": (set_("a"), set_("b"), revert("a"), revert("b")),
    "a b, b reverts first": (set_("a"), set_("b"), revert("b"), revert("a")),
    "a trial, b, a's guard": (trial("a", 7), set_("b"), ended("a"), revert("b")),
    "a, b trial, a reverts, b's guard": (set_("a"), trial("b", 8), revert("a"), ended("b")),
    "a b, a keeps": (set_("a"), set_("b"), keep("a"), revert("b"), revert("a")),
    "a, its guard killed, b": (set_("a"), no_guard("a"), set_("b"), revert("a"), revert("b")),
    "both at once": (both, revert("a"), revert("b")),
    "a short trial, b long trial": (trial("a", 4), trial("b", 9), ended("a"), ended("b")),
    "a long trial, b short trial": (trial("a", 15), trial("b", 2), ended("b"), ended("a")),
    "locks": (lock("a"), lock("b"), revert("a"), revert("b")),
    "locks, b reverts first": (lock("a"), lock("b"), revert("b"), revert("a")),
}


IN_CI = (
    "both at once",
    "locks",
)


def nobody_is_wrong(users: TwoUsers) -> None:
    """Of what each is told: a value that holds, or that it does not; and what is altered is
    somebody's."""
    known = {ORIGINAL_W}
    for user in (users.a, users.b):
        status = user.ok("status")
        drifting = {d["setting"]: d["now"] for d in status["drift"]}
        for one in status["altered"]:
            if one["setting"] == "power_limit_w":
                known.add(one["now"])
                assert drifting.get("power_limit_w", one["now"]) == users.power_w
        other = users.b if user is users.a else users.a
        assert [(o["setting"], o["now"]) for o in status["others"]] == [
            (e["setting"], e["now"]) for e in other.entries
        ]
    assert users.power_w in known


def in_order(users: TwoUsers, steps: tuple[Step, ...]) -> None:
    for step in steps[:-1]:
        step(users)
    nobody_is_wrong(users)
    if users.lock_mhz is not None:  # a's revert has left b's lock, and b's has put a's back
        (held,) = [*users.a.entries, *users.b.entries]
        assert held["now"] == ",".join(map(str, users.lock_mhz))
    steps[-1](users)
    assert (users.power_w, users.lock_mhz) == (ORIGINAL_W, None)
    for user in (users.a, users.b):  # what was left to the other one is settled
        user.ok("status")
        if user.left:  # of a lock only a revert knows
            assert all("clocks" in entry["setting"] for entry in user.left)
            user.ok("revert")
    assert users.a.journal == users.b.journal == []
    assert (users.power_w, users.lock_mhz) == (ORIGINAL_W, None)
    # a guard writes its journal first
    eventually(lambda: claimed(users) == [], "an empty register")


def claimed(users: TwoUsers) -> list[dict[str, object]]:
    return [
        entry
        for file in users.register.iterdir()
        for entry in json.loads(file.read_text())["entries"]
    ]


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[TwoUsers]:
    with two_directories(tmp_path) as users:
        yield users


@pytest.fixture
def accounts() -> Iterator[TwoUsers]:
    with two_accounts() as users:
        yield users


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(steps, id=name, marks=() if name == "both at once" else pytest.mark.long)
        for name, steps in ORDERS.items()
    ],
)
def test_two_state_directories(directories: TwoUsers, steps: tuple[Step, ...]) -> None:
    in_order(directories, steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(steps, id=name, marks=() if name in IN_CI else pytest.mark.long)
        for name, steps in ORDERS.items()
    ],
)
def test_two_accounts(accounts: TwoUsers, steps: tuple[Step, ...]) -> None:
    in_order(accounts, steps)


@pytest.mark.slow
def test_the_fleet_shows_the_lock_that_is_in_force(directories: TwoUsers) -> None:
    lock("a")(directories)
    lock("b")(directories)
    user = directories.a
    argv = [user.python, "-m", "workbench", "fleet", f"sim:{PRO}", "--json"]
    ran = subprocess.run(argv, cwd="/", env=user.env, capture_output=True, text=True, timeout=60)
    (host,) = json.loads(ran.stdout)["hosts"]
    assert [one["now"] for one in host["altered"]] == [{"min_mhz": 1500, "max_mhz": 1500}]


@pytest.mark.long
@pytest.mark.slow
def test_of_two_accounts_the_owner_of_a_file_is_who_made_the_claim(accounts: TwoUsers) -> None:
    a, b = accounts.a, accounts.b
    a.ok(*power("a"))
    (one,) = b.ok("status")["others"]
    assert (one["extra"]["by"], one["before"], one["now"]) == (a.name, ORIGINAL_W, A_W)
    (file,) = accounts.register.iterdir()
    assert file.owner() == a.name and "/home" not in file.read_text()
    planned = b.ok(*power("b"), "--dry-run")["outcomes"][0]
    assert f"now 450 W, set by {a.name} with Workbench" in planned["message"]
    b.ok(*power("b"))
    (entry,) = b.entries
    assert (entry["before"], entry["before_known"], entry["origin"], entry["over"]) == (
        ORIGINAL_W,
        "default",
        a.name,
        [A_W],
    )
    report = a.ok("revert")
    assert f"set by {b.name}" in report["outcomes"][0]["message"] and accounts.power_w == B_W
    b.ok("revert")
    assert accounts.power_w == ORIGINAL_W


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["not changed before", "changed before"])
def test_a_value_of_another_user_is_kept_and_named_and_yes_alone_does_not_replace_it(
    directories: TwoUsers, known: bool
) -> None:
    """`--foreign keep` kept only what was set by hand, and replaced what another Workbench had set."""
    a, b = directories.a, directories.b
    if known:
        a.ok("set", "--power-limit", "500", "--yes")
    b.ok(*power("b"))
    before = a.journal
    wanted = ("set", "--power-limit", str(A_W))
    code, refused = a.run(*wanted, "--yes")
    assert code == 2 and "now 400 W" in refused["error"] and "set by" in refused["error"]
    assert "--foreign keep" in refused["next_step"] and directories.power_w == B_W
    answer = a.ok(*wanted, "--foreign", "keep", "--yes")
    (named,) = answer["kept"]
    assert answer["commands"] == [] and "now 400 W" in named and "set by" in named
    assert directories.power_w == B_W and a.journal == before
    replaced = a.ok(*wanted, "--foreign", "replace", "--yes")
    assert replaced["kept"] == [] and directories.power_w == A_W


def forged(users: TwoUsers, watts: float) -> Path:
    """A file of b in the register that claims a's setting, and that nothing of b's has made."""
    (real,) = users.register.iterdir()
    said = json.loads(real.read_text())
    (entry,) = said["entries"]
    later = entry["set_unix_s"] + 0.001
    entry = {**entry, "now": watts, "since_unix_s": later, "set_unix_s": later}
    file = users.register / "workbench-gpu.forged.json"
    file.write_text(json.dumps({**said, "journal": "f" * 16, "entries": [entry], "changes": []}))
    file.chmod(0o644)
    shutil.chown(file, users.b.name)
    return file


@pytest.mark.slow
@pytest.mark.long
def test_a_setting_that_is_left_to_somebody_is_reverted_once_the_claim_is_gone(
    accounts: TwoUsers,
) -> None:
    a, b = accounts.a, accounts.b
    a.ok(*power("a"))
    file = forged(accounts, A_W)
    (outcome,) = a.ok("revert")["outcomes"]
    assert f"set by {b.name}" in outcome["message"] and "stays in the journal" in outcome["message"]
    assert accounts.power_w == A_W and [e["state"] for e in a.left] == [f"left to {b.name}"]
    (altered,) = a.ok("status")["altered"]
    assert altered["extra"]["state"] == f"left to {b.name}"
    file.unlink()
    (altered,) = a.ok("status")["altered"]
    assert altered["now"] == A_W, "still offered"
    a.ok("revert")
    assert accounts.power_w == ORIGINAL_W and a.journal == []


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_that_is_left_to_somebody_is_not_forgotten(accounts: TwoUsers) -> None:
    a, b = accounts.a, accounts.b
    a.ok(*power("a"), "--trial", "4")
    file = forged(accounts, A_W)
    eventually(lambda: a.left, "the end of the trial", 30)
    assert accounts.power_w == A_W and a.left[0]["state"] == f"left to {b.name}"
    file.unlink()
    a.ok("revert")
    assert accounts.power_w == ORIGINAL_W and a.journal == []


# ---- the same preset for both

PRESET = """
schema = 1
id = "whole"
title = "One preset of two users"
summary = "For tests."

[hardware]

[engine]
name = "vllm"

[model]
id = "Qwen/Qwen3-0.6B"

[flags]
port = {port}
gpu-memory-utilization = 0.3

[[gpu_settings]]
power_limit_w = 400.0
governor = "powersave"

[provenance]
document = "none"
status = "untested"
"""


@contextmanager
def applied(user: User) -> Iterator[dict[str, Any]]:
    """Apply the preset as `user`; the server is stopped at the end."""
    presets = Path(user.env["XDG_CONFIG_HOME"], "workbench", "presets")
    presets.mkdir(parents=True)
    (presets / "whole.toml").write_text(PRESET.format(port=free_port()))
    user.env["WORKBENCH_SIM_START_S"] = "0.2"
    code, document = done(user.spawn("apply", "whole", "--yes", command="presets"))
    try:
        assert code == 0, document
        yield document
    finally:
        done(user.spawn(document["run_id"], command="stop"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("first", ["a", "b"])
def test_two_users_of_one_preset_take_no_setting_from_each_other(
    directories: TwoUsers, first: str
) -> None:
    one, other = (directories.a, directories.b) if first == "a" else (directories.b, directories.a)
    with applied(directories.a), applied(directories.b) as second:
        limit = next(part for part in second["parts"] if part["name"] == "GPU0 power limit")
        assert (limit["before"], limit["after"]) == ("400 W", "400 W")
        for user in (one, other):  # each has the values of before A's change, on disk
            before = {entry["setting"]: entry["before"] for entry in user.entries}
            assert before == {"power_limit_w": ORIGINAL_W, "governor": "performance"}
        report = one.ok("revert")
        assert [outcome["ok"] for outcome in report["outcomes"]] == [True, True] and report[
            "commands"
        ] == []
        assert all("left alone: it is " in outcome["message"] for outcome in report["outcomes"])
        assert "400 W, set by" in next(
            o["message"] for o in report["outcomes"] if o["setting"] == "power_limit_w"
        )
        assert directories.power_w == 400.0 and one.entries == [] and len(other.entries) == 2
        code, report = other.run("revert")
        asked = [outcome["message"] for outcome in report["outcomes"] if outcome["foreign"]]
        if other is directories.a:  # who has read the values of before A's change itself
            assert (code, asked) == (0, [])
        else:  # 600 W is the driver's default; only A tells what the governor was
            (text,) = asked
            assert code == 1 and "reports performance as the previous value" in text
            other.ok("revert", "--foreign", "original")
        assert directories.power_w == ORIGINAL_W and other.entries == []


# ---- a register that is not what it should be


@pytest.mark.long
@pytest.mark.slow
def test_an_emptied_register_and_a_lost_journal_lose_no_value(directories: TwoUsers) -> None:
    a, b = directories.a, directories.b
    a.ok(*power("a"))
    shutil.rmtree(directories.register)
    (a.gpu / "journal.json").unlink()
    eventually(
        lambda: directories.register.is_dir() and list(directories.register.iterdir()),
        "the guard's word",
        30,
    )
    b.ok(*power("b"))
    a.ok("revert")
    b.ok("revert")
    assert directories.power_w == ORIGINAL_W


@pytest.mark.long
@pytest.mark.slow
def test_whoever_was_not_told_of_a_change_does_not_become_the_way_back_from_it(
    directories: TwoUsers,
) -> None:
    a, b = directories.a, directories.b
    a.ok(*power("a"))
    a.kill_guard()  # which would tell it again
    shutil.rmtree(directories.register)
    b.ok(*power("b"))
    code, document = a.run("revert")
    assert code == 1 and "its revert sets 450 W, not 600 W" in document["outcomes"][0]["message"]
    b.ok("revert")
    a.ok("revert")
    assert directories.power_w == ORIGINAL_W and a.ok("status")["guard"]["problem"] is None


@pytest.mark.slow
def test_a_value_that_only_another_told_is_not_set_without_asking(directories: TwoUsers) -> None:
    """Whoever may not change a GPU can still say that its limit was another one."""
    a, b = directories.a, directories.b
    b.ok(*power("b"))
    (file,) = directories.register.iterdir()
    told = json.loads(file.read_text())
    told["entries"][0]["before"], told["entries"][0]["now"] = 200.0, ORIGINAL_W
    b.kill_guard()
    directories.by_hand(ORIGINAL_W)
    file.write_text(json.dumps(told))
    a.ok(*power("a"))
    file.unlink()
    code, document = a.run("revert")
    assert code == 1 and "reports 200 W as the previous value" in document["outcomes"][0]["message"]
    assert directories.power_w == A_W and len(a.entries) == 1


@pytest.mark.slow
def test_a_register_that_cannot_be_used_is_said_with_the_change(directories: TwoUsers) -> None:
    shutil.rmtree(directories.register, ignore_errors=True)
    directories.register.write_text("a file")
    (outcome,) = directories.a.ok(*power("a"))["outcomes"]
    assert "Not a directory; other users cannot see this change either" in outcome["message"]


# ---- someone with nvidia-smi

CHOICES = {"keep": 200.0, "ours": A_W, "original": ORIGINAL_W}


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "left_w"), CHOICES.items(), ids=CHOICES)
@pytest.mark.long
def test_a_revert_over_a_value_of_someone_else_needs_a_choice(
    directories: TwoUsers, choice: str, left_w: float
) -> None:
    a = directories.a
    a.ok(*power("a"))
    directories.by_hand(200.0)
    (drift,) = a.ok("status")["drift"]
    assert drift["text"] == "set to 450 W by Workbench, now 200 W: changed by someone else"
    code, document = a.run("revert")
    (outcome,) = document["outcomes"]
    assert code == 1 and outcome["foreign"] and not outcome["ok"] and document["commands"] == []
    assert directories.power_w == 200.0 and [e["now"] for e in a.entries] == [A_W]
    report = a.ok("revert", "--foreign", choice)
    assert directories.power_w == left_w and bool(a.entries) is (choice == "ours")
    assert choice == "keep" or report["outcomes"][0]["before"] == 200.0
    assert choice != "ours" or "Workbench's value is set again" in report["outcomes"][0]["message"]
    a.ok("revert")
    assert directories.power_w == (200.0 if choice == "keep" else ORIGINAL_W) and a.entries == []


@pytest.mark.long
@pytest.mark.slow
def test_a_guard_never_sets_over_a_value_of_someone_else(directories: TwoUsers) -> None:
    a = directories.a
    a.ok(*power("a"), "--trial", "6")
    directories.by_hand(200.0)
    log = a.gpu / "guard" / "log"
    eventually(lambda: "did not revert GPU0 power limit" in log.read_text(), "the guard's word", 30)
    assert directories.power_w == 200.0
    status = a.ok("status")
    assert (
        "now 200 W: changed by someone else" in status["guard"]["did"] and len(status["drift"]) == 1
    )
    a.ok("revert", "--foreign", "original")
    assert directories.power_w == ORIGINAL_W


@pytest.mark.long
@pytest.mark.slow
def test_the_screen_shows_whose_values_are_there_and_asks(
    directories: TwoUsers, tmp_path: Path
) -> None:
    a, b = directories.a, directories.b
    a.ok(*power("a"))
    b.ok("set", "--lock-gpu-clocks", "1000,1000", "--yes")
    screen = TypedScreen(
        ["--simulate", PRO], (150, 40), {**a.env, "TERM": "xterm-256color"}, tmp_path
    )
    try:
        screen.until("GPU altered", "450W")
        directories.by_hand(200.0)
        screen.until("GPU changed by someone else (r asks)", "now 200 W: changed by someone else")
        screen.press("6")
        screen.until(
            "GPU clocks 1000 MHz by",
            "(another state directory)",
            "set to 450 W by Workbench, now 200 W",
        )
        screen.press("r")
        screen.until("Someone else has changed these settings", "set Workbench's value again")
        # as long as that is so, also while it is asked
        screen.until("GPU changed by someone else (r asks)")
        assert directories.power_w == 200.0
        screen.press("down", "enter")
        screen.until("Set again: GPU0 power limit")
        assert directories.power_w == A_W
        directories.by_hand(200.0)
        screen.until("GPU changed by someone else (r asks)")
        screen.press("r")
        screen.until("Someone else has changed these settings")
        screen.press("down", "down", "enter")
        eventually(
            lambda: screen.text and directories.power_w == ORIGINAL_W,
            "what was there before Workbench",
        )
        screen.until("Reverted: GPU0 power limit")
        assert a.entries == [] and len(b.entries) == 1  # and nothing is done to what b has set
    finally:
        screen.close()
