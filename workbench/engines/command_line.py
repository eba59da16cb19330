"""Parsing of an engine's command line into a plan. The command line can be that of a running
process, a script or a container; nothing is executed.

`recognize_engine_start` finds the engine that a command line starts. `parse_plan` parses the
arguments with the engine's flag catalog.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from workbench.engines import registry
from workbench.engines.base import Engine
from workbench.engines.catalog import look_up_flag
from workbench.engines.flag_values import elements_of_value, format_argument, parse_value_from_word
from workbench.engines.plans import set_flag
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagCatalog, FlagKind, FlagSetting, FlagSpec, FlagValue, Origin
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.secrets import is_secret_name, mask_text

_PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?")
# what argparse takes for a value in spite of its dash
_NUMBER = re.compile(r"-\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|-\.\d+")
# the arguments of a command line that asks the program about itself and starts no server
_QUESTIONS = (("--version",), ("--help",), ("-h",))
_OPTION_NAME = re.compile(r"--[A-Za-z][\w.-]*")


@dataclass(frozen=True, slots=True)
class EngineCommandLine:
    """A command line that starts an engine's server, split into the program and its arguments.
    `executable` is () if the command line names the engine's usual program."""

    engine: Engine
    executable: tuple[str, ...]
    arguments: tuple[str, ...]
    replaced: str = ""  # another program with the engine's flags, in whose place the engine starts

    @property
    def program(self) -> tuple[str, ...]:
        """The program with its first arguments that starts the engine: `executable`, or the
        engine's usual one."""
        return self.executable or self.engine.launch


def recognize_engine_start(words: Sequence[str]) -> EngineCommandLine | None:
    """Return the engine that the command line `words` starts, with its program and arguments. None
    if `words` start no known engine, or only ask it for its version or help."""
    words = _drop_interpreter(words)
    names = [*map(_program_name, words[:1]), *words[1:3]]
    for name in registry.engine_names():
        engine = registry.get_engine(name)
        for start in engine.start_words:
            if _matches_start_words(names, start):
                found = _split_engine_command_line(engine, words, len(start))
                return None if found.arguments in _QUESTIONS else found
    return None


def _matches_start_words(names: Sequence[str], start_words: Sequence[str]) -> bool:
    """Return whether a command line begins with `start_words`. `names` are its first words, with
    the program without its directory. After an interpreter of any name, "-m MODULE" alone
    decides."""
    if list(names[: len(start_words)]) == list(start_words):
        return True
    if start_words[1:2] == ("-m",):
        return list(names[1 : len(start_words)]) == list(start_words[1:])
    # a script, such as python /srv/tabby/main.py
    script_start = [*names[:1], *map(posixpath.basename, names[1:2])]
    return start_words[0] == "python" and script_start == list(start_words)


def _program_name(word: str) -> str:
    name = posixpath.basename(word)
    return "python" if _PYTHON.fullmatch(name) else name


def _drop_interpreter(words: Sequence[str]) -> Sequence[str]:
    """Return a command line without its Python interpreter: `python -u /venv/bin/vllm serve`
    becomes `/venv/bin/vllm serve`. The kernel inserts the interpreter if a script starts with "#!".
    The interpreter stays if a .py file or an option such as -m follows."""
    if not words or _program_name(words[0]) != "python":
        return words
    rest = list(words[1:])
    while rest and re.fullmatch(r"-[uBEIOsS]+", rest[0]):
        rest.pop(0)
    if not rest or rest[0].startswith("-") or rest[0].endswith(".py"):
        return [words[0], *rest]
    return rest


def _split_engine_command_line(
    engine: Engine, words: Sequence[str], program_word_count: int
) -> EngineCommandLine:
    executable = tuple(words[:program_word_count])
    other = posixpath.basename(words[0])
    if other in engine.other_programs:
        beside = posixpath.join(posixpath.dirname(words[0]), engine.launch[0])
        executable = (beside,) if "/" in words[0] else ()
        return EngineCommandLine(
            engine, executable, tuple(words[program_word_count:]), replaced=other
        )
    if executable == engine.launch:
        executable = ()
    elif len(executable) > 1 and executable[-1] == "serve":
        executable = executable[:-1]
    return EngineCommandLine(engine, executable, tuple(words[program_word_count:]))


@dataclass(slots=True)
class _ParseState:
    """The state while a command line is parsed: the plan so far, the `words` that are left, and the
    findings. `lists` has, for each flag that may be repeated, the values found so far."""

    plan: LaunchPlan
    catalog: FlagCatalog
    words: list[str]
    findings: list[Finding] = field(default_factory=list)
    lists: dict[str, list[FlagValue]] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)


def parse_plan(
    start: EngineCommandLine,
    env: Mapping[str, str] = MappingProxyType({}),
    workdir: str | None = None,
    version: str | None = None,
) -> tuple[LaunchPlan, tuple[Finding, ...]]:
    """Return the plan that a command line describes, and findings about words that could not be
    parsed. `version` is the engine's version; None if it is unknown. A flag that the catalog does
    not contain keeps its spelling."""
    engine = start.engine
    settings = tuple(FlagSetting(name, value, Origin.PRESET) for name, value in env.items())
    plan = LaunchPlan(engine.name, "", executable=start.executable, env=settings, workdir=workdir)
    state = _ParseState(plan, engine.catalog(version), list(start.arguments))
    if start.replaced:
        why = engine.other_programs[start.replaced]
        text = f"{start.replaced} {why}; {shlex.join(engine.launch)} has the same flags"
        state.findings.append(Finding(Level.WARN, "recipe.program", text))
    while state.words:
        _parse_next_argument(engine, state)
    if len(set(state.models)) > 1:
        text = (
            f"the model is named {len(state.models)} times: "
            f"{mask_text(', '.join(state.models))}; the last one counts"
        )
        state.findings.append(Finding(Level.WARN, "recipe.two-models", text))
    return engine.normalize_parsed_plan(state.plan), tuple(state.findings)


def _parse_next_argument(engine: Engine, state: _ParseState) -> None:
    """Remove the next flag with its values, or the next other word, from `state.words`, and store
    it in `state.plan`. A word that is neither a flag nor the model becomes a finding."""
    option, equals, inline = state.words.pop(0).partition("=")
    match = look_up_flag(state.catalog, option)
    is_flag = _OPTION_NAME.fullmatch(option) or (option.startswith("-") and match.spec is not None)
    if not is_flag:
        word = f"{option}{equals}{inline}"
        if engine.positional_model and not state.models and not word.startswith("-"):
            _record_model(state, word)
        elif word not in ("", "--"):
            _report_unknown_word(state, word)
        return
    if match.spec is not None and equals and not engine.argparse_values:
        text = f"{engine.title} does not accept {option}=…; it was read as {option} {inline}"
        state.findings.append(
            Finding(Level.WARN, "recipe.equals-sign", text, match.name, f"write {option} {inline}")
        )
    value = _consume_flag_value(engine, state, match.spec, inline if equals else None)
    if value is None:
        text = f"{option} has no value; it is left out"
        state.findings.append(
            Finding(Level.ERROR, "recipe.no-value", text, match.name, f"write {option} VALUE")
        )
    elif match.name in engine.model_flags:
        _record_model(state, str(value))
    else:
        if _collects_repeated_values(match.spec) and not isinstance(value, bool):
            listed = state.lists.setdefault(match.name, [])
            listed += elements_of_value(value)
            value = list(listed) if len(listed) > 1 else value
        before = state.plan.flag(match.name)
        state.plan = set_flag(state.plan, state.catalog, option, value, Origin.PRESET)
        if before is not None and not _collects_repeated_values(match.spec):
            _report_repeated_flag(state, match.name, before)


def _collects_repeated_values(spec: FlagSpec | None) -> bool:
    """Return whether the engine collects the values of a flag that is given several times. Of a
    flag with several values in one place ("+", "*"), the engine takes only the last place."""
    return spec is not None and spec.repeatable and spec.nargs in (None, ",")


def _report_repeated_flag(state: _ParseState, name: str, before: FlagValue) -> None:
    now = state.plan.flag(name)
    if now != before:
        values = ""
        if not is_secret_name(name):
            values = f": {_format_masked_value(before)} and {_format_masked_value(now)}"
        text = f"{name} is given several times{values}; the engine takes the last"
        state.findings.append(Finding(Level.WARN, "recipe.repeated", text, name))


def _format_masked_value(value: FlagValue | None) -> str:
    return mask_text(" ".join(map(format_argument, elements_of_value(value))))


def _record_model(state: _ParseState, model: str) -> None:
    state.models.append(model)
    state.plan = replace(state.plan, model=model)


def _report_unknown_word(state: _ParseState, word: str) -> None:
    text = f"not understood and left out: {mask_text(shlex.quote(word))}"
    state.findings.append(Finding(Level.WARN, "recipe.not-understood", text))


def _consume_flag_value(
    engine: Engine, state: _ParseState, spec: FlagSpec | None, inline: str | None
) -> FlagValue | None:
    """Return the value of a flag, and remove the words of the value from `state.words`. `spec` is
    None for a flag that the catalog does not contain. `inline` is the text after "=" in
    "--flag=text"; None without "=". The result is None if the value is missing."""
    if spec is None:
        return _consume_value_of_unknown_flag(engine, state, inline)
    if spec.kind is FlagKind.BOOL and not spec.value_takes_bool_word:
        return True if inline is None else _parse_flag_word_or_keep(spec, inline)
    if inline is not None:
        return _parse_value_or_comma_list(spec, inline)
    if spec.nargs in ("+", "*"):
        return _consume_values_until_option(state, spec, len(state.words))
    if spec.nargs and spec.nargs.isdecimal():
        return _consume_values_until_option(state, spec, int(spec.nargs))
    if not state.words or (engine.argparse_values and _looks_like_option(state.words[0])):
        return True if spec.may_lack_value else None
    if spec.is_on_off and _looks_like_option(state.words[0]):
        return True
    return _parse_value_or_comma_list(spec, state.words.pop(0))


def _consume_value_of_unknown_flag(
    engine: Engine, state: _ParseState, inline: str | None
) -> FlagValue:
    """Return the value of a flag that the catalog does not contain: one word, a list of several, or
    True if none follows. For an engine that takes the model as a word without a flag, at most one
    word belongs to the flag: the next one may be the model."""
    if inline is not None:
        return parse_value_from_word(None, inline)
    if not state.words or _looks_like_option(state.words[0]):
        return True
    most = len(state.words)
    if engine.positional_model and not state.models:
        most = 1
    return _consume_values_until_option(state, None, most)


def _consume_values_until_option(
    state: _ParseState, spec: FlagSpec | None, max_count: int
) -> FlagValue:
    taken: list[FlagValue] = []
    while state.words and len(taken) < max_count and not _looks_like_option(state.words[0]):
        taken.append(_parse_flag_word_or_keep(spec, state.words.pop(0)))
    if len(taken) == 1:
        return taken[0]
    return taken


def _looks_like_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word) and " " not in word


def _parse_value_or_comma_list(spec: FlagSpec, word: str) -> FlagValue:
    """Parse one word of a command line as a flag's value. The result is a list if the flag takes
    several values joined by commas and the word contains a comma."""
    if spec.nargs == "," and "," in word:
        return [_parse_flag_word_or_keep(spec, part) for part in word.split(",")]
    return _parse_flag_word_or_keep(spec, word)


def _parse_flag_word_or_keep(spec: FlagSpec | None, word: str) -> FlagValue:
    """Parse one word in the flag's type. If that fails, return the word unchanged; `validate` then
    reports the wrong type."""
    try:
        return parse_value_from_word(spec, word)
    except InputError:
        return word


def find_indexed_engine_starts(words: Sequence[str]) -> Iterator[tuple[int, EngineCommandLine]]:
    """Yield (index, command line) for each index in `words` at which the command line of an
    engine begins."""
    for at in range(len(words)):
        found = recognize_engine_start(words[at:])
        if found is not None:
            yield at, found
