"""The user's rights to change GPU settings on a host: whether sudo is needed and allowed, and what
to do if a right is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.root_owned import only_root_can_change, user_can_write
from workbench.gpu.settings.sudoers import SUDOERS_PATH as SUDOERS
from workbench.hosts.base import Completed, Host, HostFacts
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import SUDO, shell_argv
from workbench.model import setting_commands
from workbench.model.errors import HostError, SettingsError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_hexadecimal

# include/uapi/linux/capability.h; the driver asks for it in the initial user namespace
CAP_SYS_ADMIN = 1 << 21
# Reads the password from stdin, says nothing, and takes no credentials of before: the line is read,
# whatever was.
SUDO_WITH_PASSWORD = ("sudo", "-k", "-S", "-p", "")
ENGLISH_LOCALE = {"LC_ALL": "C"}  # sudo's messages are parsed
PASSWORD_REQUIRED_TEXT = "a password is required"

SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What root may run, only where nobody else can change it; the first of the user's PATH that is so,
# or of SECURE_PATH's.
# without a password, with one, or not at all
SudoPermission: TypeAlias = Literal["free", "asks", ""]
ROOT_PROGRAMS = ("nvidia-smi", "tee", "python3")

FIND_PROGRAMS_SCRIPT = read_script(__file__, "find_programs.sh")
# $1: uid. A line as FIND_PROGRAMS_SCRIPT's about the directory of the simulated GPUs, and the ids
# of the user's groups, of which an account without a name has none.
_SIMULATION_RIGHTS_SCRIPT = """
stat -c 'on %u %g %f %n' "$WORKBENCH_SIM_STATE"
id -G "$1"
"""
SUDOERS_ADVICE = (
    f"the file that `workbench gpu sudoers` prints allows every set and revert, as {SUDOERS}"
)
_SUDO_RULE = re.compile(r"^\s+\(([^)]*)\)\s+(.*)$")
_NOT_IN_SUDOERS = "is not in the sudoers file"
_WRONG_PASSWORD = re.compile(
    rf"{PASSWORD_REQUIRED_TEXT}|incorrect password|no password was provided|try "
    r"again\.$"
)
_NEXT_STEPS = {  # next steps that a rule cannot replace, by a word of sudo's reason
    "expired": "log in there and change the password, or ask who administers it",
    "tty": "ask who administers it for `Defaults !requiretty`",
}
# between commas, but not those of an expression
_RULE_PARTS = re.compile(r"(?:\^.*?\$(?=\s*(?:,|$))|\\.|[^,\\])+")
_OWNERSHIP_LINE = re.compile(r"on (\d{1,10}) (\d{1,10}) ([0-9a-f]{1,8}) /")
_ACCOUNT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]*\$?")
_RULE_TAG = re.compile(r"^((?:NO)?[A-Z_]+):\s*")


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of this user to change settings on a host. `prefix` goes before each command:
    sudo, or nothing. `refusal` says why no command can run, None if commands can run."""

    nvidia_smi: str = "nvidia-smi"
    prefix: tuple[str, ...] = ()
    refusal: str | None = None
    user: str = "you"
    by_sudoers: bool = False  # sudo decides, by `rules`
    advice: str = SUDOERS_ADVICE  # the step that would allow a command
    tee: str = "tee"
    python3: str = "python3"  # "": there is none that root may run
    rules: str = ""  # what `sudo -l` lists
    unasked: bool = False  # sudo asks for no password now, whatever its rules say
    sudo_password: bool = False  # a password for sudo would be enough
    password: str | None = field(default=None, repr=False)  # only ever written to sudo's stdin

    def argv_with_prefix(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command with `prefix` before it. With a prefix, the program is named by its
        absolute path, because sudo's rules contain absolute paths."""
        if not self.prefix:
            return tuple(command)
        path = {"nvidia-smi": self.nvidia_smi, "tee": self.tee}.get(command[0], command[0])
        return (*self.prefix, path, *command[1:])

    def sudo_permission_now(self, command: Sequence[str]) -> SudoPermission:
        """Return how sudo allows `command` at this moment, as `sudo_permission_for` returns it. It
        is "free" instead of "asks" if sudo asks for no password now."""
        how = sudo_permission_for(self.rules, command)
        return "free" if how == "asks" and self.unasked else how

    def missing_right_for(self, argv: Sequence[str]) -> str | None:
        """Return a text that says which right the user lacks to run a command from
        `argv_with_prefix()`, and how to get it. None if the user may run the command."""
        if not self.by_sudoers:
            return self.refusal
        how = self.sudo_permission_now(argv[len(self.prefix) :])
        if how == "free":
            return None
        if how == "asks" and self.password is not None:
            return None
        asks = (
            "and sudo asks for a password"
            if how == "asks" or self.sudo_password
            else "and sudo does not allow it"
        )
        why = self.refusal or f"needs root ({self.user} is not, {asks})"
        return f"{why}; {self.advice}"


RIGHTS_OF_ROOT = Rights()  # commands run as they are


async def read_rights(host: Host) -> Rights:
    """Return the user's rights on a host, without trying a command: from uid, capability and user
    namespace, then from sudo's rules."""
    facts = await host.facts()
    if facts.nvidia_smi is None:
        return Rights(refusal="nvidia-smi, which changes GPU settings, is not on this host's PATH")
    smi, user = facts.nvidia_smi, facts.user or "you"
    if facts.simulated is not None:
        return Rights(smi, user=user)
    if facts.uid == 0:
        return Rights(smi, refusal=await _read_why_root_is_refused(host, facts), user=user)
    if facts.initial_user_namespace is False:
        return Rights(smi, refusal=_ROOT_IN_CONTAINER_TEXT.format("root"), user=user)
    return await _read_rights_by_sudo(host, smi, user)


async def add_password(host: Host, rights: Rights, password: str) -> Rights:
    """Check with sudo that `password` is right, and return `rights` with this password. If sudo
    does not decide, return `rights` as they are. Raises SettingsError if sudo rejects the password
    or cannot be run."""
    if not rights.by_sudoers:
        return rights
    wrong = SettingsError(
        "sudo rejects this password; nothing was changed",
        host=host.name,
        next_step="try again with the password of your own account on that host",
    )
    if "\n" in password or "\0" in password:
        raise wrong
    try:
        done = await host.run(
            (*SUDO_WITH_PASSWORD, "-l"),
            input=f"{password}\n".encode(),
            env=ENGLISH_LOCALE,
            timeout_s=30,
        )
    except HostError as error:
        raise SettingsError(
            f"sudo cannot be run: {error.message}; nothing was changed", host=host.name
        ) from None
    if done.returncode == 0:
        return replace(rights, rules=done.out, password=password, refusal=None, sudo_password=False)
    reason = parse_sudo_refusal(done.err)
    if reason is None:
        raise wrong
    raise SettingsError(
        f"{reason}; nothing was changed", host=host.name, next_step=_advice_for_sudo_refusal(reason)
    )


async def can_claimant_set_value(host: Host, rights: Rights, claim: SettingClaim) -> bool:
    """Return whether the user who claims to have changed a setting is able to set the claimed
    value. Root and the present user are. Another user is if sudo lets that user run the command or,
    with simulated GPUs, if that user can write their state. True also if sudo cannot be asked about
    the user."""
    facts = await host.facts()
    if claim.uid in (0, facts.uid):
        return True
    if facts.simulated is not None:
        return await _can_write_simulated_gpus(host, claim.uid)
    if not _ACCOUNT_NAME.fullmatch(claim.by):
        return False  # sudo does nothing for an account that has no name
    asking: tuple[str, ...] = SUDO
    given = b""
    if rights.password is not None:
        asking, given = SUDO_WITH_PASSWORD, f"{rights.password}\n".encode()
    value = setting_commands.value_to_restore(claim.now)
    for step in setting_commands.commands_to_set_value(
        *claim.gpu_and_setting, value, nvidia_smi=rights.nvidia_smi
    ):
        try:
            argv = (*asking, "-l", "-U", claim.by, *step.argv)
            done = await host.run(argv, input=given, env=ENGLISH_LOCALE, timeout_s=15)
        except HostError:
            return True
        if done.returncode == 1 and not f"{done.out}{done.err}".strip():
            return False  # sudo prints nothing if the answer is no
    return True


async def _can_write_simulated_gpus(host: Host, uid: int) -> bool:
    """Return whether the user `uid` can write the state of the simulated GPUs, by the owner, group
    and mode of its directory. True if the directory cannot be read."""
    done = await host.run(shell_argv(_SIMULATION_RIGHTS_SCRIPT, str(uid)))
    directory = _OWNERSHIP_LINE.match(done.out)
    if directory is None:
        return True
    owner, group, mode = _owner_group_and_mode(directory)
    groups = [int(word) for word in done.out.partition("\n")[2].split() if word.isdecimal()]
    return user_can_write(uid, groups, uid=owner, gid=group, mode=mode)


def _owner_group_and_mode(line: re.Match[str]) -> tuple[int, int, int]:
    return int(line[1]), int(line[2]), int(line[3], 16)


def parse_sudo_refusal(said: str) -> str | None:
    """Return why sudo runs no command, in sudo's own words (`said` is its output). None if sudo
    only asks for a password or rejects the given one."""
    for line in map(str.strip, said.splitlines()):
        is_own = line.startswith(("sudo:", "Sorry, user")) or _NOT_IN_SUDOERS in line
        if is_own and not _WRONG_PASSWORD.search(line):
            return f"sudo says: {line.removeprefix('sudo: ').rstrip('.')}"
    return None


def _advice_for_sudo_refusal(reason: str) -> str:
    return next((step for what, step in _NEXT_STEPS.items() if what in reason), SUDOERS_ADVICE)


async def run_with_rights(
    host: Host,
    argv: Sequence[str],
    rights: Rights,
    *,
    stdin: str | None = None,
    timeout_s: float = 60.0,
) -> Completed:
    """Run a command from `Rights.argv_with_prefix`. If sudo asks for the password, sudo reads it
    from stdin, before the command's own input. Raises HostError if the command cannot be run."""
    data = b"" if stdin is None else stdin.encode()
    if tuple(argv[: len(SUDO)]) != SUDO:
        return await host.run(argv, input=data, timeout_s=timeout_s)
    done = await host.run(argv, input=data, timeout_s=timeout_s, env=ENGLISH_LOCALE)
    if rights.password is None or done.returncode == 0 or PASSWORD_REQUIRED_TEXT not in done.err:
        return done
    # Only after sudo has asked for it: under a rule without a password the command itself would
    # read it.
    first = f"{rights.password}\n".encode()
    return await host.run(
        (*SUDO_WITH_PASSWORD, *argv[len(SUDO) :]),
        input=first + data,
        timeout_s=timeout_s,
        env=ENGLISH_LOCALE,
    )


def sudo_permission_for(rules: str, command: Sequence[str]) -> SudoPermission:
    """Return how the rules of `sudo -l` allow a command as root: "free" (without a password),
    "asks" (with one), or "" (not at all). The last rule that matches decides, as in sudoers(5)."""
    found: SudoPermission = ""
    for line in rules.splitlines():
        rule = _SUDO_RULE.match(line)
        if rule is None:
            continue
        runas = re.split(r"[,:\s]+", rule[1])
        if not {"root", "ALL"} & set(runas):
            continue
        asks = True
        for part in _RULE_PARTS.findall(rule[2]):
            part = part.strip()
            while tag := _RULE_TAG.match(part):
                asks = {"NOPASSWD": False, "PASSWD": True}.get(tag[1], asks)
                part = part[tag.end() :]
            if _pattern_allows(part.lstrip("!").strip(), command):
                found = "asks" if asks else "free"
                if part.startswith("!"):
                    found = ""
    return found


def _pattern_allows(pattern: str, command: Sequence[str]) -> bool:
    if pattern == "ALL":
        return True
    path, _, arguments = pattern.partition(" ")
    if not fnmatchcase(_path_under_usr(command[0]), _path_under_usr(path)):
        return False
    wanted, given = re.sub(r"\\(.)", r"\1", arguments.strip()), " ".join(command[1:])
    if wanted.startswith("^"):
        return re.search(wanted, given) is not None
    if wanted == '""':
        return not given
    return not wanted or fnmatchcase(given, wanted)


def _path_under_usr(path: str) -> str:
    """Return a path such as /bin/x as /usr/bin/x, because sudo's rules and the host may name the
    same program either way."""
    return re.sub(r"^/(s?bin)/", r"/usr/\1/", path)


_ROOT_IN_CONTAINER_TEXT = (
    "{} in this unprivileged container is not root for the driver, which answers NO_PERMISSION: "
    "change GPU settings on the machine that runs the container"
)


async def _read_why_root_is_refused(host: Host, facts: HostFacts) -> str | None:
    if facts.initial_user_namespace is False:
        return _ROOT_IN_CONTAINER_TEXT.format("root")
    done = await host.run(["grep", "-i", "CapEff", "/proc/self/status"], timeout_s=10)
    words = done.out.split()
    capabilities = parse_hexadecimal(words[1]) if len(words) == 2 else None
    if capabilities is not None and not capabilities & CAP_SYS_ADMIN:
        return (
            "root here lacks CAP_SYS_ADMIN, which the driver asks for: "
            "start the container with --cap-add=SYS_ADMIN, or change settings on its host"
        )
    return None


async def _read_rights_by_sudo(host: Host, smi: str, user: str) -> Rights:
    try:
        done = await host.run(
            shell_argv(FIND_PROGRAMS_SCRIPT, SECURE_PATH, *ROOT_PROGRAMS),
            env=ENGLISH_LOCALE,
            timeout_s=15,
        )
    except HostError as error:
        why = (
            f"needs root on {host.name} ({user} is not, and sudo cannot be asked: {error.message})"
        )
        return Rights(smi, refusal=why, user=user)
    looked, _, said = f"\n{done.out}".partition("\nsudo ")
    how, _, rules = said.partition("\n")
    safe, unsafe = _parse_safe_and_unsafe_programs(looked)
    if "nvidia-smi" not in safe:
        where = unsafe.get("nvidia-smi", smi)
        why = f"{smi} is not run as root, because users other than root can change {where}"
        return Rights(
            smi,
            refusal=f"{why}; install the driver's own nvidia-smi where only root can write",
            user=user,
        )
    helps = how == "asks" and ("may run the following" in rules or PASSWORD_REQUIRED_TEXT in rules)
    found = Rights(
        safe["nvidia-smi"],
        SUDO,
        None,
        user,
        True,
        tee=safe.get("tee", "/usr/bin/tee"),
        python3=safe.get("python3", ""),
        rules=rules,
        unasked=how == "unasked",
        sudo_password=helps,
    )
    if how == "unasked" or "NOPASSWD" in rules:
        return found
    why, step = "sudo asks for a password", SUDOERS_ADVICE
    if how == "no":
        why, step = "there is no sudo", "set it there as root"
    elif not found.sudo_password:
        why = parse_sudo_refusal(rules) or "sudo does not allow it"
        step = _advice_for_sudo_refusal(why)
    return replace(
        found, refusal=f"needs root on {host.name} ({user} is not, and {why})", advice=step
    )


def _parse_safe_and_unsafe_programs(looked: str) -> tuple[dict[str, str], dict[str, str]]:
    """Parse the output of the shell script FIND_PROGRAMS_SCRIPT, which checks files on the host.
    Return (paths of the programs that root may run safely, by name; for each other program, the
    file or directory on its path that a user other than root can change)."""
    safe: dict[str, str] = {}
    unsafe: dict[str, str] = {}
    name = path = wrong = ""
    for line in (*looked.splitlines(), "program  "):
        what, _, rest = line.partition(" ")
        if what == "program":
            if path and not wrong:
                safe.setdefault(name, path)
            elif path:
                unsafe.setdefault(name, wrong)
            (name, _, path), wrong = rest.partition(" "), ""
        elif not wrong:
            known = _OWNERSHIP_LINE.match(line)
            if known is None or not only_root_can_change(*_owner_group_and_mode(known)):
                wrong = rest.split(" ", 3)[-1]
    return safe, unsafe
