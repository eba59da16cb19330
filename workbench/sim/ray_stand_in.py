"""A replacement for Ray's command line on a simulated host: `ray start --head|--address … --block`
and `ray status`.

The head listens on its port, and each other node keeps a connection to it. `ray status` reports the
GPUs of the connected nodes, so a node that has ended is not counted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from workbench.sim import profiles

_RETRY_S, _TRIES = 0.2, 50


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _option_value(words: Sequence[str], name: str, default: str = "") -> str:
    return words[words.index(name) + 1] if name in words else default


def _count_gpus() -> int:
    return profiles.get_profile(os.environ["WORKBENCH_SIM_PROFILE"]).count


async def _run_head(address: str, port: int) -> int:
    nodes = [_count_gpus()]

    async def handle_ray_connection(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        word = (await reader.readline()).split()
        if word[:1] == [b"status"]:
            writer.write(f"{sum(nodes)}\n".encode())
        elif word:
            nodes.append(int(word[1]))
            await reader.read()
            nodes.remove(int(word[1]))
        writer.close()

    server = await asyncio.start_server(handle_ray_connection, address, port)
    _print_line(f"Local node IP: {address}\nRay runtime started. (SIMULATED)")
    async with server:
        await server.serve_forever()
    return 0


async def _connect_to_head(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _run_worker(address: str) -> int:
    for _ in range(_TRIES):
        try:
            reader, writer = await _connect_to_head(address)
            break
        except OSError:
            await asyncio.sleep(_RETRY_S)
    else:
        _print_line(f"RuntimeError: Failed to connect to GCS at address {address}")
        return 1
    writer.write(f"node {_count_gpus()}\n".encode())
    _print_line("Ray runtime started. (SIMULATED)")
    await reader.read()
    _print_line("Some Ray subprocesses exited unexpectedly: raylet (the head has ended)")
    return 1


async def _print_status(address: str) -> int:
    try:
        reader, writer = await _connect_to_head(address)
    except OSError:
        sys.stderr.write(
            f"ConnectionError: Could not find any running Ray instance at {address}.\n"
        )
        return 1
    writer.write(b"status\n")
    gpus = int(await reader.readline())
    _print_line(
        f"======== Autoscaler status ========\nResources\n\nUsage:\n 0.0/8.0 CPU\n 0.0/{gpus}.0 GPU"
    )
    return 0


def main(words: Sequence[str]) -> int:
    """Run `ray` with the arguments `words` and return its exit status."""
    if words[0] == "status":
        return asyncio.run(_print_status(_option_value(words, "--address")))
    if "--head" in words:
        address = _option_value(words, "--node-ip-address", "127.0.0.1")
        port = int(_option_value(words, "--port", "6379"))
        return asyncio.run(_run_head(address, port))
    return asyncio.run(_run_worker(_option_value(words, "--address")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
