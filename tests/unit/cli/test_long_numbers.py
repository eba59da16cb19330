"""Numbers of thousands of digits, which Python refuses to convert: from a preset, and on the
command line."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.cli.fit import _parse_context_lengths
from workbench.cli.servers import find_run
from workbench.model.errors import InputError
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options

LONG = "9" * 6000


@pytest.mark.parametrize(
    ("run_as", "option"),
    [("slurm", "cpus"), ("pbs", "cpus"), ("pbs", "gpus"), ("podman", "grace"), ("docker", "grace")],
)
def test_an_option_of_a_launcher(run_as: str, option: str) -> None:
    with pytest.raises(InputError, match="expected a whole number from") as error:
        with_launcher_and_options(LaunchPlan("vllm", "m"), run_as, [f"{option}={LONG}"])
    assert len(error.value.message) < 200


def test_a_context_length() -> None:
    with pytest.raises(InputError, match="has no lengths"):
        _parse_context_lengths(f"8192,{LONG}")
    assert _parse_context_lengths("8192, 40960") == [8192, 40960]


def test_a_run() -> None:
    async def none() -> tuple[Any, ...]:
        return ()

    supervisor = SimpleNamespace(runs=none, older=())
    servers = SimpleNamespace(supervisor=supervisor)
    session = SimpleNamespace(servers=servers, host=SimpleNamespace(name="local"))
    with pytest.raises(InputError, match="no run '9999"):
        asyncio.run(find_run(session, LONG))  # type: ignore[arg-type]
