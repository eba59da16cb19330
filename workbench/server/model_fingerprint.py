"""A fingerprint of the model files that a server was started with: a digest of the names, the
sizes, and the first and last 64 KiB of all files. Computing the fingerprint takes about a second,
because most bytes are not read.

The fingerprint changes if a repository was updated, another quantization is used, or a file was
truncated. It does not change if only the middle of a file changed.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping

from workbench.hosts.base import Host
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.untrusted_numbers import parse_decimal, parse_whole_number, range_of
from workbench.server.hub_cache import find_hub, hub_variables

_TIMEOUT_S = 20.0
_BYTES_PER_GB = 1e9
# $1 model as the engine is given it, $2 working directory, $3 revision, $4 HF_HUB_CACHE, $5 HF_HOME
# (2 to 5 may be ""). Prints commit=…, or only looked=…; then `at` is the model's file or directory.
# A hub id is looked up in the layout of huggingface_hub's cache: models--org--name/refs/REVISION
# names the commit, snapshots/COMMIT contains the files.
LOCATE_MODEL_SCRIPT = (
    find_hub(4)
    + r"""
[ -n "$2" ] && cd -- "$2" 2>/dev/null
at=$1
case $at in "~"/*) at=$HOME/${at#"~"/} ;; esac
if [ ! -e "$at" ]; then
    folder=$hub/models--$(printf %s "$1" | sed 's,/,--,g')
    commit=$(cat "$folder/refs/${3:-main}" 2>/dev/null) || commit=$3
    at=$folder/snapshots/$commit
    [ -n "$commit" ] && [ -d "$at" ] || { echo "looked=$hub"; exit 0; }
    echo "commit=$commit"
fi
"""
)
# Prints a line per file: size, modification time, digest, name.
_LIST_FILES_SCRIPT = (
    LOCATE_MODEL_SCRIPT
    + r"""
if [ -d "$at" ]; then
    set -- "$at"/*.safetensors "$at"/*.bin "$at"/*.gguf "$at"/*.pt "$at"/*.pth "$at"/*.json "$at"/*.model "$at"/*.jinja
else
    case $at in
        *-00001-of-*.gguf) set -- "${at%-00001-of-*}"-*-of-"${at##*-of-}" ;;
        *) set -- "$at" ;;
    esac
fi
for file do
    [ -f "$file" ] || continue
    digest=$({ head -c 65536 -- "$file"; tail -c 65536 -- "$file"; } | sha256sum) || exit 1
    echo "file=$(stat -L -c '%s %Y' -- "$file") ${digest%% *} ${file##*/}"
done
exit 0
"""
)


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """The fingerprint of model files. `basis` describes the files from which `digest` was made. If
    there is no fingerprint, `digest` is None and `basis` is the reason."""

    digest: str | None
    basis: str


async def identify_model(
    host: Host,
    plan: LaunchPlan,
    env: Mapping[str, str],
    workdir: str | None = None,
    *,
    started_unix_s: float | None = None,
) -> ModelBytes:
    """Return the fingerprint of the model that `plan` names. Takes one round trip. Never raises:
    `digest` is None if the files cannot be read, or if a file was changed after the server's start
    at `started_unix_s`."""
    argv = locate_arguments(plan, env, workdir)
    try:
        done = await host.run(["sh", "-c", _LIST_FILES_SCRIPT, "sh", *argv], timeout_s=_TIMEOUT_S)
    except (HostError, TimeoutError) as error:
        return ModelBytes(None, f"the model's files could not be read: {error}")
    lines = [line.partition("=")[::2] for line in done.out.splitlines()]
    files = [tuple(value.split(" ", 3)) for key, value in lines if key == "file"]
    if (
        done.returncode
        or not files
        or any(len(f) != 4 or parse_whole_number(f[0]) is None for f in files)
    ):
        looked = next((f"; searched {value}" for key, value in lines if key == "looked"), "")
        return ModelBytes(None, f"no model files of {argv[0]} were found on {host.name}{looked}")
    commit = next((value for key, value in lines if key == "commit"), None)
    return _fingerprint_of(files, commit, started_unix_s)


def locate_arguments(plan: LaunchPlan, env: Mapping[str, str], workdir: str | None) -> list[str]:
    """Return the arguments for the shell script LOCATE_MODEL_SCRIPT, which finds the files of the model that
    `plan` names. `env` and `workdir` are those of the server."""
    model, revision, directory = plan.model, plan.flag("revision"), plan.flag("model-dir")
    if isinstance(directory, str) and not model.startswith(("/", "~")):
        model = posixpath.join(directory, model)
    known = revision if isinstance(revision, str) else ""
    return [model, workdir or "", known, *hub_variables(env)]


def _fingerprint_of(
    files: list[tuple[str, ...]], commit: str | None, started_unix_s: float | None
) -> ModelBytes:
    lines = sorted(f"{name} {size} {digest}" for size, _, digest, name in files)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    total = sum(int(size) for size, *_ in files)
    number = f"{len(files)} files" if len(files) != 1 else "1 file"
    basis = f"{number}, {total / _BYTES_PER_GB:.3g} GB: names, sizes, first and last 64 KiB of each"
    if commit:
        basis += f"; Hugging Face commit {commit}"
    if started_unix_s is not None and any(
        (parse_decimal(changed, *range_of("unix_s")) or 0.0) > started_unix_s
        for _, changed, *_ in files
    ):
        return ModelBytes(None, f"a model file was changed after the server started ({basis})")
    return ModelBytes(digest, basis)
