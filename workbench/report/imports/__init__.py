"""Results of other tools, taken in to stand beside ours: `vllm bench serve`, llama-benchy, AIPerf, and Workbench's own
exports from elsewhere.

Each figure goes under the name that it has here, whatever its tool calls it, and a note says where the definitions
differ. What the file does not hold is absent with that reason. An imported result is never like for like with one that
was measured here (`Conditions.imported`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.model.errors import InputError
from workbench.model.untrusted_text import clean_data
from workbench.report.imports import aiperf, llama_benchy, vllm_bench, workbench_json
from workbench.report.imports.checked_fields import Fields, Imported, Told

__all__ = ["TOOLS", "Imported", "Told", "read"]

TOOLS = ("vllm bench serve", "llama-benchy", "AIPerf", "Workbench")
_MOST_BYTES = 1 << 30  # a detailed file of 100,000 requests has some 100 MB
_READERS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Fields, Told], list[Imported]]], ...] = (
    (workbench_json.fits, workbench_json.read),
    (llama_benchy.fits, llama_benchy.read),
    (aiperf.fits, aiperf.read),
    (vllm_bench.fits, vllm_bench.read),
)


def read(path: Path, told: Told | None = None) -> tuple[Imported, ...]:
    """The results in a file, which may hold several. `told`: what the person knows and the file does not say.

    Raises InputError that names the file, the field and what is wrong with it; then nothing of the file is taken.
    """
    found: list[Imported] = []
    for number, document in enumerate(list(_documents(path)), start=1):
        at = "" if number == 1 else f"document {number}"
        if not isinstance(document, dict):
            raise InputError(f"{path}: {at or 'the file'} is no JSON object", next_step=_KNOWN)
        reader = next((read for fits, read in _READERS if fits(document)), None)
        if reader is None:
            raise InputError(f"{path}: {_unknown(document)}", next_step=_KNOWN)
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:24]
        results = reader(Fields(path, clean_data(document, _MOST_BYTES), at), told or Told())
        # Of the content: a file that is imported twice is one result.
        found += [replace(r, uid=r.uid or f"{digest}-{place}") for place, r in enumerate(results)]
    return tuple(found)


_KNOWN = f"known are results of {', '.join(TOOLS)}, as JSON"


def _documents(path: Path) -> Iterator[Any]:
    """One JSON document, or several one after the other (vllm's --append-result, JSON lines)."""
    text = _text(path)
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            document, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}: line {error.lineno}, column {error.colno}: {error.msg}",
                next_step="the file is cut off or no JSON: save it again",
            ) from None
        except RecursionError:
            raise InputError(f"{path}: nested too deeply", next_step=_KNOWN) from None
        yield document


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} has more than 1 GiB", next_step="save it without the generated texts")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} could not be read: {error.strerror}", next_step="check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8", next_step=_KNOWN) from None
    if not text.strip():
        raise InputError(f"{path} is empty", next_step=_KNOWN)
    return text


def _unknown(document: Mapping[str, Any]) -> str:
    if "total_input_sequences" in document:
        return "a benchmark of embeddings: it generated no tokens that could be compared"
    if "total_output_tokens_retokenized" in document:
        return "a result of SGLang's bench_serving, whose figures are defined otherwise"
    names = ", ".join(sorted(map(str, document))[:6]) or "nothing"
    return f"not a result that is known here (its fields: {names}{', …' if len(document) > 6 else ''})"
