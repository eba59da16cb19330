"""The options of `experiment` that describe its two sides, such as --a and --b, and the sides
(arms) made from them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.cli.registry import Option, option, repeatable_option
from workbench.model.errors import InputError
from workbench.model.settings import GpuSettings, parse_setting_argument

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, ArmTarget


def _make_arm_options(arm: str) -> Iterator[Option]:
    name = arm.upper()
    yield repeatable_option(
        f'--{arm} "[TARGET] flag=value …"',
        f"launch flags of {name}, after its target if it has its own",
    )
    yield option(f"--host-{arm} NAME", f"host of {name}, if it is not --host")
    yield option(f"--executable-{arm} PATH", f"program that starts the engine of {name}")
    yield repeatable_option(f"--unset-{arm} flag", f"launch flag to remove in {name}; repeatable")
    yield repeatable_option(
        f'--env-{arm} "K=V …"', f"environment variables of the server in {name}"
    )
    yield repeatable_option(
        f'--gpu-{arm} "setting=value …"',
        f"GPU settings of {name}, named as in `gpu set`: power-limit=400 gpu-clocks=210-2400",
    )


ARM_OPTIONS = (*_make_arm_options("a"), *_make_arm_options("b"))


def read_arm_options(arguments: argparse.Namespace, name: str) -> Arm:
    """Return the side of an experiment that the options describe. `name` is "a" or "b". It has no
    target if PRESET|RUN is given and no side has a host or a program of its own. Raises InputError
    if the options are invalid."""
    from workbench.model.experiment import Arm

    def split_option_words(option: str) -> tuple[str, ...]:
        try:
            return tuple(word for text in getattr(arguments, option) for word in shlex.split(text))
        except ValueError as error:
            raise InputError(
                f"--{option.replace('_', '-')}: {error}",
                next_step="quote the value of the option as in a shell",
            ) from None

    sets, target = split_option_words(name), None
    own_servers = (
        arguments.host_a,
        arguments.host_b,
        arguments.executable_a,
        arguments.executable_b,
    )
    if arguments.base is None or any(own_servers):
        target = _choose_target_of_side(arguments, sets, name)
        sets = (*arguments.sets, *(sets[1:] if arguments.base is None else sets))
    unsets, envs = split_option_words(f"unset_{name}"), split_option_words(f"env_{name}")
    if target is not None:
        unsets, envs = (*arguments.unsets, *unsets), (*arguments.envs, *envs)
    return Arm(
        sets, unsets, envs, parse_gpu_settings(split_option_words(f"gpu_{name}"), name), target
    )


def is_flag_assignment(word: str) -> bool:
    """Return whether a word is of the form flag=value, and not a URL, which may contain "=" too."""
    return "=" in word and "://" not in word


def _choose_target_of_side(
    arguments: argparse.Namespace, words: Sequence[str], name: str
) -> ArmTarget:
    """Return what the side `name` ("a" or "b") of an experiment is measured on: a preset, a run or
    a URL. This is the PRESET|RUN argument of the command if there is one, otherwise the first of
    the side's `words`. Raises InputError if there is neither."""
    from workbench.model.experiment import ArmTarget

    host = getattr(arguments, f"host_{name}")
    executable = getattr(arguments, f"executable_{name}") or arguments.executable
    if arguments.base is not None:
        return ArmTarget(arguments.base, host, executable)
    if not words or is_flag_assignment(words[0]):
        raise InputError(
            f"--{name} does not begin with a target (a preset, run or URL), and PRESET|RUN is "
            "missing",
            next_step="change one configuration, as in `workbench experiment vllm-any --b "
            '"max-num-seqs=64"`, '
            "or name two targets, as in `workbench experiment --a http://… --b http://…`",
        )
    return ArmTarget(words[0], host, executable)


def parse_gpu_settings(words: Sequence[str], arm: str) -> GpuSettings:
    """Return the GPU settings in words such as "power-limit=400" and "gpu-clocks=210-2400". `arm`
    is "a" or "b", for the error messages. Raises InputError for an invalid word.
    """
    found = GpuSettings()
    for word in words:
        try:
            found = GpuSettings({**found, **parse_setting_argument(word)})
        except InputError as error:
            raise InputError(
                f"--gpu-{arm} {word!r}: {error.message}", next_step=error.next_step
            ) from None
    return found
