"""The command `completion`, and the completion of words in the shell: commands, options, and the
names of presets, runs, hosts, clusters, simulated hosts and engines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping

from workbench.cli.output import say
from workbench.cli.parser import argparse_tree
from workbench.cli.registry import FIRST_WORDS, command, option


def complete() -> None:
    """Print the possible completions of the command line in the environment variable COMP_LINE,
    which the shell sets, and exit."""
    import argcomplete

    typed = dict.fromkeys(
        word for word in os.environ.get("COMP_LINE", "").split() if word in FIRST_WORDS
    )
    parser = argparse_tree(
        typed, stubs=[word for word in [*FIRST_WORDS, "help"] if word not in typed]
    )
    two_words: list[str] = []
    for each in _all_parsers(parser):
        for action in each._actions:
            names = _NAMES.get(str(action.metavar)) or _NAMES.get(
                (action.option_strings or [""])[0]
            )
            if names:
                action.completer = _completer_of(names)  # type: ignore[attr-defined]
            if isinstance(action, argparse._SubParsersAction):
                two_words += [name for name in action.choices if " " in name]
    for each in _all_parsers(parser):
        for action in each._actions:
            if isinstance(action, argparse._SubParsersAction):
                _offer_second_words(action.choices)
    argcomplete.autocomplete(parser, exclude=two_words)


@command(
    "completion",
    "print the completion code for a shell",
    option("shell", "shell to complete for", choices=("bash", "zsh", "fish")),
    examples=('eval "$(workbench completion bash)"', "workbench completion fish > workbench.fish"),
)
def completion(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    say(shellcode(["workbench"], shell=arguments.shell).rstrip())
    return 0


def _offer_second_words(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Let the first argument of each command offer the second words of its subcommands too, such as
    `list` after `capacity`. `parsers` are the parsers of commands by their words."""
    for name, parser in parsers.items():
        more = [words.removeprefix(f"{name} ") for words in parsers if words.startswith(f"{name} ")]
        first = next((one for one in parser._actions if not one.option_strings), None)
        if more and first is not None and not first.choices:
            names = _NAMES.get(str(first.metavar), list)
            first.completer = _completer_of(_both(more, names))  # type: ignore[attr-defined]


def _both(words: Iterable[str], names: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
    return lambda: [*words, *names()]


def _completer_of(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    return lambda **_: list(names())


def _all_parsers(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _all_parsers(child)


def _preset_ids() -> list[str]:
    from workbench.store import paths

    folders = (paths.shipped_presets_dir(), paths.own_presets_dir())
    return sorted({file.stem for folder in folders for file in folder.glob("*.toml")})


def _run_ids() -> list[str]:
    from workbench.store import paths

    state = paths.state_dir()
    return sorted(
        (path.name for path in [*state.glob("runs/*"), *state.glob("sim/*/runs/*")]), reverse=True
    )


def _host_names() -> Iterable[str]:
    from workbench.session.hosts import names as host_names

    return (host.name for host in host_names.real_hosts())


def _cluster_names() -> Iterable[str]:
    from workbench.store.hosts_file import HostsStore

    return HostsStore().content.clusters


def _profile_names() -> list[str]:
    from workbench.sim.profiles import PROFILES

    return list(PROFILES)


def _engine_names() -> tuple[str, ...]:
    from workbench.engines import registry

    return registry.engine_names()


# By metavar or option: the function that lists the possible words.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "PRESET": _preset_ids,
    "PRESET|RUN": lambda: [*_preset_ids(), *_run_ids()],
    "RUN": _run_ids,
    "ENGINE": _engine_names,
    "--host": _host_names,
    "--cluster": _cluster_names,
    "--simulate": _profile_names,
    "--host-profile": _profile_names,
}
