"""What must not be shown, stored or logged: keys and tokens, by the name they stand under or by their shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from workbench.model.flags import FlagSetting
from workbench.model.plan import Command, LaunchPlan

MASK = "***"
SERVER_KEY_VARIABLE = "WORKBENCH_SERVER_KEY"  # carries the key of a run of ours to the load client, by environment only

# Not "reasoning-start-token", "bucket-time-to-first-token", "…-per-token", "allow-credentials", "cors-credentials".
_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:(?<!start[-_])(?<!end[-_])(?<!first[-_])(?<!per[-_])token|secret|password|passwd|passphrase"
    r"|(?<!allow[-_])(?<!cors[-_])credentials?|key|apikey)$",
    re.IGNORECASE,
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
# "--api-key abc" inside a line, and the password of a URL.
_SECRET_ARGUMENT = re.compile(r"(--(?:\w+-)*?(?:api-key|hf-token|password)\s+['\"]?)(?!-)[^\s'\"]+")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_HINTS = ("@", "key", "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia", "bearer", "token", "passw")


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
    text = _SECRET_PAIR.sub(rf"\1{MASK}", _SECRET_SHAPE.sub(MASK, text))
    return _URL_PASSWORD.sub(rf"\1{MASK}", _SECRET_ARGUMENT.sub(rf"\1{MASK}", text))


def mask_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """`argv` with whatever stands under a secret flag masked, however short it is."""
    values, masked, under_secret = tuple(secrets), [], False
    for arg in argv:
        if arg.startswith("-"):
            name, equals, value = arg.lstrip("-").partition("=")
            under_secret = is_secret_name(name)
            arg = f"{arg.partition('=')[0]}={MASK}" if under_secret and equals and value else mask_text(arg, values)
        else:
            arg = MASK if under_secret else mask_text(arg, values)
        masked.append(arg)
    return tuple(masked)


def mask_env(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """`env` with the values of secret variables masked."""
    values = tuple(secrets)
    return {k: MASK if is_secret_name(k) and v else mask_text(v, values) for k, v in env.items()}


def mask_plan(plan: LaunchPlan) -> LaunchPlan:
    """The plan as it may be shown and stored. A key in it must be given anew before it can be started again."""

    def masked(settings: tuple[FlagSetting, ...]) -> tuple[FlagSetting, ...]:
        return tuple(replace(s, value=MASK) if is_secret_name(s.name) and s.value else s for s in settings)

    return replace(plan, flags=masked(plan.flags), env=masked(plan.env))


def mask_command(command: Command) -> Command:
    """The command as it may be shown and stored."""
    values = secret_values(command)
    return replace(
        command,
        argv=mask_argv(command.argv, values),
        env=mask_env(command.env, values),
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
