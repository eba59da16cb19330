"""The host's register of GPU settings as a Workbench sees it: what others changed, and what it told them itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.gpu import remote_programs
from workbench.gpu.settings import claims, revert
from workbench.gpu.settings.claims import SettingClaim
from workbench.hosts.base import CommandNotFound, Host, HostUnreachable
from workbench.model.errors import HostError
from workbench.model.untrusted_text import clean

READ_S = 20.0
UNREAD = "what other users changed cannot be read"


class LockChange(NamedTuple):
    """A lock that a Workbench set, changed or reverted, and when by its clock."""

    gpu_index: int
    setting: str
    by: str
    unix_s: float


@dataclass(frozen=True, slots=True)
class Register:
    """`others`: what other Workbenches of this host changed; `own`: what stands there of this journal. `problem`: why
    nobody can be asked; changes of others then show in the values only."""

    others: tuple[SettingClaim, ...] = ()
    own: tuple[Mapping[str, Any], ...] = ()
    directory: str | None = None
    problem: str | None = None
    changes: frozenset[LockChange] = frozenset()


async def register_on(host: Host, root: str, publish: Sequence[Mapping[str, Any]] | None = None) -> Register:
    """Read it; with `publish`, these entries are first put in place of what stands there of the journal in `root`.
    HostUnreachable when the link is lost; anything else that fails is the answer's `problem`."""
    python, local = remote_programs.python_on(host)
    argv = remote_programs.register_argv(python, {"root": root, "publish": publish is not None})
    given = remote_programs.payload(local, remote_programs.REGISTER) + json.dumps(list(publish or ())).encode()
    try:
        done = await host.run(argv, input=given, timeout_s=READ_S)
    except HostUnreachable:
        raise
    except CommandNotFound:
        return Register(problem="this host has no python3, which reads what other users changed")
    except HostError as error:
        return Register(problem=f"{UNREAD}: {error}")
    try:
        answer = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        said = done.err.strip().splitlines()[-1:] or [f"python3 ended with {done.returncode}"]
        return Register(problem=f"{UNREAD}: {said[0]}")
    if "problem" in answer:
        return Register(problem=f"{UNREAD}: {answer['problem']}")
    others, own = claims.told(answer["found"], answer["uid"], answer["journal"])
    return Register(others, own, answer["directory"], changes=frozenset(_lock_changes(answer["found"])))


def _lock_changes(found: Sequence[Mapping[str, Any]]) -> Iterator[LockChange]:
    for one in found:
        for change in one["changes"]:
            if change["setting"] in revert.LOCKS:
                yield LockChange(change["gpu_index"], change["setting"], clean(one["user"]), change["unix_s"])
