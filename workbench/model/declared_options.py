"""The declaration of an option that describes the load of a benchmark or an experiment.

Such an option is declared once, at its field of `BenchSpec` (model/load_spec.py) or of
`ExperimentSpec` (model/experiment.py). The command line (cli/declared_arguments.py) and the checks
are made from the declaration; for a load, also the form, the keys of presets, the command that
repeats a stored benchmark, the line that describes a load, and what an export refuses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, NamedTuple

from workbench.model.errors import InputError

_KEY = "option"  # in the metadata of a field
# groups of options, which commands have together
STREAMS, SIZE, SHAPE, CLIENT = "streams", "size", "shape", "client"
DESIGN = "design"  # of an experiment
# what decides the value of some options, so that they are not given beside it
TRACE, SEARCH = "trace", "search for users"
# what tells results apart: the digest of their load, and their labels in the list of results
DIGEST, LABEL = "digest", "label"
AIPERF, GUIDELLM = "AIPerf", "GuideLLM"  # tools with an export of their own form
_MOST_SHOWN = 24  # characters


def _refuse_json_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _parse_json_object(text: str) -> dict[str, Any]:
    next_step = "give a JSON object, for example '{\"top_k\": 1}'"
    try:
        found = json.loads(text, parse_constant=_refuse_json_constant)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise InputError("--extra-body is nested too deeply", next_step=next_step) from None
    except ValueError as error:  # also of half a character, which no request can carry
        raise InputError(f"--extra-body is not JSON: {error}", next_step=next_step) from None
    if not isinstance(found, dict):
        raise InputError("--extra-body is not a JSON object", next_step=next_step)
    return found


def _parse_speed_factor(text: str) -> float:
    try:
        return float(text.strip().removesuffix("x"))
    except ValueError:
        raise InputError(
            f"{text!r} is not a factor", next_step="give a number such as 2x or 0.5"
        ) from None


def _split_shell_words(text: str) -> tuple[str, ...]:
    import shlex  # the load client, which imports this module, reads no such text

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(
            f"--command: {error}", next_step="quote the command as in a shell"
        ) from None
    if not words:
        raise InputError(
            "--command is empty",
            next_step="give a command, for example --command 'vf-eval … -n 100'",
        )
    return words


def number_text(number: float) -> str:
    """Return a number in its shortest text that can be read as the same number again."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _value_text(value: Any) -> str:
    """Return a value as text for a message about it, cut to _MOST_SHOWN characters."""
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    if len(text) > _MOST_SHOWN:
        return f"{text[:_MOST_SHOWN]}… ({len(text)} characters)"
    return text


# The kinds are no dataclasses: generating ten of them would make each start of the load client 5 ms
# longer.
class Kind:
    """The type of an option's values. This class is for texts."""

    # returns the value of a text of the command line
    parse: Callable[[str], Any] = str
    preset_type: ClassVar[Any] = str  # of the values in the file of a preset

    def text(self, value: Any) -> str:
        """Return a value as the text that stands for it on the command line. `parse` makes the same
        value of this text."""
        return str(value)

    def command_line_words(self, name: str, value: Any) -> tuple[str, ...]:
        """Return the words of a command line that set the option `name`, such as "--rate", to the
        value."""
        text = self.text(value)
        if text.startswith("-"):
            return (f"{name}={text}",)
        return name, text

    def require_valid(self, name: str, value: Any) -> None:
        """Raise InputError if the value is not valid. The message calls the option `name`."""
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise InputError(
                f"the {name} has a character that is not text",
                next_step=f"give the {name} in UTF-8",
            ) from None


class Whole(Kind):
    """Whole numbers from `least` to `most`."""

    preset_type = int
    parse = int

    def __init__(self, least: int = 1, most: int = 10**9) -> None:
        self.least, self.most = least, most

    def require_valid(self, name: str, value: Any) -> None:
        is_whole = type(value) is int
        if not is_whole or not self.least <= value <= self.most:
            limit = f"{self.least:,} or more"
            if is_whole and value > self.most:
                limit = f"{self.most:,} or less"
            raise InputError(
                f"{_value_text(value)} is not a valid value of {name}",
                next_step=f"give a whole number of {limit}",
            )


class OptionalWhole(Whole):
    """Whole numbers of at least 1. None means no limit."""

    preset_type = int | None

    def require_valid(self, name: str, value: Any) -> None:
        if value is not None:
            super().require_valid(name, value)


class Number(Kind):
    """Numbers above 0 in a unit such as seconds, from `least` to `most`. None means no limit."""

    preset_type = float | None
    parse: Callable[[str], Any] = float

    def __init__(self, unit: str = "seconds", least: float = 1e-6, most: float = 1e9) -> None:
        self.unit, self.least, self.most = unit, least, most

    def text(self, value: Any) -> str:
        return number_text(value)

    def require_valid(self, name: str, value: Any) -> None:
        if value is None:
            return
        if not _is_number(value) or not self.least <= value <= self.most:
            limit = "above 0"
            if _is_number(value) and 0 < value < math.inf:
                limit = f"from {self.least:g} to {self.most:g}"
            raise InputError(
                f"{name} {_value_text(value)} is not a valid number of {self.unit}",
                next_step=f"give {name} a number {limit}",
            )


class Factor(Number):
    """Factors above 0, such as "2x" or "0.5". None means as it is."""

    parse: Callable[[str], Any] = staticmethod(_parse_speed_factor)

    def __init__(self) -> None:
        super().__init__("times the recorded speed")

    def text(self, value: Any) -> str:
        return f"{number_text(value)}x"


class Fraction(Kind):
    """Numbers from 0 to below 1."""

    preset_type = float
    parse = float

    def __init__(self, example: str) -> None:
        self.example = example

    def text(self, value: Any) -> str:
        return number_text(value)

    def require_valid(self, name: str, value: Any) -> None:
        if not _is_number(value) or not 0 <= value < 1:
            raise InputError(
                f"the {name} is not between 0 and 1",
                next_step=f"give a {name} from 0 to below 1, such as {self.example}",
            )


class Choice(Kind):
    """One of several words. With `may_be_empty`, "" leaves the choice to Workbench."""

    def __init__(self, choices: tuple[str, ...], may_be_empty: bool = False) -> None:
        self.choices, self.may_be_empty = choices, may_be_empty

    def require_valid(self, name: str, value: Any) -> None:
        left_open = self.may_be_empty and value == ""
        if value not in self.choices and not left_open:
            raise InputError(
                f"{value!r} is not a valid value of {name}",
                next_step=f"give {name} as one of {', '.join(self.choices)}",
            )


class Switch(Kind):
    """True or False, by an option --name or --no-name."""

    preset_type = bool

    def command_line_words(self, name: str, value: Any) -> tuple[str, ...]:
        if value:
            return (name,)
        return (f"--no-{name.removeprefix('--')}",)


class Constant(Kind):
    """The one value that an option without an argument sets. The default is its opposite."""

    preset_type = bool

    def __init__(self, value: bool = True) -> None:
        self.value = value

    def command_line_words(self, name: str, value: Any) -> tuple[str, ...]:
        return (name,)


class CheckedText(Kind):
    """Texts that `check_text` checks; it raises InputError for an invalid one."""

    def __init__(self, check_text: Callable[[str], object]) -> None:
        self.check_text = check_text

    def require_valid(self, name: str, value: Any) -> None:
        if value:
            self.check_text(value)


class JsonObject(Kind):
    """JSON objects."""

    parse = staticmethod(_parse_json_object)

    def text(self, value: Any) -> str:
        return json.dumps(dict(value), ensure_ascii=False)

    def require_valid(self, name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise InputError(
                f"the {name} fields are not a JSON object",
                next_step=f'give the {name} fields as a JSON object, such as {{"top_k": 1}}',
            )


class Command(Kind):
    """Commands as one text, quoted as in a shell. The value is the tuple of their words."""

    parse = staticmethod(_split_shell_words)

    def text(self, value: Any) -> str:
        import shlex

        return shlex.join(value)


TEXT = Kind()
SEED = Whole(-(2**63), 2**63 - 1)


class DeclaredOption(NamedTuple):
    """One option of a load or an experiment. `field` is its field of BenchSpec or ExperimentSpec.

    `words` are the option's name and its metavar on the command line, and `help` explains it there.
    `group` is one of STREAMS, SIZE, SHAPE, CLIENT and DESIGN. At most one of the options with the
    same `exclusive` text may be given. The option is refused without a value of the field `needs`,
    and beside a value of a field in `no_effect_beside`, which are pairs (field, why)."""

    words: str
    help: str
    group: str
    kind: Kind
    field: str = ""
    default: Any = None
    exclusive: str = ""
    # The argument of the command line, if it is not the value of the field: the path of a file
    # whose content is.
    argument: str = ""
    label: str = ""  # in the form of a benchmark; "": the form does not have the option
    hint: str = ""  # beside the field of the form
    in_preset: bool = False
    preset_default: Any = None  # None: as in a benchmark without a preset
    always_written: bool = False  # in the command that repeats a benchmark, also the default
    in_line: str = ""  # in the line that describes a load: "think time {} s"; "": not there
    needs: str = ""
    no_effect_beside: tuple[tuple[str, str], ...] = ()
    decided_by: tuple[str, ...] = ()  # TRACE and SEARCH
    unknown_to: tuple[str, ...] = ()  # tools whose form has no word for it: AIPERF and GUIDELLM
    # False: results that differ in it have measured the same work, which was only sent, watched or
    # judged in another way
    is_work: bool = True
    left_out_of: tuple[str, ...] = ()  # DIGEST and LABEL, of an option that is work
    short: str = ""  # its word in the label of a result; "": its name

    @property
    def name(self) -> str:
        """The option's name on the command line, such as "--max-tokens"."""
        return self.words.split()[0]

    @property
    def field_name_without_unit(self) -> str:
        """The option's name without dashes, as messages call it: "stall timeout" for
        "--stall-timeout"."""
        return self.name.removeprefix("--").replace("-", " ")

    @property
    def dest(self) -> str:
        """The name under which the command line's parser and the form keep the option's value."""
        return self.argument or self.field

    def command_line_words(self, value: Any) -> tuple[str, ...]:
        """Return the words of a command line that set the option to `value`. The tuple is empty if
        the command line does not need the option for it."""
        if value == self.default and not self.always_written:
            return ()
        return self.kind.command_line_words(self.name, value)

    def load_line_text(self, value: Any) -> str:
        """Return what the line that describes a load says about the option. "" if the line leaves
        the option out, as it does for a default."""
        if value == self.default:
            return ""
        return self.in_line.format(self.kind.text(value))

    def require_valid(self, value: Any) -> None:
        """Raise InputError if `value` is not a valid value of the option."""
        self.kind.require_valid(self.field_name_without_unit, value)


def option_metadata(
    words: str, help: str, group: str, kind: Kind = TEXT, **details: Any
) -> dict[str, Any]:
    """Return the metadata that make a field an option. The parameters are the fields of
    DeclaredOption."""
    return {_KEY: DeclaredOption(words=words, help=help, group=group, kind=kind, **details)}


def options_declared_in(record: type) -> tuple[DeclaredOption, ...]:
    """Return the options that the fields of a dataclass declare, in the order of the fields."""
    found: list[DeclaredOption] = []
    for one in fields(record):
        option: DeclaredOption | None = one.metadata.get(_KEY)
        if option is None:
            continue
        default = None
        if one.default is not MISSING:
            default = one.default
        elif one.default_factory is not MISSING:
            default = one.default_factory()
        found.append(option._replace(field=one.name, default=default))
    return tuple(found)
