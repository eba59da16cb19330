"""The versions of the Python packages that an engine uses. A small program, run by the engine's own
Python, prints them.

The program reads package metadata and the file torch/version.py. It imports none of the packages:
that would take seconds, and would touch the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from workbench.hosts.base import CommandTimeout, Host
from workbench.hosts.shell_scripts import shell_argv
from workbench.hosts.swept_command import run_and_end_leftovers
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_json

OUTPUT_MAX_BYTES = 65536
VERSION_CHARS = 100
TITLES = {  # packages of every engine, by their title
    "torch": "torch",
    "triton": "Triton",
    "flashinfer-python": "FlashInfer",
    "flashinfer-jit-cache": "FlashInfer's compiled kernels",
    "nvidia-nccl-cu12": "NCCL",
    "nvidia-nccl-cu13": "NCCL",
    "sgl-kernel": "sgl-kernel",
    "sglang-kernel": "sglang-kernel",
    "transformers": "transformers",
    "ray": "Ray",
}
# The current directory is taken from the path first: a file there must not stand in for a module.
# Runs with Python 3.8.
_PROGRAM = r"""
import sys
sys.path[:] = [place for place in sys.path if place]
import json, re
from importlib import metadata
found, needs, cuda = {}, {}, None
for name in sys.argv[1:]:
    try:
        package = metadata.distribution(name)
        found[name] = package.version
        for line in package.requires or ():
            pin = re.match(r"([\w.-]+)\s*\(?==\s*([\w.+!-]+)\)?\s*(;.*)?$", line)
            if pin and "extra" not in (pin[3] or ""):
                needs.setdefault(name, {}).setdefault(pin[1].lower().replace("_", "-"), []).append(pin[2])
    except Exception:
        continue
try:
    with open(str(metadata.distribution("torch").locate_file("torch/version.py"))) as file:
        text = file.read(10000)
    built = re.search(r"^cuda\b[^=]*=\s*(?:None|['\"]([\d.]+)['\"])", text, re.M)
    cuda = (built[1] or "none") if built else None
except Exception:
    pass
print(json.dumps({"python": sys.version.split()[0], "packages": found, "needs": needs, "cuda": cuda}))
"""


@dataclass(frozen=True, slots=True)
class EnginePackages:
    """The packages that an engine's Python has. `versions` has the version of each package.

    `needs` has the exact versions that a package requires of other packages, as {package: {required
    package: versions}}. Several versions mean one per platform. `cuda` is the CUDA version that
    torch was built for: "12.8", "none" for a build without CUDA, or None if unknown. If the
    packages could not be read, `problem` is the reason.
    """

    engine: str
    python: str | None = None
    python_version: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    cuda: str | None = None
    problem: str | None = None


async def ask_engine_python(
    host: Host, engine: str, python: str, packages: Sequence[str], timeout_s: float
) -> EnginePackages:
    """Ask `python`, the Python program of an engine, for the versions of `packages`, which belong
    to that engine, and of those in TITLES. If there is no valid answer within `timeout_s` seconds,
    the result has a `problem`."""
    words = [python, "-c", _PROGRAM, *packages, *TITLES]
    script = f'"$@" </dev/null 2>/dev/null | head -c {OUTPUT_MAX_BYTES}'
    try:
        done = await run_and_end_leftovers(host, shell_argv(script, *words), timeout_s=timeout_s)
    except CommandTimeout:
        return EnginePackages(
            engine, python, problem=f"{python} did not answer within {timeout_s:g} s"
        )
    except HostError as error:
        return EnginePackages(engine, python, problem=f"{python} cannot be asked: {error.message}")
    return parse_packages(engine, python, done.out)


def parse_packages(engine: str, python: str | None, answer: str) -> EnginePackages:
    """Return the packages in `answer`, the JSON that an engine's Python printed. If it is invalid,
    the result has a `problem`."""
    try:
        document = clean_json(answer)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return EnginePackages(engine, python, problem=f"{python} does not answer as a Python does")
    versions: dict[str, str] = {}
    for name, value in _dict_or_empty(document.get("packages")).items():
        version = _text_or_none(value)
        if version:
            versions[name] = version
    needs = _dict_or_empty(document.get("needs"))
    return EnginePackages(
        engine,
        python,
        _text_or_none(document.get("python")),
        versions,
        {
            name: {of: _nonempty_texts(pins) for of, pins in _dict_or_empty(value).items()}
            for name, value in needs.items()
        },
        _text_or_none(document.get("cuda")),
    )


def _text_or_none(value: Any) -> str | None:
    return value[:VERSION_CHARS] if isinstance(value, str) else None


def _nonempty_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(filter(None, map(_text_or_none, value)))


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
