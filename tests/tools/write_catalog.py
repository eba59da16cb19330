"""Write a shipped flag catalog from an engine's own answer. README.md here says how the answer is
made.

usage: python tests/tools/write_catalog.py ENGINE VERSION ANSWER.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from workbench import engines
from workbench.engines import own_flags
from workbench.engines.catalog_files import DIRECTORY


def main(name: str, version: str, answer: Path) -> None:
    file = DIRECTORY / f"{name}-{version}.json"
    file.unlink(missing_ok=True)  # notes come from the nearest other version
    data = own_flags.make_catalog_data(
        engines.get_engine(name), version, json.loads(answer.read_text())
    )
    env, flags = (
        ",\n".join(
            json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
            for entry in map(_lean, data[part])
        )
        for part in ("env", "flags")
    )
    text = f'{{"engine":"{name}","version":"{version}","env":[{env}],"flags":[\n{flags}\n]}}\n'
    file.write_text(text)


def _lean(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry without help: catalogs/help.json has it in Workbench's own words."""
    return {key: value for key, value in entry.items() if key != "help"}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
