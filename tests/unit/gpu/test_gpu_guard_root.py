"""A guard that sudo made root, in a directory of which every file is somebody else's to change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.procs import alive, eventually

from workbench.gpu import remote_programs
from workbench.gpu.guard import privileges
from workbench.gpu.settings import owners

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = 65534
UUID = "GPU-00000000-0000-4000-8000-000000000000"
SMI = r"""#!/bin/sh
echo "$(id -u) $(pwd) $*" >>{calls}
case $* in *query*) cat "{calls}$2" 2>/dev/null || echo 450.00 ;; *-pl*) echo "$4" >"{calls}$2" ;; esac
"""


class Served:
    """The person's state directory, and what only root can touch: programs, and a note of how they
    were called."""

    def __init__(self, roots: Path) -> None:
        # nobody may enter it: pytest's are root's
        self.home = Path(tempfile.mkdtemp(prefix="workbench-person-"))
        self.gpu = self.home / "gpu"
        self.gpu.mkdir(mode=0o700)
        self.roots, self.calls_file = roots, roots / "calls"
        self.smi = self.program(roots / "nvidia-smi")
        self.journal = self.gpu / "journal.json"
        self.give()

    def program(self, path: Path) -> Path:
        path.write_text(SMI.format(calls=self.calls_file))
        path.chmod(0o755)
        return path

    def give(self) -> None:
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)

    def entry(self, **changes: Any) -> dict[str, Any]:
        made = {
            "gpu_uuid": UUID,
            "gpu_index": 0,
            "gpu_name": "x",
            "setting": "power_limit_w",
            "before": 600.0,
            "before_known": "read",
            "now": 450.0,
            "since_unix_s": 1.0,
            "boot_id": owners.identity_of_this_process()["boot_id"],
            "driver": None,
            "who": "ada@box",
            "owner": {**owners.identity_of_this_process(), "pid": 4194304},
            "state": "applied",
            "watch": {"heartbeat_s": 0.3},
        }
        return {**made, **changes}

    def write(self, *entries: dict[str, Any]) -> None:
        self.journal.write_text(json.dumps({"version": 1, "entries": entries, "log": []}))
        os.chown(self.journal, NOBODY, NOBODY)

    def start(self, uid: str = str(NOBODY), **orders: Any) -> dict[str, Any]:
        tee = shutil.which("tee") or ""
        given = {
            "root": str(self.gpu),
            "nvidia_smi": str(self.smi),
            "tee": tee,
            "options": {"tick_s": 0.05},
            **orders,
        }
        env = {
            **os.environ,
            "WORKBENCH_SIM_SYSFS": str(self.home),
            "LD_LIBRARY_PATH": str(self.home),
            "SUDO_UID": uid,
        }
        done = subprocess.run(
            remote_programs.GUARD_PROGRAM.argv(sys.executable, False, given),
            input=remote_programs.GUARD_PROGRAM.stdin_frame(False),
            env=env,
            capture_output=True,
            timeout=60,
            check=True,
        )
        return dict(json.loads(done.stdout))

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    @property
    def log(self) -> str:
        return (self.gpu / "guard" / "log").read_text()

    def altered(self) -> list[Any]:
        return list(json.loads(self.journal.read_text())["entries"])

    def end(self) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                mine = str(self.gpu).encode() in path.read_bytes()
            except OSError:
                continue
            if mine:
                os.kill(int(path.parent.name), signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.end()


def test_commands_are_roots_and_files_the_persons(served: Served) -> None:
    served.write(served.entry(watch={"heartbeat_s": 600.0}))
    pid = served.start()["pid"]

    def is_person() -> bool:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        words = {line.partition(":")[0]: line.split()[1:] for line in lines}
        uids = ["0", str(NOBODY), "0", str(NOBODY)]
        return words["Uid"] == uids and words["Gid"][1] == str(NOBODY)

    eventually(is_person, "the person's rights")
    environment = dict(
        e.split("=", 1) for e in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in e
    )
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: served.altered() == [], "the settings of before")
    assert served.calls[1] == f"0 / -i {UUID} -pl 600"
    eventually(lambda: not alive(pid), "its end")
    made = [served.journal, *(served.gpu / "guard").rglob("*")]
    assert {path.stat().st_uid for path in made} == {NOBODY} and all(
        p.stat().st_mode & 0o077 == 0 for p in made
    )
    # of its start: it has put it aside, or /sys would be the person's
    assert "WORKBENCH_SIM_SYSFS" in environment


def test_the_governor_is_written_where_cores_have_theirs(served: Served) -> None:
    core = served.home / "devices/system/cpu/cpu0/cpufreq"
    core.mkdir(parents=True)
    # what WORKBENCH_SIM_SYSFS would lead to
    (core / "scaling_governor").symlink_to(served.roots / "target")
    served.give()
    served.write(
        served.entry(
            gpu_uuid="host", gpu_index=-1, setting="governor", before="powersave", now="performance"
        )
    )
    served.start()
    eventually(lambda: "FAILED" in served.log or "reverted" in served.log, "an attempt")
    assert not (served.roots / "target").exists() and str(served.home) not in served.log


@pytest.mark.parametrize(
    "name", ["guard", "guard/log", "guard/pid", "guard/lock", "guard/beats", "guard/state.json"]
)
def test_no_link_leads_root_elsewhere(served: Served, name: str) -> None:
    secret = served.roots / "secret"
    secret.mkdir(mode=0o700)
    target = secret if name in ("guard", "guard/beats") else secret / "file"
    if target != secret:
        target.write_text("root's own")
    if name != "guard":
        (served.gpu / "guard").mkdir()
    (served.gpu / name).symlink_to(target)
    served.give()
    served.write(served.entry())
    answer = served.start()
    if "pid" in answer:  # then it does its work all the same
        eventually(lambda: served.altered() == [], "the settings of before")
        eventually(lambda: not alive(answer["pid"]), "its end")
    else:
        assert "Permission denied" in answer["error"] or "File exists" in answer["error"]
    assert [p.name for p in secret.iterdir()] == ([] if target == secret else ["file"])
    assert target == secret or (target.read_text(), target.stat().st_uid) == ("root's own", 0)


@pytest.mark.slow
def test_a_directory_that_is_exchanged_is_not_followed(served: Served) -> None:
    """Above it all is the person's, also where the state is root's (`sudo workbench` with the
    person's HOME)."""
    os.chown(served.gpu, 0, 0)
    served.write(served.entry(watch={"trial": "a", "trial_s": 1.5}))
    served.start(uid="0")
    served.gpu.rename(served.home / "aside")
    served.gpu.mkdir()
    elsewhere = served.roots / "elsewhere"
    elsewhere.mkdir()
    (served.gpu / "guard").symlink_to(elsewhere)
    served.write(served.entry(before=300.0, watch={"heartbeat_s": 0.1}))
    served.give()
    eventually(
        lambda: json.loads((served.home / "aside/journal.json").read_text())["entries"] == [],
        "the true one",
    )
    assert [c for c in served.calls if "query" not in c] == [f"0 / -i {UUID} -pl 600"]
    assert list(elsewhere.iterdir()) == [] and [e["before"] for e in served.altered()] == [300.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"before": "600; touch /pwned"}, {"gpu_uuid": "--help"}], ids=["watts", "uuid"]
)
def test_nothing_is_done_by_what_no_workbench_writes(
    served: Served, changes: dict[str, Any]
) -> None:
    """Not by it, and by what the journal said before it was forged. What that is:
    test_gpu_journal_forged.py."""
    served.write(served.entry(watch={"trial": "a", "trial_s": 1.0}))
    served.start()
    served.write(served.entry(**changes))
    forged = served.journal.read_bytes()
    eventually(lambda: "reverted" in served.log, "what was before the forgery")
    assert (
        "contains a value that Workbench cannot have written" in served.log
        and "the guard uses its earlier contents" in served.log
    )
    assert [c for c in served.calls if "query" not in c] == [f"0 / -i {UUID} -pl 600"]
    assert served.journal.read_bytes() == forged


def test_programs_are_those_of_its_start(served: Served) -> None:
    evil = served.home / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {served.roots}/pwned\n")
    evil.chmod(0o755)
    served.give()
    served.write(
        served.entry(
            watch={"heartbeat_s": 0.3, "smi": str(evil), "tee": str(evil), "sudo": [str(evil)]}
        )
    )
    served.start()
    eventually(lambda: served.altered() == [], "the settings of before")
    assert not (served.roots / "pwned").exists() and len(served.calls) == 3  # asked, set, asked


def test_a_gpu_that_hangs_does_not_hold_up_another(served: Served) -> None:
    hung = UUID.replace("GPU-0", "GPU-f")
    never_ends = f"exec tail -f {served.gpu}/guard/log"
    served.smi.write_text(
        served.smi.read_text().replace("case", f"case $* in *{hung}*) {never_ends} ;; esac\ncase")
    )
    served.write(served.entry(gpu_uuid=hung), served.entry(gpu_index=1))
    served.start()
    eventually(
        lambda: any(f"-i {UUID} -pl 600" in call for call in served.calls),
        "the other one's",
        privileges.COMMAND_S / 2,
    )


@pytest.mark.parametrize("whose", ["the file", "its directory", "a link to it"])
def test_a_program_that_another_can_change_is_not_run(served: Served, whose: str) -> None:
    theirs = served.home / "bin"
    theirs.mkdir()
    smi = served.program(theirs / "nvidia-smi")
    if whose == "a link to it":  # what it leads to now is meant, whatever it leads to later
        smi.unlink()
        smi.symlink_to(served.smi)
    served.give()
    if whose == "its directory":
        os.chown(smi, 0, 0)
    served.write(served.entry())
    answer = served.start(nvidia_smi=str(smi))
    if whose == "a link to it":
        smi.unlink()
        eventually(lambda: served.altered() == [], "the settings of before")
    else:
        assert "because users other than root can change" in answer["error"] and not served.calls
        assert not (served.gpu / "guard").exists()


@pytest.mark.parametrize(
    "text", ['{"trials": [1]}', '{"boot_id": "BOOT", "trials": {"a": "x", "b": 1e99}}', "[", "[]"]
)
def test_a_forged_state_delays_no_trial(served: Served, text: str) -> None:
    (served.gpu / "guard").mkdir()
    state = served.gpu / "guard" / "state.json"
    state.write_text(text.replace("BOOT", str(owners.identity_of_this_process()["boot_id"])))
    served.give()
    served.write(
        served.entry(watch={"trial": "a", "trial_s": 0.3}),
        served.entry(
            setting="gpu_clocks", before="default", now="1,2", watch={"trial": "b", "trial_s": 0.3}
        ),
    )
    served.start()
    eventually(lambda: served.altered() == [], "the end of the trials")


def test_it_takes_over_from_one_that_is_not_root(served: Served) -> None:
    served.write(served.entry(watch={"heartbeat_s": None}))
    orders = {"root": str(served.gpu), "nvidia_smi": str(served.smi), "options": {"tick_s": 0.05}}
    served.calls_file.touch()
    argv = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        *remote_programs.GUARD_PROGRAM.argv("/usr/bin/python3", False, orders),
    ]
    done = subprocess.run(
        argv,
        input=remote_programs.GUARD_PROGRAM.stdin_frame(False),
        capture_output=True,
        timeout=60,
        check=True,
    )
    first = json.loads(done.stdout)["pid"]
    second = served.start()["pid"]
    eventually(lambda: not alive(first), "the first to leave")
    assert alive(second) and "ending: another guard takes over" in served.log
    assert json.loads((served.gpu / "guard/state.json").read_text())["root"] is True
    assert not (served.gpu / "guard/leave").exists()
    assert served.start()["pid"] == second
