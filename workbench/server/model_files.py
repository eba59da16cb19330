"""What the files of a model on a host tell of it: bytes of its weights, and its config.json. Nothing of them is run."""

from __future__ import annotations

import json
from collections.abc import Mapping

from workbench.engines.model_facts import from_config
from workbench.hosts.base import Host
from workbench.model.errors import HostError
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.server.model_fingerprint import LOCATE, locate_arguments

_TIMEOUT_S = 20.0
# After LOCATE: `at` is the file or directory. Prints key=value lines; the configuration comes last, as it is.
_READ = (
    LOCATE
    + r"""
[ -e "$at" ] || { echo "looked=$at"; exit 0; }
if [ -f "$at" ]; then
    case $at in
        *-00001-of-*.gguf) set -- "${at%-00001-of-*}"-*-of-"${at##*-of-}" ;;
        *) set -- "$at" ;;
    esac
    for file do echo "bytes=$(stat -L -c %s -- "$file")"; done
    exit 0
fi
[ -f "$at/config.json" ] || { echo "looked=$at/config.json"; exit 0; }
cd -- "$at" || exit 1
index=model.safetensors.index.json
if [ -f "$index" ]; then
    grep -q '"lm_head\.weight"' -- "$index" && echo "head=yes"
    names=$(head -c 33554432 -- "$index" | grep -o '"[^"/]*\.safetensors"' | tr -d '"' | sort -u)
elif [ -f model.safetensors ]; then
    names=model.safetensors
else
    names=$(ls | grep '\.safetensors$')
fi
set -f; IFS='
'
for name in $names; do
    if [ -f "$name" ]; then
        echo "bytes=$(stat -L -c %s -- "$name")"
        [ -f "$index" ] || { head -c 4194304 -- "$name" | grep -aq '"lm_head\.weight"' && echo "head=yes"; }
    else
        echo "absent=1"
    fi
done
echo "config="
head -c 1048576 -- config.json
exit 0
"""
)


async def read_facts(host: Host, plan: LaunchPlan, env: Mapping[str, str]) -> ModelFacts:
    """Return the figures of the model that `plan` names, from its files on `host`, in one round trip.

    Never raises: where nothing can be read, `missing` says why.
    """
    model = plan.model
    try:
        done = await host.run(
            ["sh", "-c", _READ, "sh", *locate_arguments(plan, env, plan.workdir)], timeout_s=_TIMEOUT_S
        )
    except (HostError, TimeoutError) as error:
        return ModelFacts(model, missing=f"the model's files could not be read: {error}")
    told, _, config = done.out.partition("config=\n")
    lines = [line.partition("=")[::2] for line in told.splitlines()]
    sizes = [int(value) for key, value in lines if key == "bytes" and value.isdecimal()]
    absent = sum(key == "absent" for key, _ in lines)
    if done.returncode or not sizes or absent:
        looked = next((f": not in {value}" for key, value in lines if key == "looked"), "")
        what = f"{absent} of its weight files are missing" if absent else f"its files were not found{looked}"
        return ModelFacts(model, missing=f"on {host.name} {what}")
    if not config:
        missing = "of a single file it is not known how many bytes one token reads"
        return ModelFacts(model, weight_bytes=float(sum(sizes)), missing=missing, source=f"the size of {model}")
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return ModelFacts(model, missing=f"its config.json on {host.name} is not valid JSON")
    source = f"config.json and weight files on {host.name}"
    return from_config(model, document, sum(sizes), head=("head", "yes") in lines, source=source)
