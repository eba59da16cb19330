"""What the guard runs, and with whose rights it does what. Sent to the host: standard library only, Python 3.8.

A guard that sudo made root serves the user who called sudo, and reads files that any of that user's programs can
change. So:

    it takes the user from SUDO_UID, which sudo sets, and that user's rights before it opens anything
    only commands are run as root
    which programs it runs is fixed at its start, and nobody but root may be able to change them
    what the journal names is checked (revert.unfit) before it becomes a word of a command, and only what stood there
    at the start is ever set (guard.py)
"""

# ruff: noqa: PTH116, PTH117, PTH120, PTH123, PTH208  (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.gpu.guard.files import uids_of
from workbench.gpu.settings import claims, revert

COMMAND_S = 60.0  # as running.py
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}  # of a root that serves a person


class Unsafe(Exception):
    """The text says what cannot be run as root."""


class Programs:
    def __init__(self, orders: Mapping[str, Any]) -> None:
        """`orders`: paths of "nvidia_smi" and "tee", and "sudo": words before them for a guard that is not root."""
        self.root = os.geteuid() == 0
        self.user = served(os.environ.get("SUDO_UID", "0")) if self.root else None
        self.sudo = () if self.root else tuple(orders.get("sudo", ()))
        self.nvidia_smi, self.tee = orders.get("nvidia_smi", "nvidia-smi"), orders.get("tee", "tee")
        self.files: dict[str, str] = {}  # of programs that are run whatever their path comes to mean
        if self.user is not None:
            unlimited()
            os.environ.clear()
            os.environ.update(ENVIRONMENT)
            os.initgroups(self.user.pw_name, self.user.pw_gid)  # by which the GPU's device files may be open to it
            self.become(self.user.pw_uid, self.user.pw_gid)
            with self.as_root():  # they may lie where only root looks
                self.files = {program: unchangeable(program) for program in (self.nvidia_smi, self.tee)}
                unchangeable(sys.executable)
                unchangeable(os.__file__)  # and with it the standard library
                with contextlib.suppress(Unsafe):
                    self.files["sudo"] = unchangeable("sudo")
        self.sysfs = os.environ.get("WORKBENCH_SIM_SYSFS") or revert.SYSFS

    def become(self, uid: int, gid: int) -> None:
        """For the kernel's checks; root stays within reach, and the user cannot signal or trace us."""
        os.seteuid(0)
        os.setegid(gid)
        os.seteuid(uid)

    @contextlib.contextmanager
    def as_root(self) -> Iterator[None]:
        """For commands. Of the whole process: no file is touched meanwhile."""
        if self.user is None:
            yield
            return
        self.become(0, 0)
        try:
            yield
        finally:
            self.become(self.user.pw_uid, self.user.pw_gid)

    def set(self, step: revert.SettingStep) -> tuple[int, str]:
        return self.run((*self.sudo, *step.argv), step.stdin)

    def run(self, argv: Sequence[str], stdin: str | None = None) -> tuple[int, str]:
        """Exit code and what it said. One that hangs in the driver is left behind."""
        try:
            process = subprocess.Popen(
                argv,
                executable=self.files.get(argv[0]),
                cwd="/",
                start_new_session=True,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            return 127, f"{argv[0]}: {error.strerror}"
        try:
            said, _ = process.communicate(stdin.encode() if stdin else None, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            return 124, f"did not end within {COMMAND_S:g} s"
        return process.returncode, said.decode("utf-8", "replace")

    def may_set(self, claim: claims.SettingClaim) -> bool:
        """Whether its user can have set what it claims: root, our own user, and whom sudo lets run the command. sudo
        tells root about others, and those who may run everything; where it does not tell, the claim is believed."""
        known = (0, os.getuid(), self.user.pw_uid if self.user else 0)
        if claim.uid in known or (self.user is not None and "sudo" not in self.files):
            return True
        try:
            name = pwd.getpwuid(claim.uid).pw_name
        except (KeyError, OverflowError):
            return False  # sudo does nothing for an account that has no name
        with self.as_root():
            for step in revert.steps(*claim.key, revert.wanted_back(claim.now), nvidia_smi=self.nvidia_smi):
                code, said = self.run(("sudo", "-n", "-l", "-U", name, *step.argv))
                if code == 1 and not said.strip():  # it says no more when the answer is no
                    return False
        return True

    def is_guard(self, pid: int) -> bool:
        """Whether a process has the rights to take our place: our user's, not lent to it by a set-user-id program."""
        rights = bool({0, os.getuid()} & uids_of(pid))
        if not self.root or not rights:
            return rights
        try:
            with self.as_root():
                return not os.stat(f"/proc/{pid}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID)
        except OSError:
            return False

    def told(self, uuid: str, setting: str) -> Any:
        """What the host says of a setting now; None where it does not."""
        if setting == "governor":
            return revert.governor_value(dict(self.governors()))
        field = {"power_limit_w": "power.limit", "persistence": "persistence_mode"}.get(setting)
        if field is None:
            return None
        code, said = self.run((self.nvidia_smi, "-i", uuid, "--query-gpu=" + field, "--format=csv,noheader,nounits"))
        if code != 0:
            return None
        if setting == "persistence":
            return {"enabled": True, "disabled": False}.get(said.strip().lower())
        try:
            return float(said)
        except ValueError:
            return None

    def governors(self) -> Iterator[tuple[int, str]]:
        """(core, its governor) of all cores that have one."""
        root = self.sysfs + "/devices/system/cpu"
        for name in os.listdir(root):
            if name[:3] == "cpu" and name[3:].isdigit():
                with contextlib.suppress(OSError), open(f"{root}/{name}/cpufreq/scaling_governor") as file:
                    yield int(name[3:]), file.read().strip()


def unlimited() -> None:
    """Take away what a program of the user may have limited before sudo: CPU time, file sizes, the share of a core."""
    for limit in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def served(sudo_uid: str) -> pwd.struct_passwd | None:
    """Whom a guard that is root serves: the user who called sudo; None: root. Unsafe when that is nobody here."""
    try:
        user = pwd.getpwuid(int(sudo_uid)) if sudo_uid.isascii() and sudo_uid.isdigit() else None
    except (KeyError, OverflowError):
        user = None
    if user is None:
        raise Unsafe(f"SUDO_UID is {sudo_uid!r}, which is no user of this host")
    return user if user.pw_uid != 0 else None


def only_roots(uid: int, gid: int, mode: int) -> bool:
    """Whether only root can change a file, a link, or a directory's names, with this owner and mode."""
    others = stat.S_IWOTH if gid == 0 else stat.S_IWOTH | stat.S_IWGRP
    if stat.S_ISLNK(mode):
        return uid == 0  # whoever can replace it has its directory
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX  # what is root's in it only root moves
    return uid == 0 and (not mode & others or bool(sticky))


def unchangeable(program: str) -> str:
    """Return where its file really is. Unsafe when another than root could change that, or a directory on the way to
    it."""
    real = here = os.path.realpath(program if os.path.isabs(program) else "/usr/bin/" + program)
    while True:
        try:
            found = os.stat(here)
        except OSError as error:
            raise Unsafe(f"{program}: {error.strerror}") from None
        if not only_roots(found.st_uid, found.st_gid, found.st_mode):
            raise Unsafe(f"as root it runs only what nobody else can change, and {here} is not of that kind")
        if here == "/":
            return real
        here = os.path.dirname(here)
