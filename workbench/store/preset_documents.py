"""The source documents (write-ups) of the shipped presets. Each is one TOML file in
presets/documents/. It contains the document's claims, which are statements about the setup, and
says for each whether it is true."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.store import paths

if TYPE_CHECKING:
    from workbench.model.preset import Preset, SourceDocument


def source_document_names() -> list[str]:
    """Return the names of the shipped source documents, sorted."""
    return sorted(path.stem for path in _source_documents_directory().glob("*.toml"))


@cache
def read_source_document(name: str) -> SourceDocument:
    """Return the source document called `name`, which must be one of `source_document_names`."""
    from workbench.model.preset import SourceDocument

    text = (_source_documents_directory() / f"{name}.toml").read_text("utf-8")
    import tomllib

    return SourceDocument.model_validate(tomllib.loads(text))


def add_document_claims(preset: Preset) -> Preset:
    """Return the preset with more claims: those of its source documents are appended to its own. A
    claim is a statement of a write-up about the setup."""
    shared = [
        claim.model_copy(update={"document": name})
        for name in preset.documents
        for claim in read_source_document(name).claims
    ]
    return preset.model_copy(update={"claims": [*preset.claims, *shared]}) if shared else preset


def _source_documents_directory() -> Path:
    return paths.shipped_presets_dir() / "documents"
