"""Errors that are shown to the user without a traceback.

WorkbenchError            base class: what happened, on which host, the command, the next step
├── InputError            invalid usage or input: exit code 2
│   ├── PresetError       an invalid preset file (with findings)
│   └── PlanError         a plan that cannot become a command
│       └── NotTrusted    a preset that the user has not agreed to trust
├── HostError             an operation on a host failed (hosts/base.py has its subclasses)
├── ServerError           a server did not start, answer or stop
├── BenchError            a benchmark could not be run
├── SettingsError         a GPU or host setting could not be read, applied or reverted
└── StoreError            results, journal or configuration could not be read or written
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.model.findings import Finding
from workbench.model.untrusted_text import clean_text


def error_reason(error: Exception) -> str:
    """Return why reading or writing failed: the system's text, such as "No such file or directory",
    or the error's own text if the system has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def suggestion_or_next_step(name: str | None, default_step: str) -> str:
    """Return the next step after an unknown name: the known `name` that is near, or
    `default_step`."""
    return f"did you mean {name}?" if name else default_step


class WorkbenchError(Exception):
    """The base class of all errors that are shown to the user without a traceback.

    `message` says what happened, `host` on which host, `command` which command failed, and
    `next_step` what the user can do. Secrets in these texts are masked.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        command: str | None = None,
        next_step: str | None = None,
        findings: Sequence[Finding] = (),
    ) -> None:
        from workbench.model.secrets import mask_text, mask_urls  # deferred: errors are rare

        # it may quote hosts, servers, files and users
        message = mask_text(clean_text(message, lines=True))
        super().__init__(message)
        self.message = message
        self.host = host
        self.command = mask_text(command) if command else command
        self.next_step = mask_urls(next_step) if next_step else next_step
        self.findings = tuple(findings)

    def __str__(self) -> str:
        # a quoted line must not look like "command:" or "next:"
        quoted = self.message.replace("\n", "\n    ")
        lines = [": ".join(filter(None, (self.host, quoted)))]
        if self.command:
            lines.append(f"  command: {clean_text(self.command)}")
        if self.next_step:
            lines.append(f"  next: {clean_text(self.next_step)}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "error": self.message,
            "kind": type(self).__name__,
            "host": self.host,
            "command": self.command,
            "next_step": self.next_step,
            "findings": [f.as_json() for f in self.findings],
        }


class InputError(WorkbenchError):
    exit_code = 2


class PresetError(InputError):
    pass


class PlanError(InputError):
    pass


class NotTrusted(PlanError):
    """Raised if a preset that does not come with Workbench would run more than its engine's usual
    program, and the user has not agreed to trust it."""


class HostError(WorkbenchError):
    pass


class ServerError(WorkbenchError):
    pass


class BenchError(WorkbenchError):
    pass


class SettingsError(WorkbenchError):
    pass


class StoreError(WorkbenchError):
    pass
