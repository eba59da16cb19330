"""Masking of keys and tokens, which must not be shown, stored or logged. A secret is recognized by
its name or its form.

All code that shows or stores a command, a plan, a log line, an error or a result uses these
functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.flags import FlagRow, FlagSetting
from workbench.model.plan import Command, LaunchPlan, PlanDifference

if TYPE_CHECKING:
    from workbench.model.experiment import Arm

MASK = "***"
# passes the key of Workbench's own server to the load client
SERVER_KEY_VARIABLE = "WORKBENCH_SERVER_KEY"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of "api-key", "HF_TOKEN", "apiKey"
_NAME = re.compile(r"-{0,2}[\w.-]+")
# The last word of a secret's name -> preceding words with which the name is not a secret's.
_SECRET_WORDS: dict[str, str] = {
    **dict.fromkeys(("secret", "secrets", "password", "passwords", "passwd", "passphrase"), ""),
    **dict.fromkeys(
        ("apikey", "apikeys", "accesskey", "secretkey", "authtoken", "authorization"), ""
    ),
    **dict.fromkeys(("key", "keys"), "public cache sort primary"),
    "token": "start end first per pad eos bos unk mask sep cls stop image audio video special",
    **dict.fromkeys(("credential", "credentials"), "allow cors"),
    "auth": "no disable enable require use skip",
}
_SECRET_ENDS = ("password", "passwd", "passphrase", "apikey")  # "PGPASSWORD"
# Values with a prefix that only keys have: Hugging Face, OpenAI and similar, GitHub, AWS, NVIDIA
# NGC, GitLab, Slack, Groq, Google, bearer headers.
_SECRET_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}"
    r"|nvapi-[\w-]{20,}|glpat-[\w-]{16,}|xox[a-z]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{20,}"
    r"|AIza[\w-]{30,}|github_pat_\w{20,})\b"
    r"|\beyJ[\w-]{8,4096}+\.[\w-]{8,}\.[\w-]*"  # a JSON Web Token
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=[Cc]ookie: )[^\r\n'\"]{4,}"
)
# The word after `-k` or `token=` is a key if it is long and made of letters and digits; curl's `-k
# URL` stays. Lengths are limited here and below, so that the time for a long line does not grow
# with its square.
_KEY_LIKE = r"(?=[\w+=-]{0,999}[0-9])(?=[\w+=-]{0,999}[A-Za-z])[\w+=-]{16,1000}+(?![\w+=.:/-])"
_SHORT = re.compile(rf"((?:(?<![^\s'\"])-k|\btoken)(?:=|\s+)['\"]?){_KEY_LIKE}")
# "'api_key': ['abc']", "api_key=abc", "HF_TOKEN: abc". In lower case only names that always mean
# secrets: "token" is too common in logs.
_SECRET_PAIR = re.compile(
    r"""((?P<name>\b[A-Z][A-Z0-9]*_[A-Z0-9_]+|(?i:api[-_]?key|admin[-_]?key|access[-_]key|secret[-_]key|hf[-_]token
        |hub[-_]token|auth[-_]token|(?:proxy-)?authorization|(?<!\w)\w*(?:password|passwd|passphrase)))
        ["']?+\s*+[:=]\s*+[\[(]?+\s*+["']?+(?:(?i:bearer|basic|token)\s++)?+)
        (?!None\b|null\b|True\b|False\b|\*\*\*)[^\s"',\])}]+""",
    re.VERBOSE,
)
# "--api-key abc" inside a line.
_ARGUMENT = re.compile(r"(--(?P<name>[A-Za-z][\w.-]{0,99})(?:=|\s+)['\"]?)(?!-)[^\s'\"]+")
# In a URL: the password, a token in place of the user (for HTTP; for ssh it is a name), and the
# query's parameters.
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_URL_TOKEN = re.compile(r"(https?://)[^/\s:@?#]+(?=@)", re.IGNORECASE)
_URL_QUERY = re.compile(r"([?&](?P<name>[\w.%-]+)=)(?!\*\*\*)[^\s&#'\"<>]+")
_SIGNATURES = ("sig", "signature")
_HINTS = (
    *("@", "key", "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia"),
    *("nvapi-", "glpat-", "xox", "gsk_", "aiza", "github_pat_", "cookie"),
    *("bearer", "token", "pass", "secret", "credential", "auth", "sig", "eyj", "-k"),
)
_DIGITS = str.maketrans("123456789", "0" * 9)  # no hint has a digit
_LEAST_SEEN = 6  # characters: a shorter secret would mask ordinary words of a traceback
_seen: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Return whether a flag or variable of this name contains a secret, for example "api-key",
    "HF_TOKEN" or "AWS_SECRET_ACCESS_KEY"."""
    words: list[str] = ["", "", *_WORD.findall(name)]
    before, last = map(str.lower, words[-2:])
    if last in _SECRET_WORDS:
        return before not in _SECRET_WORDS[last].split()
    return last.endswith(_SECRET_ENDS)


def remembered_secrets() -> tuple[str, ...]:
    """Return the secrets of all commands that this process has masked so far, longest first. They
    serve to mask texts that may quote a secret, such as tracebacks."""
    return tuple(sorted(_seen, key=len, reverse=True))


def remember_secrets(values: Iterable[str]) -> None:
    """Let `remembered_secrets` return `values` too, apart from those so short that they would mask
    ordinary words."""
    _seen.update(value for value in values if len(value) >= _LEAST_SEEN)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with each of `secrets`, and everything that looks like a key, replaced by
    "***"."""
    for value in secrets:
        text = text.replace(value, MASK)
    if not _contains_secret_hint(text):
        return text
    text = _SECRET_PAIR.sub(_mask_value, _SECRET_SHAPE.sub(MASK, mask_urls(text)))
    return _SHORT.sub(rf"\1{MASK}", _ARGUMENT.sub(_mask_value, text))


def mask_lines(lines: Sequence[str], secrets: Collection[str] = ()) -> list[str]:
    """Return the lines, each with its secrets masked as by `mask_text`. To be fast on long logs,
    lines that differ only in their digits are searched for hints of a secret only once."""
    text = "\n".join(lines)
    if any(value in text for value in secrets):
        return [mask_text(line, secrets) for line in lines]
    # ASCII is translated 30 times faster
    forms = text.translate(_DIGITS).split("\n") if text.isascii() else lines
    suspect = set(filter(_contains_secret_hint, set(forms)))
    masked = list(lines)
    if suspect:
        for place, form in enumerate(forms):
            if form in suspect:
                masked[place] = mask_text(lines[place])
    return masked


def _contains_secret_hint(text: str) -> bool:
    """Return whether `text` contains one of the words that occur in every form of secret that
    Workbench recognizes. This quick test spares most log lines the full search for secrets."""
    # "tokens" never names a secret, and is in every second line of an engine's log. Its "s" may
    # begin another hint.
    lower = text.lower().replace("tokens", "s")
    return any(hint in lower for hint in _HINTS)


def mask_urls(text: str) -> str:
    """Return `text` with the passwords, tokens and secret query parameters of its URLs replaced by
    "***"."""
    text = _URL_TOKEN.sub(rf"\1{MASK}", _URL_PASSWORD.sub(rf"\1{MASK}", text))
    return _URL_QUERY.sub(_mask_value, text)


def _mask_value(found: re.Match[str]) -> str:
    name = found["name"]
    if is_secret_name(name) or name.lower().endswith(_SIGNATURES):
        return f"{found[1]}{MASK}"
    return found[0]


def mask_argv(argv: Sequence[str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """Return `argv` with secrets replaced by "***": the value of each secret flag, each of
    `secrets`, and everything that looks like a key."""
    values = tuple(secrets)
    return tuple(
        MASK if under_secret else _mask_word(arg, values)
        for arg, under_secret in _arguments_with_secret_marks(argv)
    )


def _arguments_with_secret_marks(argv: Sequence[str]) -> Iterable[tuple[str, bool]]:
    """Yield (argument, whether it is a secret) for each argument. Secrets are all arguments between
    a flag such as "--api-key" and the next flag, and what looks like a key directly after "-k"."""
    under_secret = key_may_follow = False
    for arg in argv:
        if arg.startswith("-"):
            name, equals, _ = arg.lstrip("-").partition("=")
            under_secret, key_may_follow = is_secret_name(name) and not equals, arg == "-k"
            yield arg, False
        else:
            yield arg, under_secret or (key_may_follow and re.fullmatch(_KEY_LIKE, arg) is not None)
            key_may_follow = False


def _mask_word(word: str, secrets: Iterable[str]) -> str:
    """Return one argument with its secrets masked. The argument can be "--api-key=K", "HF_TOKEN=K",
    JSON, or any text."""
    name, equals, value = word.partition("=")
    if equals and value and _NAME.fullmatch(name) and is_secret_name(name):
        return f"{name}={MASK}"
    if word.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            data = json.loads(word)
            masked = mask_data(data)
            if masked != data:
                word = json.dumps(masked)
    return mask_text(word, secrets)


def mask_env(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment `env` with the values of secret variables masked."""
    values = tuple(secrets)
    masked = {}
    for name, value in env.items():
        is_secret = is_secret_name(name) and value
        masked[name] = MASK if is_secret else mask_text(value, values)
    return masked


def mask_data(data: Any, name: str = "") -> Any:
    """Return a copy of JSON data with its secrets masked: all texts under a secret name, at any
    depth, values after a secret flag in a list, and texts that look like a key. Numbers are not
    masked. `name` is the name under which `data` was found."""
    if isinstance(data, (int, float)):  # most values of a result; a check of an ABC takes longer
        return data
    if isinstance(data, Mapping):
        if name and is_secret_name(name):
            return {k: mask_data(v, name) for k, v in data.items()}
        return {k: mask_data(v, str(k)) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        if is_secret_name(name):
            return [mask_data(v, name) for v in data]
        if not any(isinstance(v, str) for v in data):  # such as 100,000 times
            return [mask_data(v) for v in data]
        texts = [v if isinstance(v, str) else "" for v in data]
        return [
            mask_data(v, "secret" if under_secret else "")
            for v, (_, under_secret) in zip(data, _arguments_with_secret_marks(texts), strict=True)
        ]
    if isinstance(data, str) and data:
        return MASK if is_secret_name(name) else _mask_word(data, ())
    return data


def mask_secrets_of_plan(plan: LaunchPlan) -> LaunchPlan:
    """Return a copy of the plan with its secrets masked, to show or to store. The user must enter a
    masked key again before the plan can start."""

    def masked(settings: tuple[FlagSetting, ...]) -> tuple[FlagSetting, ...]:
        return tuple(replace(s, value=_mask_setting_value(s.name, s.value)) for s in settings)

    values: list[tuple[str, Any]] = [(s.name, s.value) for s in (*plan.flags, *plan.env)]
    for node in plan.nodes:
        values += [*node.flags.items(), *node.env.items()]
    secrets = {str(value) for name, value in values if _mask_setting_value(name, value) == MASK}
    variables = {n: MASK if v in secrets else mask_data(v) for n, v in plan.variables.items()}
    return replace(plan, flags=masked(plan.flags), env=masked(plan.env), variables=variables)


def mask_secrets_of_arm(arm: Arm) -> Arm:
    """Return an arm of an experiment with the secrets in its assignments masked."""
    return replace(arm, sets=mask_argv(arm.sets), envs=mask_argv(arm.envs))


def mask_row(row: FlagRow) -> FlagRow:
    """Return a copy of a line of the flag editor with its secret masked."""
    return replace(row, value=_mask_setting_value(row.name, row.value))


def mask_secrets_of_difference(difference: PlanDifference) -> PlanDifference:
    """Return a copy of a difference between two plans with its secrets masked."""
    name = difference.name
    return replace(
        difference,
        a=_mask_setting_value(name, difference.a),
        b=_mask_setting_value(name, difference.b),
    )


def _mask_setting_value(name: str, value: Any) -> Any:
    if is_secret_name(name):
        return mask_data(value) if value in (None, "", True, False) else MASK
    if isinstance(value, (bool, int, float)):
        return value
    return mask_data(value)


def mask_command(command: Command) -> Command:
    """Return a copy of the command with its secrets masked, to show or to store. The secrets are
    remembered for `remembered_secrets`."""
    values = secret_values(command)
    remember_secrets(values)
    return replace(
        command,
        argv=mask_argv(command.argv, values),
        env=mask_env(command.env, values),
        files={k: mask_text(v, values) for k, v in command.files.items()},
    )


def secret_values(command: Command) -> tuple[str, ...]:
    """Return the secret values in a command's flags and environment variables, longest first.
    Examples of flags are "--api-key KEY" and "--api-key=KEY". Values of one character are left
    out, and so is a separate value that begins with "-"."""
    pairs = [*command.env.items(), *(tuple(a.partition("=")[::2]) for a in command.argv)]
    found = {value for name, value in pairs if is_secret_name(name)}
    found |= {
        arg for arg, under_secret in _arguments_with_secret_marks(command.argv) if under_secret
    }
    return tuple(value for value in sorted(found, key=len, reverse=True) if len(value) > 1)
