"""Short texts of the package, with which servers are scored quickly."""

from __future__ import annotations

import json
from pathlib import Path

from workbench.quality import texts

WORDS = 40


def write_texts(file: Path, count: int) -> str:
    """Write the first words of some texts of the package to a file for --texts. Return its path."""
    lines = [
        {"name": text.name, "kind": text.kind, "text": " ".join(text.content.split()[:WORDS])}
        for text in texts.shipped_text_set().texts
        if not text.is_long and text.kind not in ("cjk", "json")
    ]
    assert len(lines) >= count
    file.write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
    return str(file)
