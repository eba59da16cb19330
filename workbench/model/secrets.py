"""What must not be shown, stored or logged: keys and tokens, by the name they stand under or by their shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from workbench.model.plan import Command

MASK = "***"

_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:token|secret|password|passwd|passphrase|credentials?|key|apikey)$", re.IGNORECASE
)
# Values with a prefix that only keys have: Hugging Face, OpenAI and the like, GitHub, AWS, bearer headers.
_SECRET_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})\b"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
)
# "'api_key': ['abc']", "api_key=abc", "HF_TOKEN: abc". Only names that hold nothing but secrets: "token" is too common.
_SECRET_PAIR = re.compile(
    r"""((?:api[-_]?key|admin[-_]?key|access[-_]key|hf[-_]token|hub[-_]token|auth[-_]token|password|passwd)
        ["']?\s*[:=]\s*[\[(]?\s*["']?)
        (?!None\b|null\b|True\b|False\b|\*\*\*)[^\s"',\])}]+""",
    re.IGNORECASE | re.VERBOSE,
)
_HINTS = ("key", "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia", "bearer", "token", "passw")


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of this name holds a secret: "api-key", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"."""
    return _SECRET_NAME.search(name) is not None


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given values and without what looks like a key."""
    for value in secrets:
        text = text.replace(value, MASK)
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):  # most log lines: a cheap look
        return text
    return _SECRET_PAIR.sub(rf"\1{MASK}", _SECRET_SHAPE.sub(MASK, text))


def mask_command(command: Command) -> Command:
    """The command as it may be shown and stored."""
    values = secret_values(command)
    return replace(
        command,
        argv=tuple(mask_text(a, values) for a in command.argv),
        env={k: MASK if is_secret_name(k) and v else mask_text(v, values) for k, v in command.env.items()},
        files={k: mask_text(v, values) for k, v in command.files.items()},
    )


def secret_values(command: Command) -> tuple[str, ...]:
    """Values given under a secret name, in argv ("--api-key K", "--api-key=K") or environment; longest first."""
    found = {v for k, v in command.env.items() if is_secret_name(k) and v}
    under_secret = False
    for arg in command.argv:
        if arg.startswith("-"):
            name, equals, value = arg.lstrip("-").partition("=")
            under_secret = is_secret_name(name)
            if under_secret and equals:
                found.add(value)
        elif under_secret:
            found.add(arg)
    return tuple(sorted((v for v in found if len(v) > 1), key=len, reverse=True))
