"""Lists the running containers of a host, of every kind whose program is installed on the host."""

from __future__ import annotations

import asyncio

from workbench.hosts import shell_scripts
from workbench.hosts.base import CommandTimeout, Host, container_program_timeout_error
from workbench.hosts.container_kinds import (
    KINDS,
    ContainerKind,
    ListedContainer,
    is_permission_error_message,
)
from workbench.hosts.script_files import read_script
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_text

LIST_S = 8.0  # below the limit of a check of hosts
PRESENT = read_script(__file__, "find_container_programs.sh")


@dataclass(frozen=True, slots=True)
class ContainerList:
    """The running containers of a host. `problems` has a sentence for each installed program that
    could not list its containers."""

    containers: tuple[ListedContainer, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The list for the user: a line for each container with its image, then the problems."""
        return (
            *(f"{one.address}  {one.image}".rstrip() for one in self.containers),
            *self.problems,
        )


async def list_containers(host: Host, *, sudo: bool | None = None) -> ContainerList:
    """Return the running containers of `host`, sorted by address. With `sudo` False, sudo is never
    used; otherwise it is, if the user's own rights are not enough. Raises HostError if the host is
    out of reach."""
    programs = sorted({kind.listing[0] for kind in KINDS.values()})
    present = (await host.run(shell_scripts.shell_argv(PRESENT, *programs))).out.split()
    kinds = [kind for kind in KINDS.values() if kind.listing[0] in present]
    if "pct" in present:  # its containers are those of LXC
        kinds = [kind for kind in kinds if kind.name != "lxc"]
    answers = await asyncio.gather(
        *(_list_containers_and_problem(host, kind, sudo) for kind in kinds)
    )
    found: dict[str, ListedContainer] = {}
    for containers, _ in answers:
        for one in containers:  # by id, because `docker` may be podman under another name
            found[one.id or one.address] = one
    problems = tuple(problem for _, problem in answers if problem)
    return ContainerList(tuple(sorted(found.values(), key=lambda one: one.address)), problems)


async def _list_containers_and_problem(
    host: Host, kind: ContainerKind, sudo: bool | None
) -> tuple[tuple[ListedContainer, ...], str]:
    problem, program = "", kind.listing[0]
    for sudo_words in ((),) if sudo is False else ((), shell_scripts.SUDO):
        try:
            done = await host.run([*sudo_words, *kind.listing], timeout_s=LIST_S)
        except CommandTimeout:
            silent = container_program_timeout_error(program, LIST_S, host.name)
            return (), f"{silent.message} on {host.name}"
        except HostError as error:
            problem = problem or error.message
            continue
        if done.returncode == 0:
            return tuple(kind.parse_listing(clean_text(done.stdout, 1 << 20, lines=True))), ""
        problem = problem or done.problem
    step = f"; {kind.rights}" if is_permission_error_message(problem) else ""
    listing = " ".join(kind.listing[:2])
    return (), (
        f"{program} is installed on {host.name}, but `{listing}` lists nothing: {problem}{step}"
    )
