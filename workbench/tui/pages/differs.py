"""The page "what differs": the differences between two results, side by side, and nothing that is
equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from workbench.bench.compare import compare
from workbench.model.conditions_table import condition_labels_and_texts
from workbench.model.secrets import mask_argv, mask_env
from workbench.tui.cells import (
    Row,
    cut_text,
    pad_text,
    paragraph_rows,
    rows_beside_label,
    wrap_text,
)
from workbench.tui.formats import NA, flag_value_text, setting_label, setting_value_text
from workbench.tui.pages.result import setting_labels_and_verdicts

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Conditions

Difference = tuple[str, str, str]  # what differs, and its values in A and B
_NAME_CELLS = (12, 28)  # fewest and most
_LEAST_SIDE = 16  # cells of a value; with fewer, A and B stand below each other
_VERSIONS = {
    "engine": "engine_version",
    "driver": "driver_version",
    "CUDA": "cuda_version",
    "Workbench": "workbench_version",
    "image": "image",
    "model files": "model_digest",
}
_HOST = ("host", "GPUs", "nodes", "load from", "run as", "measured by", "simulated")


def result_differences_rows(a: BenchResult, b: BenchResult, width: int) -> list[Row]:
    """Return the rows of the page about two results: what differs in their commands, environments,
    versions, settings, hosts, loads and answers. A row at the end names what is the same."""
    rows: list[Row] = []
    same: list[str] = []
    for title, found in _titled_differences(a, b):
        if not found:
            same.append(title.lower())
            continue
        if rows:
            rows.append(())
        rows.append(((cut_text(title, width), "title"),))
        for difference in found:
            rows += _difference_rows(difference, width)
    if not rows:
        return paragraph_rows("Nothing differs: both results have the same conditions.", width)
    head = _side_by_side_rows("", f"A #{a.id}", f"B #{b.id}", width, ("head", "a", "b"))
    return [*head, *rows, (), *paragraph_rows(f"The same: {', '.join(same)}.", width, "dim")]


def _titled_differences(
    a: BenchResult, b: BenchResult
) -> Iterator[tuple[str, Sequence[Difference]]]:
    """Yield a title and its differences for each kind of condition on which a result depends. A
    kind without differences is yielded with an empty sequence."""
    x, y = a.conditions, b.conditions
    yield "Command", _command_differences(x, y)
    yield "Environment", _mapping_differences(mask_env(x.env), mask_env(y.env))
    yield "Versions", _mapping_differences(_software_versions(x), _software_versions(y))
    yield "GPU settings", _setting_differences(x, y)
    yield (
        "In force under load",
        _mapping_differences(
            dict(setting_labels_and_verdicts(x.in_force)),
            dict(setting_labels_and_verdicts(y.in_force)),
        ),
    )
    yield (
        "Host",
        _mapping_differences(
            dict(condition_labels_and_texts(x)), dict(condition_labels_and_texts(y)), _HOST
        ),
    )
    loads = (d for d in compare(a, b).differences if d["kind"] == "workload")
    yield "Load", _values_that_differ((d["name"], d["a"], d["b"]) for d in loads)
    yield (
        "Answers",
        _values_that_differ([("hash of the text", _answers_digest(a), _answers_digest(b))]),
    )


def _software_versions(conditions: Conditions) -> Mapping[str, Any]:
    return {name: getattr(conditions, field) for name, field in _VERSIONS.items()}


def _command_differences(
    conditions_a: Conditions, conditions_b: Conditions
) -> Sequence[Difference]:
    """Return the differences of two commands: their programs, models and presets, and each flag. If
    the flags of neither command are known, return the words that only one command has."""
    first, second = mask_argv(conditions_a.argv), mask_argv(conditions_b.argv)
    named_values: list[tuple[str, Any, Any]] = [
        ("program", "".join(first[:1]), "".join(second[:1])),
        ("model", conditions_a.model, conditions_b.model),
        ("preset", conditions_a.preset_id, conditions_b.preset_id),
    ]
    found = _values_that_differ(named_values)
    if conditions_a.flags or conditions_b.flags:
        return [*found, *_mapping_differences(conditions_a.flags, conditions_b.flags)]
    only_first = " ".join(word for word in first if word not in second)
    only_second = " ".join(word for word in second if word not in first)
    return [*found, *_values_that_differ([("words", only_first, only_second)])]


def _setting_differences(
    conditions_a: Conditions, conditions_b: Conditions
) -> Sequence[Difference]:
    found = []
    for name in dict.fromkeys((*conditions_a.gpu_settings, *conditions_b.gpu_settings)):
        p, q = conditions_a.gpu_settings.get(name), conditions_b.gpu_settings.get(name)
        if p != q:
            found.append(
                (setting_label(name), setting_value_text(name, p), setting_value_text(name, q))
            )
    return found


def _answers_digest(result: BenchResult) -> str | None:
    """Return the hash of the answers; None if the result has none."""
    text = result.summary.text
    if text is None:
        return None
    return text.load.digest


def _mapping_differences(
    mapping_a: Mapping[str, Any], mapping_b: Mapping[str, Any], names: Sequence[str] = ()
) -> Sequence[Difference]:
    """Return the differences of two mappings under `names`, by default under all their keys."""
    keys = dict.fromkeys(names or (*mapping_a, *mapping_b))
    return _values_that_differ((key, mapping_a.get(key), mapping_b.get(key)) for key in keys)


def _values_that_differ(named_values: Iterable[tuple[str, Any, Any]]) -> Sequence[Difference]:
    """Return those of (name, value in A, value in B) whose values differ, as texts. An empty text
    counts as no value, and becomes "n/a"."""
    differing = []
    for name, value_a, value_b in named_values:
        a, b = _value_text(value_a), _value_text(value_b)
        if a != b:
            differing.append((name, a, b))
    return differing


def _value_text(value: Any) -> str:
    if value in (None, ""):
        return NA
    return flag_value_text(value)


def _difference_rows(difference: Difference, width: int) -> list[Row]:
    name, a, b = difference
    return _side_by_side_rows(name, a, b, width, ("dim", "text", "text"))


def _side_by_side_rows(
    name: str, a: str, b: str, width: int, roles: tuple[str, str, str]
) -> list[Row]:
    """Return the values of A and B beside each other. Long values have several rows, and on a
    narrow page B stands below A."""
    name_cells = max(_NAME_CELLS[0], min(_NAME_CELLS[1], width // 4))
    side = (width - name_cells - 4) // 2
    if side < _LEAST_SIDE:
        texts = [
            *paragraph_rows(a, width - 2, roles[1], "  "),
            *paragraph_rows(b, width - 2, roles[2], "  "),
        ]
        if name:
            texts.insert(0, ((cut_text(name, width), roles[0]),))
        return texts
    label = pad_text(cut_text(name, name_cells), name_cells + 2)
    rows: list[Row] = []
    for left, right in zip_longest(wrap_text(a, side), wrap_text(b, side), fillvalue=""):
        rows.append(((pad_text(left, side + 2), roles[1]), (right, roles[2])))
    return rows_beside_label(label, roles[0], rows)
