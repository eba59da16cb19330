"""Converts a recipe to the document of a preset, the content of its file."""

from __future__ import annotations

import re
from typing import Any

from workbench.engines import registry
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.recipes.recipe import Recipe

# findings about parts of a recipe that its preset contains
_READ_OTHERWISE = frozenset(
    f"recipe.{code}" for code in ("repeated", "program", "two-models", "equals-sign")
)


def preset_id_of(recipe: Recipe) -> str:
    """Return a preset id for a recipe, made of its name, else of its engine and model; "recipe" if
    it has neither."""
    plan = recipe.plan
    if plan is None:
        return slug_of(recipe.name or "recipe")
    model = plan.model.rstrip("/").rpartition("/")[2]
    return slug_of(recipe.name or f"{plan.engine}-{model}")


def slug_of(text: str) -> str:
    """Return `text` as an id of a preset, container or service: in lower case, with only the
    characters that such ids may have, and cut to 64 characters. "recipe" if less than two
    characters are left."""
    plain = (
        re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\$\{(\w+)\}", r"\1", text).lower())
        .strip("-.")[:64]
        .strip("-.")
    )
    return plain if len(plain) > 1 else "recipe"


def preset_document_of_recipe(recipe: Recipe, preset_id: str, source: str) -> dict[str, Any]:
    """Return the content of the preset file for a recipe. `source` is where the recipe comes from,
    as text. Raises InputError if the recipe has no server."""
    plan = recipe.plan
    if plan is None:
        if not recipe.findings:
            raise InputError(f"the {recipe.form} starts no server")
        raise InputError(recipe.findings[0].text, next_step=recipe.findings[0].fix)
    title = recipe.title or (
        f"{plan.model.rpartition('/')[2] or plan.model}, {registry.get_engine(plan.engine).title}"
    )
    document = {
        "schema": 1,
        "id": preset_id,
        "title": _single_line(title, 80),
        "summary": _single_line(recipe.about, 2000) or f"Imported from {source}.",
        "caveats": [_single_line(caveat, 2000) for caveat in recipe.caveats if caveat.strip()],
        "hardware": {
            "gpu_names": list(recipe.gpu_names),
            "count": min(recipe.gpus or plan.gpu_count, 64),
            "memory_gib": recipe.memory_gib,
        },
        "engine": {
            "name": plan.engine,
            "versions": plan.engine_versions,
            "executable": list(plan.executable) or None,
            "workdir": plan.workdir,
            "image": plan.image,
            "open_files": plan.open_files,
        },
        "model": {"id": plan.model},
        "flags": plan.flag_values,
        "env": plan.env_texts,
        "variables": {name: {"description": text} for name, text in recipe.variables.items()},
        "provenance": {
            "document": source,
            "status": "untested",
            "note": _omissions_and_changes_text(recipe.findings),
        },
    }
    return {name: value for name, value in document.items() if value}


def _omissions_and_changes_text(findings: tuple[Finding, ...]) -> str | None:
    """Return a text that lists the parts of a recipe that its preset does not contain, and those
    that it contains in another form; None if there are none."""
    missing, changed = [], []
    for finding in findings:
        if finding.level not in (Level.ERROR, Level.WARN):
            continue
        if finding.code in _READ_OTHERWISE:
            changed.append(finding.text)
        else:
            missing.append(finding.text)
    parts = (("Not taken over", missing), ("Taken over so", changed))
    texts = [f"{title}: {'; '.join(texts)}" for title, texts in parts if texts]
    return _single_line(". ".join(texts), 2000) or None


def _single_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
