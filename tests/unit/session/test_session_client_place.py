"""Where the load client of a benchmark runs: on the server's host, or here."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from workbench.bench.workers import ClientMissingError, HostWorker, LocalWorker
from workbench.cli.load_options import read_load_options
from workbench.cli.parser import parse_command_line
from workbench.hosts.local import LocalHost
from workbench.model.bench import BenchSpec
from workbench.model.bench_cli_options import bench_cli_options
from workbench.model.errors import InputError
from workbench.session.bench.benchmark_load import (
    CLIENT_ANYWHERE,
    CLIENT_ON_HOST,
    CLIENT_ON_THIS_MACHINE,
    choose_load_client_location,
    prestart_client,
)
from workbench.session.bench.spec import spec_from_fields


class FarHost(LocalHost):
    """This machine as another one, with the given program as python3."""

    kind = "ssh"
    is_local = False

    def __init__(self, python: str = "python3") -> None:
        super().__init__()
        self.python = python

    async def stream(self, argv: Any, **options: Any) -> Any:
        return await super().stream(
            [self.python if word == "python3" else word for word in argv], **options
        )


@pytest.mark.parametrize(
    ("host", "fields", "on_host", "place"),
    [
        (LocalHost(), {}, True, CLIENT_ON_THIS_MACHINE),
        (LocalHost(), {"client": "host"}, True, CLIENT_ON_THIS_MACHINE),  # the same machine
        (FarHost(), {}, True, CLIENT_ANYWHERE),
        (
            FarHost(),
            {},
            False,
            CLIENT_ON_THIS_MACHINE,
        ),  # a URL elsewhere: the host is only a detour
        (FarHost(), {"client": "host"}, False, CLIENT_ON_HOST),  # unless the user wants it
        (FarHost(), {"client": "here"}, True, CLIENT_ON_THIS_MACHINE),
        (FarHost(), {"ca_file": "/ca.pem"}, True, CLIENT_ON_THIS_MACHINE),  # a file of this machine
        (FarHost(), {"command": ("vf-eval",)}, True, None),
    ],
)
def test_the_place(host: Any, fields: dict[str, Any], on_host: bool, place: str | None) -> None:
    assert (
        choose_load_client_location(host, BenchSpec("http://127.0.0.1:1", "m", **fields), on_host)
        == place
    )


async def started(host: Any, place: str) -> tuple[type, str, str]:
    async with prestart_client(
        host, nullcontext(), client_location=place, with_meter=False
    ) as made:
        return type(made.worker), made.client, made.why_not_there


def test_a_host_that_cannot_run_it_gets_the_load_from_here(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert asyncio.run(started(FarHost(), CLIENT_ANYWHERE)) == (HostWorker, "host", "")
    kind, client, why = asyncio.run(started(FarHost("/bin/false"), CLIENT_ANYWHERE))
    assert (kind, client) == (LocalWorker, "tunnel") and "the load client cannot run there" in why
    with pytest.raises(ClientMissingError):
        asyncio.run(started(FarHost("/bin/false"), CLIENT_ON_HOST))


def test_the_option() -> None:
    spec = spec_from_fields(
        None, read_load_options(parse_command_line(["bench", "RUN", "--client", "host"]))
    )
    assert spec.client == "host" and "--client" in bench_cli_options(spec)
    assert (
        spec_from_fields(None, read_load_options(parse_command_line(["bench", "RUN"]))).client == ""
    )
    with pytest.raises(InputError, match="cannot read the --cacert file"):
        spec_from_fields(None, {"client": "host", "ca_file": "/ca.pem"})
    with pytest.raises(InputError, match="'there' is not a valid value of client"):
        spec_from_fields(None, {"client": "there"})
