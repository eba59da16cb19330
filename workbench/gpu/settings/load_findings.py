"""What loads have shown of altered settings, kept beside the journal: it stands on a GPU's row until its settings
change, whichever Workbench looks. Only words are kept; of what is altered, the journal alone knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from workbench.hosts.base import FileError, Host
from workbench.model.settings import Alteration

FILE = "gpu/findings.json"  # {GPU UUID: {"of": what was altered then, "short": [words]}}
MOST_CELLS = 80  # of one finding; they are a few words

Findings = tuple[tuple[int, str], ...]  # (GPU index, "lock ▲ no effect")


async def keep(host: Host, findings: Findings, alterations: Sequence[Alteration]) -> None:
    """FileError where they cannot be written; the result of the load has them as well."""
    kept: dict[str, dict[str, Any]] = {}
    for uuid, index in {a.gpu_uuid: a.gpu_index for a in alterations}.items():
        if short := [text for i, text in findings if i == index]:
            kept[uuid] = {"of": _altered(uuid, alterations), "short": short}
    await host.write_file(f"{await host.state_dir()}/{FILE}", json.dumps(kept).encode())


async def kept_of(host: Host, alterations: Sequence[Alteration]) -> Findings:
    """Those of settings that are as they were then. None where the file is missing or is not one of ours."""
    try:
        kept = json.loads(await host.read_file(f"{await host.state_dir()}/{FILE}"))
    except (FileError, ValueError, RecursionError):
        return ()
    found = []
    for uuid, index in {a.gpu_uuid: a.gpu_index for a in alterations}.items():
        one = kept.get(uuid) if isinstance(kept, dict) else None
        if isinstance(one, dict) and one.get("of") == _altered(uuid, alterations):
            short = one.get("short")
            found += [(index, text) for text in short if _is_text(text)] if isinstance(short, list) else []
    return tuple(sorted(found))


def _altered(uuid: str, alterations: Sequence[Alteration]) -> list[list[Any]]:
    return sorted([a.setting, str(a.now), a.since_unix_s] for a in alterations if a.gpu_uuid == uuid)


def _is_text(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= MOST_CELLS
