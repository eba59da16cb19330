"""A fingerprint of the model files that a server was started with: a digest of the names, the
sizes, and the first and last 64 KiB of all files. Computing the fingerprint takes about a second,
because most bytes are not read.

The fingerprint changes if a repository was updated, another quantization is used, or a file was
truncated. It does not change if only the middle of a file changed.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_values_by_key
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.untrusted_numbers import parse_decimal, parse_whole_number, range_of_field
from workbench.server.hub_cache import hub_cache_and_home_values, hub_cache_script

_TIMEOUT_S = 20.0
_BYTES_PER_GB = 1e9
LOCATE_MODEL_SCRIPT = hub_cache_script(4) + read_script(__file__, "locate_model.sh")
_LIST_FILES_SCRIPT = LOCATE_MODEL_SCRIPT + read_script(__file__, "list_files.sh")


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """The fingerprint of model files. `basis` describes the files from which `digest` was made. If
    there is no fingerprint, `digest` is None and `basis` is the reason."""

    digest: str | None
    basis: str


async def read_model_fingerprint(
    host: Host,
    plan: LaunchPlan,
    env: Mapping[str, str],
    workdir: str | None = None,
    *,
    started_unix_s: float | None = None,
) -> ModelFingerprint:
    """Return the fingerprint of the plan's model. `env` and `workdir` are those of the server,
    which was started at `started_unix_s`, None if that is not known. Takes one round trip. Never
    raises: `digest` is None if the files cannot be read, or if one was changed after the start."""
    argv = arguments_to_locate_model(plan, env, workdir)
    try:
        done = await host.run(["sh", "-c", _LIST_FILES_SCRIPT, "sh", *argv], timeout_s=_TIMEOUT_S)
    except (HostError, TimeoutError) as error:
        return ModelFingerprint(None, f"the model's files could not be read: {error}")
    found = parse_values_by_key(done.out.splitlines())
    files = list(filter(None, map(_parse_file, found["file"])))
    if done.returncode or not files or len(files) < len(found["file"]):
        problem = f"no model files of {argv[0]} were found on {host.name}"
        if found["looked"]:
            problem += f"; searched {found['looked'][0]}"
        return ModelFingerprint(None, problem)
    commit = next(iter(found["commit"]), None)
    return _compute_fingerprint(files, commit, started_unix_s)


def arguments_to_locate_model(
    plan: LaunchPlan, env: Mapping[str, str], workdir: str | None
) -> list[str]:
    """Return the arguments of LOCATE_MODEL_SCRIPT, which finds the files of the plan's model. `env`
    and `workdir` are those of the server."""
    model, revision, directory = plan.model, plan.flag("revision"), plan.flag("model-dir")
    if isinstance(directory, str) and not model.startswith(("/", "~")):
        model = posixpath.join(directory, model)
    known = revision if isinstance(revision, str) else ""
    return [model, workdir or "", known, *hub_cache_and_home_values(env)]


class _File(NamedTuple):
    """A file of a model. `digest` is that of its first and last 64 KiB."""

    size_bytes: int
    changed_unix_s: float
    digest: str
    name: str


def _parse_file(text: str) -> _File | None:
    """Return the file in a line of the script; None for another form."""
    words = text.split(" ", 3)
    size = parse_whole_number(words[0])
    if size is None or len(words) < 4:
        return None
    changed_unix_s = parse_decimal(words[1], *range_of_field("unix_s")) or 0.0
    return _File(size, changed_unix_s, words[2], words[3])


def _compute_fingerprint(
    files: Sequence[_File], commit: str | None, started_unix_s: float | None
) -> ModelFingerprint:
    lines = sorted(f"{file.name} {file.size_bytes} {file.digest}" for file in files)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    total = sum(file.size_bytes for file in files)
    number = f"{len(files)} files" if len(files) != 1 else "1 file"
    basis = f"{number}, {total / _BYTES_PER_GB:.3g} GB: names, sizes, first and last 64 KiB of each"
    if commit:
        basis += f"; Hugging Face commit {commit}"
    changed_unix_s = max(file.changed_unix_s for file in files)
    if started_unix_s is not None and changed_unix_s > started_unix_s:
        return ModelFingerprint(
            None, f"a model file was changed after the server started ({basis})"
        )
    return ModelFingerprint(digest, basis)
