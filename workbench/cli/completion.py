"""Shell completion: argcomplete completes from the argument tree; this adds the names that only this machine knows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from workbench.cli.dispatch import Command
from workbench.cli.open_session import say


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell with the completions of its command line, and exit."""
    import argcomplete

    two_words = []
    for tree in _trees(parser):
        for action in tree._actions:
            names = _NAMES.get(str(action.metavar)) or _NAMES.get((action.option_strings or [""])[0])
            if names:
                action.completer = _completer(names)  # type: ignore[attr-defined]
            if isinstance(action, argparse._SubParsersAction):
                two_words += [name for name in action.choices if " " in name]
    argcomplete.autocomplete(parser, exclude=two_words)


def completion(arguments: argparse.Namespace) -> int:
    """Print the completion code for a shell."""
    from argcomplete.shell_integration import shellcode

    say(shellcode(["workbench"], shell=arguments.shell).rstrip())
    return 0


def _completer(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    return lambda **_: list(names())


def _trees(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _trees(child)


def _presets() -> list[str]:
    from workbench.store import paths

    folders = (paths.shipped_presets_dir(), paths.own_presets_dir())
    return sorted({file.stem for folder in folders for file in folder.glob("*.toml")})


def _runs() -> list[str]:
    from workbench.store import paths

    state = paths.state_dir()
    return sorted((path.name for path in [*state.glob("runs/*"), *state.glob("sim/*/runs/*")]), reverse=True)


def _hosts() -> Iterable[str]:
    from workbench import hosts

    return hosts.known_names()


def _profiles() -> list[str]:
    from workbench.sim.profiles import PROFILES

    return list(PROFILES)


def _engines() -> tuple[str, ...]:
    from workbench.engines import registry

    return registry.names()


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "PRESET": _presets,
    "PRESET|RUN": lambda: ["resume", "show", "list", *_presets(), *_runs()],
    "RUN": _runs,
    "ENGINE": _engines,
    "--host": _hosts,
    "--simulate": _profiles,
    "--host-profile": _profiles,
}

COMMANDS: dict[str, Command] = {"completion": completion}
