"""Import of result files of other tools, for comparison with results of Workbench. The list of
tools is in report/registry.py.

Each metric gets the name that Workbench uses for it, and a note says how the definitions differ. If
the file does not contain a metric, the metric is absent and the reason says so. A comparison of an
imported result with a result that Workbench measured always warns that the conditions differ
(`Conditions.imported`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.model.bench import FAILED_SHARE
from workbench.model.errors import InputError, error_reason
from workbench.model.secrets import mask_data
from workbench.model.untrusted_numbers import (
    MOST_COUNTED,
    parser_error_message,
    why_number_is_impossible,
)
from workbench.model.untrusted_text import clean_data, unique_json_object
from workbench.report.imports.checked_fields import Fields, Imported, ImportOptions
from workbench.report.proof_document import check_proof_intact, is_proof, split_page_and_data
from workbench.report.registry import IMPORT_FORMATS, importable_tool_names_text

__all__ = ["ImportOptions", "Imported", "read_results"]

_MOST_BYTES = 128 << 20  # a detailed file of 100,000 requests has some 100 MB
_MOST_PARTS = 2_000_000  # lists and objects of a file; each takes far more memory than its text
_NEXT_STEP = f"Workbench imports JSON results of {importable_tool_names_text()}"


def read_results(path: Path, options: ImportOptions | None = None) -> tuple[Imported, ...]:
    """Return the results in the file at `path`, which may contain several. `options` has what the
    user states about them.

    Raises InputError that names the file, the field and the problem. In that case, the caller must
    store no result of the file.
    """
    found: list[Imported] = []
    empty = InputError(f"{path} has no results", next_step=_NEXT_STEP)
    documents = list(_json_documents_with_line(path))
    for number, (begins_at, document) in enumerate(documents, start=1):
        at = "" if number == 1 else f"document {number}"
        line = begins_at if len(documents) > 1 else None
        if not isinstance(document, dict):
            text = f"{path}: {at or 'the file'} is not a JSON object"
            raise InputError(text, next_step=_NEXT_STEP)
        if is_proof(document):
            check_proof_intact(document, path)
        results = _read_document(document, path, at, line, options or ImportOptions())
        if not results:
            raise empty
        found += results
    if not found:
        raise empty
    return tuple(found)


def _read_document(
    document: Mapping[str, Any],
    path: Path,
    location: str,
    line: int | None,
    options: ImportOptions,
) -> list[Imported]:
    """Return the results in one document of a file. Errors name its `location`, such as "document
    2" ("" for the first), and `line`, where it begins (None if the file has only one). Raises
    InputError for an unknown format or an invalid field."""
    tool = next((each for each in IMPORT_FORMATS if each.recognizes(document)), None)
    if tool is None:
        raise InputError(f"{path}: {_why_format_is_unknown(document)}", next_step=_NEXT_STEP)
    if document.get("simulated") is True:  # an export of Workbench in the form of another tool
        options = replace(options, simulated=True)
    try:
        cleaned = mask_data(clean_data(document, _MOST_BYTES))
        # The id comes from the content, so that a file that is imported twice is stored once.
        plain = json.dumps(document, sort_keys=True)
    except RecursionError:
        raise _too_deep_error(path) from None
    fields = Fields(path, cleaned, location, line)
    digest = hashlib.sha256(plain.encode()).hexdigest()[:24]
    results = tool.read(fields, options)
    for place, one in enumerate(results):
        _refuse_impossible_counts(fields, place, one)
    checked = [_mark_invalid_or_refuse(one, path) for one in results]
    return [replace(one, uid=one.uid or f"{digest}-{n}") for n, one in enumerate(checked)]


def _refuse_impossible_counts(fields: Fields, index: int, imported: Imported) -> None:
    """Raise InputError if a count of a result is one that no run can have had: rates and means
    would follow from it. `index` is that of the result in its document."""
    for name, value in _names_and_counts(imported):
        is_broken = isinstance(value, float) and not value.is_integer()
        if is_broken or why_number_is_impossible(value, 0, MOST_COUNTED):
            problem = (
                f"the number of {name} must be a whole number from 0 to {MOST_COUNTED:,}, "
                f"found {value!r:.40}"
            )
            raise fields.inner_value_error(f"result {index + 1}", problem)


def _names_and_counts(imported: Imported) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each count of a result. Counts of tokens are for one request."""
    made, load = imported.summary, imported.spec
    yield "answered requests", made.requests_ok
    yield "failed requests", made.requests_failed
    yield "requests", load.requests
    yield "streams", load.concurrency
    yield "prompt tokens of a request", load.input_tokens
    yield "answer tokens of a request", load.max_tokens
    answered = max(1, made.requests_ok)
    for name, total in (("prompt", made.prompt_tokens), ("answer", made.output_tokens)):
        if total is not None:
            yield f"{name} tokens of a request", total // answered
    for sample in imported.samples:
        for name, field in (("prompt", "prompt_tokens"), ("answer", "output_tokens")):
            if sample.get(field) is not None:
                yield f"{name} tokens of request {sample.get('index', '?')}", sample[field]


def _mark_invalid_or_refuse(one: Imported, path: Path) -> Imported:
    """Return an imported result, marked as invalid if too many of its requests failed. Raises
    InputError for a result without any measured value."""
    made = one.summary
    every = made.requests_ok + made.requests_failed
    rates = (made.output_tok_s, made.request_s, made.prompt_tok_s, made.per_stream_tok_s)
    is_measured = any((*rates, made.ttft_ms, made.e2e_ms, made.partial))
    if made.requests_ok and is_measured:
        if made.requests_failed <= FAILED_SHARE * every or made.refused:
            return one
        why = (
            f"{made.requests_failed:,} of {every:,} requests failed; more than "
            f"{100 * FAILED_SHARE:.0f} % are too many, since the others then ran under another load "
            "than the requested one"
        )
        return _mark_invalid(one, why)
    if not made.requests_failed:
        raise InputError(
            f"{path}: a result in the file has no measured value",
            next_step="check that the run of the other tool was complete",
        )
    return _mark_invalid(one, f"none of its {made.requests_failed:,} requests succeeded")


def _mark_invalid(imported: Imported, reason: str) -> Imported:
    return replace(
        imported, summary=replace(imported.summary, refused=(*imported.summary.refused, reason))
    )


def _json_documents_with_line(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line where it begins, JSON document) for each document in a file: one, or several one
    after the other, as vllm's --append-result writes them.
    """
    _, data = split_page_and_data(_read_text(path))
    if data is None:
        raise InputError(f"{path} is a page without a proof in it", next_step=_NEXT_STEP)
    text = data
    decoder, place = json.JSONDecoder(object_pairs_hook=unique_json_object), 0
    line = 1
    while place < len(text):
        if text[place].isspace():
            line += text[place] == "\n"
            place += 1
            continue
        try:
            document, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}: line {error.lineno}, column {error.colno}: {error.msg}",
                next_step="the file is truncated or not JSON: save it again",
            ) from None
        except ValueError as error:
            raise InputError(
                f"{path}: {parser_error_message(error)}", next_step=_NEXT_STEP
            ) from None
        except RecursionError:
            raise _too_deep_error(path) from None
        # `vllm bench sweep` writes the results of one setting as a list.
        several = document if isinstance(document, list) else [document]
        yield from ((line, one) for one in several)
        line += text.count("\n", place, end)
        place = end


def _too_deep_error(path: Path) -> InputError:
    return InputError(f"{path}: the JSON document is nested too deeply", next_step=_NEXT_STEP)


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            # a pipe would be waited for without end, and a device has no end
            raise InputError(f"{path} is not a regular file", next_step="check the path")
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(
                f"{path} is larger than {_MOST_BYTES >> 20} MiB",
                next_step="save the results again without the generated texts",
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{path} could not be read: {error_reason(error)}", next_step="check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8", next_step=_NEXT_STEP) from None
    if not text.strip():
        raise InputError(f"{path} is empty", next_step=_NEXT_STEP)
    if text.count("[") + text.count("{") > _MOST_PARTS:
        raise InputError(
            f"{path} has more than {_MOST_PARTS:,} lists and objects",
            next_step="save the results again without the generated texts",
        )
    return text


def _why_format_is_unknown(document: Mapping[str, Any]) -> str:
    if "total_input_sequences" in document:
        return "a benchmark of embeddings, which has no generated tokens to compare"
    if "total_output_tokens_retokenized" in document:
        return "a result of SGLang's bench_serving without its duration or its output rate"
    if {"metadata", "metrics", "error"} <= document.keys():
        return "AIPerf's file of single requests; import the profile_export_aiperf.json beside it"
    names = sorted(map(str, document))[:6] or ["none"]
    if len(document) > 6:
        names.append("…")
    return f"not a result of a known tool (its fields: {', '.join(names)})"
