"""The commands that run on a host, and the host in those that a text proposes. `workbench gpu
revert`, said about the host gpu-box, becomes `workbench --host gpu-box gpu revert`: copied without
the host, it would change this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from workbench.model.findings import Finding

# First words of the commands that run on the host of the command line. The others use no host, or
# name their hosts themselves.
HOST_COMMANDS = frozenset(
    {
        "record",
        "presets",
        "import",
        "export",
        "plan",
        "fit",
        "start",
        "servers",
        "logs",
        "inforce",
        "stop",
        "adopt",
        "restart",
        "probe",
        "jobs",
        "endpoint",
        "runs",
        "bench",
        "quality",
        "advise",
        "experiment",
        "sweep",
        "capacity",
        "tune",
        "watch",
        "bisect",
        "trace",
        "gpu",
        "doctor",
        "models",
    }
)
_PROPOSED_COMMAND = re.compile(
    rf"(?<![\w./-])workbench (?!models copy\b)(?=(?:{'|'.join(sorted(HOST_COMMANDS))})(?![\w-]))"
)


def insert_host_options(text: str, host_options: str) -> str:
    """Return the text with `host_options`, such as "--host gpu-box", put into each `workbench`
    command that runs on a host. The text is unchanged if `host_options` is "", for this machine."""
    if not host_options:
        return text
    return _PROPOSED_COMMAND.sub(lambda _: f"workbench {host_options} ", text)


def insert_host_options_in_fixes(
    findings: Iterable[Finding], host_options: str
) -> tuple[Finding, ...]:
    """Return the findings with `host_options` put into the commands of their fixes, as
    `insert_host_options` does it."""
    return tuple(
        replace(finding, fix=insert_host_options(finding.fix, host_options))
        if finding.fix
        else finding
        for finding in findings
    )
