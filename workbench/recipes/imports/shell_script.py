"""Finds the server's command and its environment in a command line or a shell script. Nothing is
run.

The effects of assignments, `export` and `cd` are computed, and variables with known values are
replaced. Every other command is only added to the notes.
"""

from __future__ import annotations

import operator
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase

from workbench.engines.base import is_python_interpreter
from workbench.engines.command_line import (
    EngineCommandLine,
    find_indexed_engine_starts,
    recognize_engine_start,
)
from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.recipes.imports import containers, tabby_config
from workbench.recipes.imports.server_command import (
    ServerCommand,
    no_server_finding,
    plan_of_command,
)
from workbench.recipes.recipe import COMPUTED, Given, Notes, Recipe, shorten_value
from workbench.recipes.shell_text import (
    CASE_ENDS,
    Code,
    SimpleCommand,
    Variable,
    Word,
    split_simple_commands,
)

FORM_TITLE = "command line"
_DEEPEST = 3  # scripts within scripts
_WORDS_OF_CASE = 3  # case WORD in
_MOST_CHARS = 1024 * 1024  # of all words of a script with its variables filled in


_KEYWORDS = containers.split_word_set(
    "if then elif else do while until ! { time exec command nohup"
)
_NO_EFFECT = containers.split_word_set(
    "set shopt umask true : fi done esac } ) shift return echo printf exit sleep break continue "
    "trap wait [ [[ test"
)
# Programs that start another program, whose words follow their own.
_WRAPPERS = containers.split_word_set(
    "env sudo numactl taskset nice ionice chrt setsid stdbuf timeout uv uvx poetry conda mamba "
    "pixi srun mpirun "
    "systemd-run screen tmux unbuffer nsys"
)
# Programs that may name a server's program, but never start it.
_NOT_STARTING = containers.split_word_set(
    "pkill pgrep killall kill pidof systemctl journalctl service mkdir cp mv ln rm touch install "
    "chown chmod tee cat tail head grep sed awk find ls which whereis type curl wget apt apt-get "
    "dnf yum pip pip3 docker-compose git cmake make tar rsync scp"
)
_OF_SYSTEMD_RUN = ("-p", "--property")  # take NAME=VALUE, which is no environment variable
_LOGGED = "Workbench keeps the server's output in the log of its run"
_SCRIPT_DIRECTORY = re.compile(r"dirname.*(?:BASH_SOURCE|\$0|\$\{0)", re.DOTALL)
_ACTIVATE = "/bin/activate"
_CONDA_SETUP = "/etc/profile.d/conda.sh"  # below the directory of a conda installation
_CONDAS = ("conda", "mamba", "micromamba")
# Programs that choose an environment whose programs are not those on PATH.
_OF_ENVIRONMENT = (*_CONDAS, "uv", "uvx", "poetry", "pixi")
_VARIABLE_NAME = re.compile(r"\$\{\w+\}")  # a directory that the shell script's surroundings choose
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[\w*\])?(\+?)=(.*)", re.DOTALL)


@dataclass(slots=True)
class _Block:
    """An `if` that is not closed yet. `skipped` says that the shell does not run the branch which
    is being read, and `taken` that it runs this branch or one before it. `deciding` is true up to
    the word `then`."""

    skipped: bool
    taken: bool
    deciding: bool = True
    outcome: bool | None = None  # of the condition that is being read
    condition: str = ""


@dataclass(slots=True)
class _Case:
    """A `case` that is not closed yet. `text` is the text that its patterns are compared with, None
    if the script's own values do not give it. `patterns` are those before the next branch, and
    `skipped` says that the shell does not run the branch which is being read."""

    text: str | None
    source: str
    patterns: list[str] = field(default_factory=list)
    in_patterns: bool = True
    matched: bool = False
    skipped: bool = False


@dataclass(slots=True)
class _State:
    """The state of a shell script after the commands processed so far. `variables` are the shell's
    variables, `env` is the environment of the programs that it starts, and `found` has the server
    commands."""

    notes: Notes
    variables: dict[str, str]
    env: dict[str, str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    programs: str | None = None  # directory of the programs of an activated virtual environment
    conda: str | None = None  # directory of the conda installation that the script has set up
    open_files: int | None = None
    positional: Sequence[str] = ()
    depth: int = 0
    workdir: str | None = None
    chars: int = 0  # of the words with variables so far
    found: list[ServerCommand] = field(default_factory=list)
    blocks: list[_Block | _Case] = field(default_factory=list)
    sourced: bool = False  # a file that may set any variable
    written: list[Word] = field(default_factory=list)  # here-documents

    @property
    def innermost_block(self) -> _Block | _Case | None:
        """The innermost block that is not closed yet."""
        return next(reversed(self.blocks), None)


def read(text: str, notes: Notes, given: Given) -> Recipe:
    """Return the recipe of a command line or a shell script; without a plan if it starts no server.
    Parts that are not understood are added to `notes`. The entries of a script are the numbers of
    its server commands, from "1". Raises InputError if there is no entry `given.entry`, or if the
    text cannot be split into words."""
    commands = find_server_commands(text, notes)
    if not commands:
        notes.findings.insert(0, no_server_finding(FORM_TITLE))
        return Recipe(None, FORM_TITLE)
    given.require_entry_among(
        FORM_TITLE, "server command", [str(at + 1) for at in range(len(commands))]
    )
    if given.entry is not None:
        commands = [commands[int(given.entry) - 1]]
    recipe = recipe_of_commands(commands, notes, FORM_TITLE)
    if recipe.plan is None or recipe.plan.engine != tabby_config.ENGINE:
        return recipe
    return replace(recipe, plan=tabby_config.add_settings_of_config_file(recipe.plan, notes, given))


def here_documents(text: str) -> list[str]:
    """Return the texts of the here-documents in a shell script, with its variables replaced by
    their values. Raises InputError if the script cannot be split into words."""
    state = _interpret_script(text, Notes())
    return [_word_text(document, state) for document in state.written]


def recipe_of_commands(commands: Sequence[ServerCommand], notes: Notes, form: str) -> Recipe:
    """Return the recipe of the first of `commands`. The other commands are added to `notes`,
    because a preset starts one server. `form` is the format of the recipe."""
    for other in commands[1:]:
        words = shlex.join((*other.start.executable, *other.start.arguments))
        about = f"a preset starts one server: {other.start.engine.title} {shorten_value(words)}"
        notes.add_left_out_note("another server command", about)
    return Recipe(plan_of_command(commands[0], notes), form, gpus=commands[0].gpus)


def recipe_of_first_server(
    containers_by_name: Mapping[str, Callable[[Notes], containers.Container]],
    notes: Notes,
    given: Given,
    form: str,
    kind: str,
) -> Recipe:
    """Return the recipe of the container `given.entry`, or by default of the first one that starts
    a server; without a plan if none does. `containers_by_name` has a function for each container
    that reads it and adds its notes. `form` is the format of the recipe, and `kind` is what the
    format calls a container. Raises InputError if there is no container `given.entry`."""
    given.require_entry_among(form, kind, containers_by_name)
    found: dict[str, list[ServerCommand]] = {}
    noted: dict[str, Notes] = {}
    for name, read_container in containers_by_name.items():
        if given.entry in (None, name):
            own = noted[name] = Notes()
            if commands := containers.server_commands_of_container(
                read_container(own), own, find_server_commands
            ):
                found[name] = commands
    if not found:
        for own in noted.values():
            notes.findings += own.findings
        named = [f"the {kind}s {', '.join(containers_by_name)}"] if containers_by_name else []
        notes.findings.insert(0, no_server_finding(form, named))
        return Recipe(None, form)
    first = next(iter(found))
    notes.findings += noted[first].findings
    notes.variables |= noted[first].variables
    if given.entry is None:
        for other in containers_by_name:
            why = f"--entry {other} reads it" if other in found else "it starts no server"
            if other != first:
                notes.add_left_out_note(f"the {kind} {other}", why)
    recipe = recipe_of_commands(found[first], notes, form)
    return Recipe(recipe.plan, form, name=first, title=first, gpus=recipe.gpus)


_NO_VARIABLES: Mapping[str, str] = {}


def find_server_commands(
    text: str,
    notes: Notes,
    variables: Mapping[str, str] = _NO_VARIABLES,
    env: Mapping[str, str] = _NO_VARIABLES,
    positional: Sequence[str] = (),
    depth: int = 0,
) -> list[ServerCommand]:
    """Return the server commands in a shell script, which is not run; [] if it starts no server.
    `variables`, `env` and `positional` are the shell's variables, its environment and the script's
    arguments, and `depth` is the number of scripts around this one: a script that is too deep is
    not read. Raises InputError if the text cannot be split into words."""
    if depth > _DEEPEST:
        notes.add_not_run_warning("a script within scripts", text)
        return []
    return _interpret_script(text, notes, variables, env, positional, depth).found


def _interpret_script(
    text: str,
    notes: Notes,
    variables: Mapping[str, str] = _NO_VARIABLES,
    env: Mapping[str, str] = _NO_VARIABLES,
    positional: Sequence[str] = (),
    depth: int = 0,
) -> _State:
    """Return the state of a shell script at its end. The parameters are those of
    `find_server_commands`. Raises InputError if the text cannot be split into words."""
    state = _State(notes, {**variables, **env}, dict(env), positional=positional, depth=depth)
    try:
        for command in split_simple_commands(text):
            _interpret_command(command, state)
    except RecursionError:
        raise InputError("the script's quotes or variables are nested too deeply") from None
    return state


def _interpret_command(command: SimpleCommand, state: _State) -> None:
    if not _update_blocks_and_check_executed(command, state):
        return
    for name, appended, elements in command.arrays:
        before = state.arrays.get(name, []) if appended else []
        state.arrays[name] = [*before, *_expand_words(elements, state)]
    words = _expand_words(command.words, state)
    own: dict[str, str] = {}
    while words:
        assignment = _ASSIGNMENT.fullmatch(words[0])
        if assignment is not None:
            _add_assignment(assignment, own, state)
        elif words[0] in ("if", "elif", "while", "until"):
            _interpret_condition(words, command, state)
            return
        elif words[0] not in _KEYWORDS:
            break
        words.pop(0)
    state.written += command.documents
    if not words:
        for redirect in command.redirects:
            state.notes.add_not_run_warning("a redirection", redirect)
        state.variables |= own
        state.env |= {name: value for name, value in own.items() if name in state.env}
    elif _apply_if_python_environment_switch(words, state):
        pass
    elif words[0] == "tee":
        state.notes.add_left_out_note(f"`{shlex.join(words)}`", _LOGGED)
    elif words[0] == "ulimit":
        _apply_open_file_limit(words, state)
    elif words[0] in ("export", "declare", "typeset", "readonly", "local"):
        _export_variables(words, state)
    elif words[0] == "cd" and len(words) <= 3:
        is_unknown = len(words) == 1 or _VARIABLE_NAME.fullmatch(words[-1])
        state.workdir = None if is_unknown else words[-1]
    elif words[0] not in _NO_EFFECT:
        state.sourced |= words[0] in ("source", ".")
        _interpret_program_call(words, own, command, state)


def _update_blocks_and_check_executed(command: SimpleCommand, state: _State) -> bool:
    """Update the blocks of `state` with a command, and return whether the shell runs it. False for
    a keyword of a `case`, and for a command in a branch that the shell does not run with the
    script's own values."""
    first = next(iter(command.words), ())
    block = state.innermost_block
    if isinstance(block, _Case):
        if first == ("esac",):
            state.blocks.pop()
            return False
        if block.in_patterns:
            _read_case_pattern(command, block, state)
            return False
        block.in_patterns = command.end in CASE_ENDS
    elif block is not None:
        if first in (("then",), ("else",), ("fi",)):
            _process_branch_keyword(str(first[0]), block, state)
        elif block.deciding:
            block.outcome = None  # a second command decides as well: if A && B
    if not any(each.skipped for each in state.blocks):
        return not _open_case_block(command, state)
    if first == ("case",):
        state.blocks.append(_Case("", "", matched=True, skipped=True))
        return False
    if _opens_block(command):
        state.blocks.append(_Block(skipped=True, taken=True, deciding=False))
        return False
    return first == ("elif",) and not any(each.skipped for each in state.blocks[:-1])


def _open_case_block(command: SimpleCommand, state: _State) -> bool:
    """Open a block for the command `case WORD in`, which may contain the first pattern, and return
    True. For any other command, change nothing and return False."""
    words = [word for word in command.words if word not in (("then",), ("else",), ("do",))]
    if len(words) < _WORDS_OF_CASE or (words[0], words[2]) != (("case",), ("in",)):
        return False
    text: str | None = _word_text(words[1], state)
    if _has_unknown_value(str(text)) or _may_be_set_in_sourced_file(words[1], state):
        text = None
        state.notes.add_not_run_warning("a condition", command.source)
    begun = _Case(text, command.source)
    state.blocks.append(begun)
    if words[_WORDS_OF_CASE:]:
        _read_case_pattern(replace(command, words=words[_WORDS_OF_CASE:]), begun, state)
    return True


def _read_case_pattern(command: SimpleCommand, case: _Case, state: _State) -> None:
    """Add the pattern that `command` contains to those of `case`. If it ends with a bracket, the
    branch of these patterns begins."""
    if not command.words:
        return
    case.patterns.append("".join(_word_text(word, state) for word in command.words))
    if command.end != ")":
        return
    if case.text is not None:
        holds = any(fnmatchcase(case.text, pattern) for pattern in case.patterns)
        case.skipped = case.matched or not holds
        case.matched |= holds
    case.patterns, case.in_patterns = [], False


def _opens_block(command: SimpleCommand) -> bool:
    """Return whether a command begins with `if`, after other words of the shell such as `then`."""
    for word in command.words:
        if word == ("if",):
            return True
        if len(word) != 1 or word[0] not in _KEYWORDS:
            return False
    return False


def _process_branch_keyword(word: str, block: _Block, state: _State) -> None:
    match word:
        case "then":
            _start_branch(block, state)
        case "else":
            block.skipped = block.taken
        case _:
            state.blocks.pop()


def _interpret_condition(words: Sequence[str], command: SimpleCommand, state: _State) -> None:
    """Process the command after `if`, `elif`, `while` or `until`, of which `words` are the texts.
    If the script's own values decide it, the branches that the shell does not run are skipped."""
    if words[0] in ("while", "until"):
        state.notes.add_not_run_warning("a condition", command.source)
        return
    if words[0] == "if":
        state.blocks.append(_Block(skipped=False, taken=False))
    block = state.innermost_block
    if isinstance(block, _Block):
        block.skipped, block.deciding, block.condition = False, True, command.source
        block.outcome = _outcome_of_condition(words[1:], command, state)


def _start_branch(block: _Block, state: _State) -> None:
    """Begin the branch whose condition is complete."""
    if not block.deciding:
        return
    block.deciding = False
    block.skipped = block.taken or block.outcome is False
    block.taken |= block.outcome is True
    if block.outcome is None:
        state.notes.add_not_run_warning("a condition", block.condition)
    elif block.skipped:
        why = "with the script's own values, its condition does not hold"
        state.notes.add_left_out_note(f"the branch `{shorten_value(block.condition)}`", why)


def _outcome_of_condition(
    words: Sequence[str], command: SimpleCommand, state: _State
) -> bool | None:
    """Return whether the condition `words`, such as `[ "$MODE" = fast ]`, of `command` holds. None
    if the script's own values do not decide it."""
    if len(words) < 2 or words[0] not in ("[", "[[", "test"):
        return None
    if any(_may_be_set_in_sourced_file(word, state) for word in command.words):
        return None
    terms = list(words[1:-1] if words[0] != "test" else words[1:])
    if any(map(_has_unknown_value, terms)):
        return None
    negated = terms[:1] == ["!"]
    match terms[1:] if negated else terms:
        case ["-z", text]:
            held = not text
        case ["-n", text]:
            held = bool(text)
        case [left, "=" | "==", right] if not set(right) & set("*?["):
            held = left == right
        case [left, "!=", right] if not set(right) & set("*?["):
            held = left != right
        case [left, comparison, right] if comparison in _COMPARISONS:
            first, second = parse_whole_number(left), parse_whole_number(right)
            if first is None or second is None:
                return None
            held = _COMPARISONS[comparison](first, second)
        case _:
            return None
    return held is not negated


def _has_unknown_value(text: str) -> bool:
    """Return whether `text` has a part that the script's own values do not give."""
    return COMPUTED in text or "${" in text


def _may_be_set_in_sourced_file(word: Word, state: _State) -> bool:
    """Return whether the word has a variable without a value that a file which the script has
    sourced may set."""
    if not state.sourced:
        return False
    return any(isinstance(part, Variable) and part.name not in state.variables for part in word)


def _add_assignment(
    assignment: re.Match[str], own_variables: dict[str, str], state: _State
) -> None:
    """Add `assignment`, a match of _ASSIGNMENT, to `own_variables`, the variables that its command
    sets. If only a shell could compute the value, and the variable had a known one before, nothing
    is added."""
    name, appended, value = assignment.groups()
    value = _expand_tilde(value, state)
    earlier = own_variables.get(name, state.variables.get(name))
    if appended:
        value = f"{earlier or ''}{value}"
    is_better_known = earlier is not None and COMPUTED not in earlier
    if COMPUTED in value and is_better_known:
        return
    own_variables[name] = value


def _resolve_from_workdir(path: str, state: _State) -> str:
    """Return `path` from the directory in which the script stands at that point. That of its start
    becomes a variable of the preset as soon as a relative path needs it. An absolute path, one that
    begins with a variable and one that a command computes are returned unchanged."""
    if path.startswith(("/", "${")) or COMPUTED in path:
        return path
    start = state.workdir or state.notes.add_variable_and_get_reference(
        "start_dir", FORM_TITLE, "directory in which the script is started"
    )
    return posixpath.join(start, path)


def _apply_if_python_environment_switch(words: Sequence[str], state: _State) -> bool:
    """Update `state` with a command that enters or leaves an environment of Python programs, or
    sets conda up for that, and return True. Return False for any other command, and for one that
    enters an environment of which only conda knows where it is."""
    command, name = (*words, "")[:2]
    match ("conda" if command in _CONDAS else command, name):
        case "source" | ".", _ if name.endswith(_ACTIVATE):
            state.programs = _program_directory_after_activate(words, state)
        case "source" | ".", _ if name.endswith(_CONDA_SETUP):
            state.conda = _resolve_from_workdir(name.removesuffix(_CONDA_SETUP), state)
        case ("deactivate", _) | ("conda", "deactivate"):
            state.programs = None
        case "conda", "activate":
            programs = _conda_program_directory(words[2:], state)
            state.programs = programs or state.programs
            return programs is not None
        case _:
            return False
    return True


def _program_directory_after_activate(words: Sequence[str], state: _State) -> str:
    """Return the directory of the programs of the environment that the command `source
    …/bin/activate [NAME]` enters. With a name, it is an environment of that conda installation."""
    programs = _resolve_from_workdir(words[1].removesuffix("/activate"), state)
    if len(words) < 3:
        return programs
    state.conda = posixpath.dirname(programs)
    return _conda_program_directory(words[2:], state) or programs


def _conda_program_directory(names: Sequence[str], state: _State) -> str | None:
    """Return the directory of the programs of the conda environment that a script activates. The
    first of `names` is its name or path; without one, it is "base". None if only conda knows where
    it is."""
    name = names[0] if names else "base"
    if "/" in name:
        return posixpath.join(_resolve_from_workdir(name, state), "bin")
    if state.conda is None:
        return None
    return posixpath.join(state.conda, "bin" if name == "base" else f"envs/{name}/bin")


def _apply_open_file_limit(words: Sequence[str], state: _State) -> None:
    """Set the limit of open files of `state` if `words` are a `ulimit` command that sets its soft
    limit."""
    letters = "".join(word[1:] for word in words[1:] if word.startswith("-"))
    number = parse_whole_number(words[-1])
    if "n" in letters and "H" not in letters and number is not None:
        state.open_files = number


def _export_variables(words: Sequence[str], state: _State) -> None:
    exported = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in words)
    names = []
    for word in words[1:]:
        if assignment := _ASSIGNMENT.fullmatch(word):
            _add_assignment(assignment, state.variables, state)
            word = assignment[1]
        names.append(word)
    if exported:
        state.env |= {name: state.variables[name] for name in names if name in state.variables}


def _interpret_program_call(
    words: list[str], own_variables: Mapping[str, str], command: SimpleCommand, state: _State
) -> None:
    """Process a command that starts a program. `words` are the program and its arguments, and
    `own_variables` are the variables that are assigned in front of it. If it starts a server, add
    the server's command to `state.found`, otherwise add a note that the command is not run."""
    env, name = {**state.env, **own_variables}, words[0].rpartition("/")[2]
    script = containers.shell_script_and_arguments(words)
    if name in containers.PROGRAMS:
        found = _commands_of_container([word for word in words if word != COMPUTED], state)
    elif script is not None:
        found = find_server_commands(
            script[0], state.notes, state.variables, env, script[1], state.depth + 1
        )
    elif start := recognize_engine_start(words):
        found = [_server_command_in_state(start, env, state)]
    elif name in _WRAPPERS:
        found = _commands_behind_wrapper(words, env, state)
    else:
        found = []
    if not found:
        state.notes.add_not_run_warning("a shell command", command.source)
    elif command.redirects:
        what = f"the redirection {' '.join(command.redirects)}"
        state.notes.add_left_out_note(what, _LOGGED)
    state.found += found


def _server_command_in_state(
    start: EngineCommandLine, env: dict[str, str], state: _State
) -> ServerCommand:
    """Return the server command that `start` is in this state of the script. In an activated
    virtual environment, a Python program without a path is that of the environment."""
    program = start.program
    of_python = bool(start.engine.packages) or is_python_interpreter(program[:1])
    is_found_on_path = of_python and "/" not in program[0]
    if state.programs is not None and is_found_on_path:
        words = program[:-1] if program[-1] == "serve" else program
        executable = (posixpath.join(state.programs, words[0]), *words[1:])
        start = replace(start, executable=executable)
    return ServerCommand(start, env, state.workdir, state.open_files)


def _commands_behind_wrapper(
    words: list[str], env: dict[str, str], state: _State
) -> list[ServerCommand]:
    """Return the server command that a program such as `env`, `sudo` or `numactl` starts; [] if it
    starts no server."""
    for at, start in find_indexed_engine_starts(words):
        before = words[:at]
        if any(word.rpartition("/")[2] in _NOT_STARTING for word in before):
            return []
        rest = []
        for option, word in zip(("", *before), before, strict=False):
            assignment = _ASSIGNMENT.fullmatch(word)
            if assignment is None:
                if word != "env":
                    rest.append(word)
            elif option not in _OF_SYSTEMD_RUN:
                env[assignment[1]] = assignment[3]
        if rest:
            _add_ignored_words_note(rest, start, state)
        return [_server_command_in_state(start, env, state)]
    for at in range(1, len(words)):
        if words[at].rpartition("/")[2] in containers.PROGRAMS:
            return _commands_of_container(words[at:], state)
    return []


def _commands_of_container(words: Sequence[str], state: _State) -> list[ServerCommand]:
    container = containers.parse_run_command(words, state.notes)
    if container is None:
        return []
    return containers.server_commands_of_container(
        container, state.notes, find_server_commands, state.depth
    )


def _add_ignored_words_note(words: Sequence[str], start: EngineCommandLine, state: _State) -> None:
    """Add a note that `words`, which stand in front of a server's command, are left out: a warning
    if they choose an environment, whose program is another than that on PATH."""
    shown = f"`{shlex.join(words)}`"
    of_environment = words[0].rpartition("/")[2] in _OF_ENVIRONMENT
    program = start.program[0]
    if of_environment and "/" not in program and state.programs is None:
        text = f"{shown} is left out: it starts the {program} of its environment, not that on PATH"
        fix = f"name the program of that environment with --executable PATH/bin/{program}"
        state.notes.add(Level.WARN, "environment", text, fix=fix)
        return
    state.notes.add_left_out_note(shown, "a preset starts the engine itself")


def _expand_words(words: Sequence[Word], state: _State) -> list[str]:
    return [text for word in words for text in _expand_word(word, state)]


def _expand_word(word: Word, state: _State) -> list[str]:
    """Return the texts to which a word expands: all arguments of the script for "$@", all elements
    of an array, any number of texts for a variable without quotes, otherwise one text."""
    parts = tuple(part for part in word if part != "")
    only = parts[0] if len(parts) == 1 else None
    if not isinstance(only, Variable):
        text = _word_text(word, state)
        return [_expand_tilde(text, state)]
    if only.name == "@":
        return list(state.positional)
    if only.every:
        return _array_elements(only, state)
    text = _word_text(word, state)
    unquoted = word == (only,) and only.name in state.variables
    return text.split() if unquoted and COMPUTED not in text else [text]


def _expand_tilde(text: str, state: _State) -> str:
    """Return `text` with "~" in "~/" at its beginning replaced by a reference to a variable of the
    preset for the home directory."""
    if not text.startswith("~/"):
        return text
    return f"{state.notes.add_variable_and_get_reference('home', FORM_TITLE)}{text[1:]}"


def _array_elements(array: Variable, state: _State) -> list[str]:
    """Return the elements of an array. If the script does not set it, add a note and return []."""
    if array.name in state.arrays:
        return state.arrays[array.name]
    text = f"the elements of the array {array.name} are left out: the script does not set them"
    state.notes.add(Level.WARN, "computed", text)
    return []


def _word_text(word: Word, state: _State) -> str:
    """Return the text of a word with its variables replaced. Raises InputError if the texts of all
    words exceed _MOST_CHARS."""
    if len(word) == 1 and isinstance(word[0], str):
        return word[0]
    parts = []
    for part in word:
        parts.append(_part_as_text(part, state))
        state.chars += len(parts[-1])
        if state.chars > _MOST_CHARS:
            raise InputError(
                "the values of the script's variables grow beyond 1 MiB, the limit for a script"
            )
    return "".join(parts)


def _expand_alternate_value(part: Variable, state: _State) -> str:
    """Return the text of `${name:+word}`: the word if the variable has a value. If the variable is
    unknown, only a shell could compute it."""
    value = state.variables.get(part.name)
    if value is None or COMPUTED in value:
        return _computed_placeholder_with_note(part.source, state)
    return _word_text(part.alternative or ("",), state) if value else ""


def _computed_placeholder_with_note(source: str, state: _State) -> str:
    """Add a warning that only a shell could compute `source`, and return COMPUTED, which stands for
    its text."""
    state.notes.add(Level.WARN, "computed", f"only a shell could compute {source}")
    return COMPUTED


def _code_as_text(code: Code, state: _State) -> str:
    """Return the text that stands for `code`: a reference to a variable of the preset if `code`
    finds the directory of the script, otherwise COMPUTED. In the second case, add a warning."""
    if not _SCRIPT_DIRECTORY.search(code.source):
        return _computed_placeholder_with_note(code.source, state)
    name, about = "script_dir", "directory of the script"
    if "/.." in code.source:
        name, about = "project_dir", "directory above that of the script"
    return state.notes.add_variable_and_get_reference(name, FORM_TITLE, about)


def _part_as_text(part: str | Variable | Code, state: _State) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Code):
        return _code_as_text(part, state)
    if part.name == "@":
        return _computed_placeholder_with_note("$@", state)
    if part.alternative is not None:
        return _expand_alternate_value(part, state)
    known = state.variables.get(part.name)
    if known is not None and (known or part.default is None or not part.if_empty):
        return known
    if part.default is not None:
        text = _word_text(part.default, state)
        if part.assigns:
            state.variables[part.name] = text
        return text
    return state.notes.add_variable_and_get_reference(part.name, FORM_TITLE)
