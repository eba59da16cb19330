"""The programs that the guard runs, and its privileges. Workbench sends this module to the host, so
it uses only the standard library and Python 3.8.

A guard that runs as root through sudo serves the user who called sudo, and reads files that this
user can change. Therefore:

- The guard takes the user from SUDO_UID, which sudo sets, and drops to that user's rights before it
  opens a file.
- The guard is root only while commands run.
- The guard's programs are chosen at its start, and must be files that only root can change.
- The journal's entries are checked (setting_commands.describe_invalid_part_of_entry) before a command line
  is made from them, and the guard sets only values that were in the journal at its start
  (guard.py).
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

from workbench.gpu.process_facts import uids_of_process
from workbench.gpu.settings import claims, root_owned
from workbench.model import core_values, setting_commands
from workbench.model.named_tuple import NamedTuple

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

COMMAND_S = 60.0  # as in settings/command_runner.py
# of a root that serves a user
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class UnsafeProgramError(Exception):
    """Raised if it is not safe for the guard to work as root. The text of the exception is the
    reason."""


class CoreValue(NamedTuple):
    """The value of a setting of one CPU core. `idle_states` is how many idle states the core has, 0
    for the governor."""

    cpu: int
    value: str
    idle_states: int


class Programs:
    """Runs the programs that the guard needs (nvidia-smi, tee, sudo): through sudo, as root, or
    with the user's own rights."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        """Choose the programs that the guard runs. `orders` has the paths of "nvidia_smi" and
        "tee", and under "sudo" the command to put before them, which a guard that is root ignores.
        Raises UnsafeProgramError if the guard runs as root for another user, and a user other than
        root can change one of the programs."""
        self.root = os.geteuid() == 0
        self.user = user_behind_sudo(os.environ.get("SUDO_UID", "0")) if self.root else None
        self.sudo = () if self.root else tuple(orders.get("sudo", ()))
        self.nvidia_smi, self.tee = orders.get("nvidia_smi", "nvidia-smi"), orders.get("tee", "tee")
        # real files of the programs, so that a changed path has no effect
        self.files: dict[str, str] = {}
        if self.user is not None:
            lift_resource_limits()
            os.environ.clear()
            os.environ.update(ENVIRONMENT)
            # the groups may give access to the GPU's device files
            os.initgroups(self.user.pw_name, self.user.pw_gid)
            self.set_effective_user(self.user.pw_uid, self.user.pw_gid)
            with self.as_root():  # the programs may be in directories that only root can read
                self.files = {
                    program: resolve_root_owned_program(program)
                    for program in (self.nvidia_smi, self.tee)
                }
                resolve_root_owned_program(sys.executable)
                resolve_root_owned_program(os.__file__)  # and with it the standard library
                with contextlib.suppress(UnsafeProgramError):
                    self.files["sudo"] = resolve_root_owned_program("sudo")
        self.sysfs = os.environ.get("WORKBENCH_SIM_SYSFS", setting_commands.SYSFS)
        # directory with the state of simulated GPUs
        self.simulation = os.environ.get("WORKBENCH_SIM_STATE")

    def set_effective_user(self, uid: int, gid: int) -> None:
        """Change the effective user and group of the process. The real user stays root, so that the
        guard can become root again, and the user cannot signal or trace the guard."""
        os.seteuid(0)
        os.setegid(gid)
        os.seteuid(uid)

    @contextlib.contextmanager
    def as_root(self) -> Iterator[None]:
        """Run the `with` block as root. The whole process is root meanwhile, so the block may only
        run commands, and must not open a file."""
        if self.user is None:
            yield
            return
        self.set_effective_user(0, 0)
        try:
            yield
        finally:
            self.set_effective_user(self.user.pw_uid, self.user.pw_gid)

    def run_setting_step(self, step: setting_commands.SettingStep) -> tuple[int, str]:
        return self.run_program((*self.sudo, *step.argv), step.stdin)

    def run_program(self, argv: Sequence[str], stdin: str | None = None) -> tuple[int, str]:
        """Run a program and return (exit code, its stdout and stderr together). The code is 127 if
        the program cannot be started, and 124 if it does not end within COMMAND_S seconds."""
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

    def can_claimant_set_value(self, claim: claims.SettingClaim) -> bool:
        """Return whether the user who claims to have changed a setting is able to set the value in
        `claim`. Root and this guard's own user are. Another user is if sudo lets that user run the
        command or, with simulated GPUs, if that user can write their state. True also if this guard
        may not ask sudo about the user."""
        known = (0, os.getuid(), self.user.pw_uid if self.user else 0)
        if claim.uid in known:
            return True
        if self.simulation:
            return can_write(claim.uid, self.simulation)
        if self.user is not None and "sudo" not in self.files:
            return True
        try:
            name = pwd.getpwuid(claim.uid).pw_name
        except (KeyError, OverflowError):
            return False  # sudo does nothing for an account that has no name
        with self.as_root():
            for step in setting_commands.commands_to_set_value(
                *claim.gpu_and_setting,
                setting_commands.value_to_restore(claim.now),
                nvidia_smi=self.nvidia_smi,
            ):
                code, said = self.run_program(("sudo", "-n", "-l", "-U", name, *step.argv))
                if code == 1 and not said.strip():  # sudo prints nothing if the answer is no
                    return False
        return True

    def may_replace_guard(self, pid: int) -> bool:
        """Return whether the process `pid` may take this guard's place. It must run as this guard's
        user or as root, and must not be a set-user-id program."""
        rights = bool({0, os.getuid()} & uids_of_process(pid))
        if not self.root or not rights:
            return rights
        try:
            with self.as_root():
                return not os.stat(f"/proc/{pid}/exe").st_mode & (stat.S_ISUID | stat.S_ISGID)
        except OSError:
            return False

    def current_value(self, uuid: str, setting: str) -> Any:
        """Return the current value of `setting` on the GPU `uuid`, or on the CPU cores of the host.
        None if the host does not report it, which is always so for a clock lock."""
        if setting in setting_commands.OF_CORES:
            return core_values.format_core_values(
                {core.cpu: core.value for core in self.read_core_values(setting)}
            )
        query = setting_commands.SETTINGS[setting].query
        if not query:
            return None
        code, said = self.run_program(
            (self.nvidia_smi, "-i", uuid, "--query-gpu=" + query, "--format=csv,noheader,nounits")
        )
        return setting_commands.SETTINGS[setting].parse_answer(said) if code == 0 else None

    def read_core_values(self, setting: str) -> Iterator[CoreValue]:
        """Yield the value of a setting of each CPU core that has the setting."""
        root = self.sysfs + "/devices/system/cpu"
        for name in os.listdir(root):
            if name[:3] == "cpu" and name[3:].isdecimal():
                cpu = int(name[3:])
                texts: list[str] = []
                with contextlib.suppress(OSError):
                    if setting == "governor":
                        file = setting_commands.GOVERNOR_FILES.format(root=self.sysfs, cpu=cpu)
                        yield CoreValue(cpu, _read_stripped_text(file), 0)
                        continue
                    while True:
                        file = setting_commands.C_STATE_FILES.format(
                            root=self.sysfs, cpu=cpu, state=len(texts)
                        )
                        texts.append(_read_stripped_text(file))
                value = core_values.format_core_c_states(texts)
                if value is not None:
                    yield CoreValue(cpu, value, len(texts))


def can_write(uid: int, path: str) -> bool:
    """Return whether the user `uid` can write the directory `path`, by its owner, group and mode.
    True if the directory cannot be read."""
    try:
        found = os.stat(path)
    except OSError:
        return True
    groups: list[int] = []
    with contextlib.suppress(KeyError, OverflowError):  # an account that has no name
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    return root_owned.user_can_write(
        uid, groups, uid=found.st_uid, gid=found.st_gid, mode=found.st_mode
    )


def _read_stripped_text(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def lift_resource_limits() -> None:
    """Remove the limits on CPU time, file size, memory and priority that this process inherited
    from the user's shell."""
    for limit in (
        resource.RLIMIT_CPU,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_AS,
        resource.RLIMIT_DATA,
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def user_behind_sudo(sudo_uid: str) -> pwd.struct_passwd | None:
    """Return the user for whom a guard that runs as root works: the one with the id `sudo_uid`, the
    value of SUDO_UID, or None if that is root. Raises UnsafeProgramError if there is no such
    user."""
    user = None
    if sudo_uid.isascii() and sudo_uid.isdecimal():
        with contextlib.suppress(KeyError, OverflowError):
            user = pwd.getpwuid(int(sudo_uid))
    if user is None:
        raise UnsafeProgramError(f"SUDO_UID is {sudo_uid!r}, but no user of this host has this id")
    return user if user.pw_uid != 0 else None


def resolve_root_owned_program(program: str) -> str:
    """Return the path of a program's file without links. A name without a directory is one in
    /usr/bin. Raises UnsafeProgramError if anybody but root can change the file or a directory on
    its path, or if one of these cannot be examined."""
    real = here = os.path.realpath(program if os.path.isabs(program) else "/usr/bin/" + program)
    while True:
        try:
            found = os.stat(here)
        except OSError as error:
            raise UnsafeProgramError(f"{program}: {error.strerror}") from None
        if not root_owned.only_root_can_change(found.st_uid, found.st_gid, found.st_mode):
            raise UnsafeProgramError(
                f"the guard does not run {program} as root, because users other than root "
                f"can change {here}"
            )
        if here == "/":
            return real
        here = os.path.dirname(here)
