"""The command of a process on a host, read from /proc. The process gets no signal and is not
changed."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_text

READ_COMMAND_SCRIPT = read_script(__file__, "read_command.sh")


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """The command line, environment and working directory of a process, including secrets. `env` is
    None if this user may not read the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None
    workdir: str | None

    def without_control_characters(self) -> ProcessCommand:
        """Return the command without control characters in its words and values, for storing and
        showing it."""
        argv = tuple(map(clean_text, self.argv))
        if self.env is None:
            return ProcessCommand(argv, None, self.workdir)
        env = {name: clean_text(value) for name, value in self.env.items()}
        return ProcessCommand(argv, env, self.workdir)


async def read_command(host: Host, pid: int) -> ProcessCommand:
    """Return the command of the process `pid`. Raises InputError if there is no such process, if it
    has no command line, or if it ended or executed another program while it was read. Raises
    HostError if the host cannot be queried."""
    done = await host.run(["sh", "-c", READ_COMMAND_SCRIPT, "sh", str(pid)])
    found = parse_command(done.out)
    if done.returncode or not found.argv:
        raise InputError(
            f"{host.name} has no process {pid} with a command line",
            next_step="`workbench servers` lists the servers that run",
        )
    said = set(done.out.split("\n"))
    if "changed" in said:
        text = f"process {pid} on {host.name} ended or became another program while it was read"
        raise InputError(
            text, next_step="choose a process id from the list that `workbench servers` prints"
        )
    if "cut" in said:
        text = (
            f"the command line of process {pid} on {host.name} is longer than 128 KiB, which "
            "no server's is"
        )
        raise InputError(
            text,
            next_step="import a shortened command line with the flags that you need: `workbench "
            "import --command LINE`",
        )
    return found


def parse_command(text: str) -> ProcessCommand:
    """Return the command in `text`, the output of READ_COMMAND_SCRIPT. `argv` is () for a process
    without a command line."""
    argv: list[str] = []
    env: dict[str, str] = {}
    workdir, readable = None, False
    for line in text.split("\n"):
        kind, _, value = line.partition(" ")
        word = value.replace("\036", "\n")
        match kind:
            case "arg":
                argv.append(word)
            case "env" if "=" in word:
                name, _, setting = word.partition("=")
                env[name] = setting
            case "cwd" if value.startswith("/"):
                workdir = workdir or value
            case "readable":
                readable = True
    while argv and not argv[-1]:
        argv.pop()
    return ProcessCommand(tuple(argv), env if readable else None, workdir)
