"""Files of the user's own prompts. A file has one JSON object per line (a prompt, a text, a list of
messages, or a ShareGPT conversation), or it is one JSON array of them, as ShareGPT is distributed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.model.counts import count_of
from workbench.model.errors import InputError, error_reason
from workbench.model.lazy_dataclass import dataclass

MAX_FILE_BYTES = 1024 * 1024 * 1024  # ShareGPT has 640 MB
_EXPECTED_FORM = (
    'write one JSON object per line: {"prompt": "…"}, {"text": "…"}, {"messages": […]} or '
    '{"conversations": […]}, each'
    ' with an optional "max_tokens"; or one JSON array of such objects, as ShareGPT is distributed'
)
_BOM = b"\xef\xbb\xbf"
_ROLE_OF_SPEAKER = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Prompts:
    """The user's own prompts from a file. `prompts` are the prompts as JSON texts, for
    BenchSpec.prompts. `name` describes the file in results, such as "FILE (12 prompts, sha256
    3fa…)"."""

    prompts: tuple[str, ...]
    name: str


def read_prompts(path: str | Path) -> Prompts:
    """Return the prompts in the file at `path`. Empty lines are skipped. Raises InputError if the
    file cannot be read or contains an invalid prompt; the message then names the line."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            # a pipe would be waited for without end, and a device has no end
            raise InputError(
                f"{path} is not a regular file", next_step="check the file given by --prompts"
            )
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB",
                next_step="use a smaller file, with only some of the prompts",
            )
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error_reason(error)}",
            next_step="check the file given by --prompts",
        ) from None
    found: list[str] = []
    for place, line in _numbered_json_values(path, data):
        try:
            prompt = _parse_prompt(line)
            found.append(
                json.dumps(_prompt_with_requested_output_length(prompt, line), ensure_ascii=False)
            )
            found[-1].encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{place}: the prompt contains half of a character (a lone surrogate)",
                next_step=_EXPECTED_FORM,
            ) from None
        except ValueError as error:
            raise InputError(f"{place}: {error}", next_step=_EXPECTED_FORM) from None
    if not found:
        raise InputError(f"{path} contains no prompt", next_step=_EXPECTED_FORM)
    digest = hashlib.sha256(data).hexdigest()[:12]
    return Prompts(tuple(found), f"{path.name} ({count_of(len(found), 'prompt')}, sha256 {digest})")


def _prompt_with_requested_output_length(prompt: str | list[dict[str, Any]], document: Any) -> Any:
    length = document.get("max_tokens") if isinstance(document, dict) else None
    if length is None:
        return prompt
    if type(length) is not int or length < 1:
        raise ValueError(f"max_tokens is {length!r}, but must be a number of at least 1")
    return {"messages" if isinstance(prompt, list) else "prompt": prompt, "max_tokens": length}


def _numbered_json_values(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield (place in the file for error messages, decoded JSON value) for each line, or for each
    entry of a JSON array. ShareGPT conversations without a message of the role "user" are skipped.
    Raises InputError for a line that is not JSON."""
    if data.removeprefix(_BOM).lstrip().startswith(b"["):
        try:
            array = json.loads(data.removeprefix(_BOM))
        except (ValueError, RecursionError):
            array = None  # lines that are arrays: reported line by line
        if isinstance(array, list):
            usable = (
                (i, one) for i, one in enumerate(array, start=1) if not _has_no_user_message(one)
            )
            yield from ((f"{path}: entry {i}", one) for i, one in usable)
            return
    # not splitlines: a JSON text may contain U+2028
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line.removeprefix(_BOM))
            except (
                ValueError,
                RecursionError,
            ) as error:  # ValueError also for bytes that are not UTF-8
                raise InputError(
                    f"{path}:{number}: {_json_error_text(error)}", next_step=_EXPECTED_FORM
                ) from None


def _has_no_user_message(entry: Any) -> bool:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        return False
    speakers = [str(turn.get("from")) for turn in turns if isinstance(turn, dict)]
    return "user" not in map(_ROLE_OF_SPEAKER.get, speakers)


def _json_error_text(error: Exception) -> str:
    match error:
        case RecursionError():
            return "the JSON is nested too deeply"
        case json.JSONDecodeError():
            return f"not JSON: {error.msg} at column {error.colno}"
        case UnicodeDecodeError():
            return "not UTF-8"
    return str(error)


def _parse_prompt(line: Any) -> str | list[dict[str, Any]]:
    if isinstance(line, str):
        return _require_nonblank_text(line)
    if not isinstance(line, dict):
        raise ValueError("the prompt is neither a JSON object nor a string")
    for name in ("prompt", "text"):
        if isinstance(line.get(name), str):
            return _require_nonblank_text(line[name])
    if isinstance(line.get("messages"), list):
        return _messages_up_to_last_question(line["messages"])
    turns = line.get("conversations", line.get("conversation"))
    if isinstance(turns, list):
        return _messages_up_to_last_question([parse_sharegpt_turn(turn) for turn in turns])
    fields = ", ".join(map(str, line)) or "no fields"
    raise ValueError(
        f"the prompt has no field prompt, text, messages or conversations; its fields are {fields}"
    )


def _require_nonblank_text(text: str) -> str:
    if not text.strip():
        raise ValueError("the prompt is empty")
    return text


def parse_sharegpt_turn(turn: Any) -> dict[str, Any]:
    """Return the message of an entry of a ShareGPT conversation. Raises ValueError for an invalid
    one."""
    match turn:
        case {"from": str(speaker), "value": str(text)} if speaker in _ROLE_OF_SPEAKER:
            return {"role": _ROLE_OF_SPEAKER[speaker], "content": text}
    raise ValueError('each entry of "conversations" needs "from" (human, gpt, system) and "value"')


def _messages_up_to_last_question(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the messages up to the last one of the role "user" or "tool", without later ones.
    Raises ValueError if there is none, or if any message is invalid."""
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f'each message needs a "role", one of {", ".join(_ROLES)}')
        if not isinstance(message.get("content"), (str, list)) and "tool_calls" not in message:
            raise ValueError('each message needs a "content"')
    last = max((i for i, m in enumerate(messages) if m["role"] in ("user", "tool")), default=-1)
    if last < 0:
        raise ValueError('the prompt has no message with the role "user" or "tool"')
    return messages[: last + 1]
