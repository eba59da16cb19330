"""The command `completion`, and the completion of words in the shell: commands, options, and the
names of presets, runs, hosts, clusters, simulated hosts and engines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping

from workbench.cli.output import print_line
from workbench.cli.parser import build_parser
from workbench.cli.registry import FIRST_WORDS, command, option


def print_completions() -> None:
    """Print the possible completions of the command line in the environment variable COMP_LINE,
    which the shell sets, and exit."""
    import argcomplete

    typed = dict.fromkeys(
        word for word in os.environ.get("COMP_LINE", "").split() if word in FIRST_WORDS
    )
    parser = build_parser(
        typed,
        commands_without_arguments=[word for word in [*FIRST_WORDS, "help"] if word not in typed],
    )
    two_words: list[str] = []
    for each in _list_parsers(parser):
        for action in each._actions:
            for word in (*action.option_strings[:1], str(action.metavar)):
                if word in _NAMES:
                    action.completer = _make_completer(_NAMES[word])  # type: ignore[attr-defined]
            if isinstance(action, argparse._SubParsersAction):
                two_words += [name for name in action.choices if " " in name]
    for each in _list_parsers(parser):
        for action in each._actions:
            if isinstance(action, argparse._SubParsersAction):
                _set_group_completers(action.choices)
    argcomplete.autocomplete(parser, exclude=two_words)


@command(
    "completion",
    "print the completion code for a shell",
    option("shell", "shell to complete for", choices=("bash", "zsh", "fish")),
    examples=('eval "$(workbench completion bash)"', "workbench completion fish > workbench.fish"),
)
def print_completion_script(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print_line(shellcode(["workbench"], shell=arguments.shell).rstrip())
    return 0


def _set_group_completers(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Let the first argument of each command also offer the second words of its subcommands, such
    as `list` after `capacity`. `parsers` maps the words of each command to its parser."""
    for name, parser in parsers.items():
        more = [words.removeprefix(f"{name} ") for words in parsers if words.startswith(f"{name} ")]
        first = next((one for one in parser._actions if not one.option_strings), None)
        if more and first is not None and not first.choices:
            names = _NAMES.get(str(first.metavar), list)
            first.completer = _make_completer(_make_joined_word_lister(more, names))  # type: ignore[attr-defined]


def _make_joined_word_lister(
    words: Iterable[str], names: Callable[[], Iterable[str]]
) -> Callable[[], Iterable[str]]:
    return lambda: [*words, *names()]


def _make_completer(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    return lambda **_: list(names())


def _list_parsers(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _list_parsers(child)


def _list_preset_ids() -> list[str]:
    from workbench.store import paths

    folders = (paths.shipped_presets_dir(), paths.own_presets_dir())
    return sorted({file.stem for folder in folders for file in folder.glob("*.toml")})


def _list_run_ids() -> list[str]:
    from workbench.store import paths

    state = paths.state_dir()
    return sorted(
        (path.name for path in [*state.glob("runs/*"), *state.glob("sim/*/runs/*")]), reverse=True
    )


def _list_host_names() -> Iterable[str]:
    from workbench.session.hosts import names as host_names

    return (host.name for host in host_names.known_non_simulated_hosts())


def _list_cluster_names() -> Iterable[str]:
    from workbench.store.hosts_file import HostsStore

    return HostsStore().content.clusters


def _list_profile_names() -> list[str]:
    from workbench.sim.profiles import PROFILES

    return list(PROFILES)


def _list_engine_names() -> tuple[str, ...]:
    from workbench.engines import registry

    return registry.engine_names()


# By metavar or option: the function that lists the possible words.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "PRESET": _list_preset_ids,
    "PRESET|RUN": lambda: [*_list_preset_ids(), *_list_run_ids()],
    "RUN": _list_run_ids,
    "ENGINE": _list_engine_names,
    "--host": _list_host_names,
    "--cluster": _list_cluster_names,
    "--simulate": _list_profile_names,
    "--host-profile": _list_profile_names,
}
