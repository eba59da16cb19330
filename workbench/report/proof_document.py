"""The file of a shareable proof: JSON with everything that a verdict follows from, alone or inside
an HTML page that shows it.

The file has a checksum of its data and, in a page, one of the page. A checksum finds a damaged or
carelessly edited file. It is no signature: `workbench results verify` therefore computes all
figures again (session/results/proofs.py).
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.model.errors import InputError, error_reason
from workbench.model.untrusted_numbers import parse_strict_json

FORMAT = 1
MOST_BYTES = 64 << 20  # 64 pairs with all their conditions have 3 MB
_NEXT_STEP = "ask for the file again; `workbench results report … --proof` writes it"
_OPEN = '<details><summary>The proof as data</summary><pre id="workbench-proof">'
_CLOSE = "</pre></details>\n"
_END = "<footer>"
_UNSIGNED = ("sha256", "page_sha256")


def is_proof(document: Any) -> bool:
    return isinstance(document, Mapping) and "workbench_proof" in document


def digest_of_proof(document: Mapping[str, Any]) -> str:
    """Return the checksum of a proof's data, which does not depend on how the JSON is written."""
    content = {name: value for name, value in document.items() if name not in _UNSIGNED}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def json_text(document: Mapping[str, Any]) -> str:
    """Return the proof as the text of a JSON file, with its checksum."""
    return (
        json.dumps({**document, "sha256": digest_of_proof(document)}, indent=1, allow_nan=False)
        + "\n"
    )


def proof_page_with_data(document: Mapping[str, Any], page: str) -> str:
    """Return `page`, an HTML page, with the data of the proof and a checksum of the page at its
    end."""
    data = json_text({**document, "page_sha256": _digest_of_page(page)})
    before, _, after = page.rpartition(_END)
    return f"{before}{_OPEN}{html.escape(data)}{_CLOSE}{_END}{after}"


def _digest_of_page(page: str) -> str:
    return hashlib.sha256(page.encode()).hexdigest()


def page_was_changed(document: Mapping[str, Any], page: str) -> bool:
    """Return whether a page, without its data, was changed after it was written. False for a JSON
    file, whose page is ""."""
    return bool(page) and document.get("page_sha256") != _digest_of_page(page)


def split_page_and_data(text: str) -> tuple[str, str | None]:
    """Return (page without the data of the proof, data) of the text of a file. The page is "" if
    the text is not HTML, and the data are None if a page has none."""
    if not text.lstrip()[:9].lower().startswith("<!doctype"):
        return "", text
    before, opened, rest = text.rpartition(_OPEN)
    data, closed, after = rest.partition(_CLOSE)
    if not opened or not closed:
        return text, None
    return f"{before}{after}", html.unescape(data)


def read_proof_data_and_page(path: Path) -> tuple[dict[str, Any], str]:
    """Return (data, page) of the proof in the file at `path`; the page is "" for a JSON file.
    Raises InputError that names the file and what is wrong with it."""
    page, data = split_page_and_data(_read_text(path))
    if data is None:
        raise InputError(
            f"{path}: the page has no proof in it, or was cut off", next_step=_NEXT_STEP
        )
    try:
        document = parse_strict_json(data)
    except RecursionError:
        raise InputError(f"{path}: its data are nested too deeply", next_step=_NEXT_STEP) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: its data are no JSON, or were cut off: line {error.lineno}: {error.msg}",
            next_step=_NEXT_STEP,
        ) from None
    except ValueError as error:
        raise InputError(f"{path}: its data have {error}", next_step=_NEXT_STEP) from None
    if not is_proof(document):
        raise InputError(f"{path} is no proof of Workbench", next_step=_NEXT_STEP)
    if document["workbench_proof"] != FORMAT:
        raise InputError(
            f"{path}: a proof of format {document['workbench_proof']!r}, which this Workbench does "
            f"not know",
            next_step="update Workbench",
        )
    return dict(document), page


def check_proof_intact(document: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if the data of a proof were changed after they were written."""
    try:
        intact = document.get("sha256") == digest_of_proof(document)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise InputError(
            f"{path}: the proof was changed after it was written: its checksum is wrong",
            next_step=f"`workbench results verify {path}` says what does not follow from its pairs",
        )


def _read_text(path: Path) -> str:
    try:
        if not path.is_file() and path.exists():
            raise InputError(f"{path} is no file", next_step="check the path")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(
                f"{path} is larger than {MOST_BYTES >> 20} MiB, so it is no proof of Workbench",
                next_step=_NEXT_STEP,
            )
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{path} could not be read: {error_reason(error)}", next_step="check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8", next_step=_NEXT_STEP) from None
