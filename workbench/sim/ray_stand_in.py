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


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _option(words: Sequence[str], name: str, default: str = "") -> str:
    return words[words.index(name) + 1] if name in words else default


def _gpus() -> int:
    return profiles.get(os.environ["WORKBENCH_SIM_PROFILE"]).count


async def _head(address: str, port: int) -> int:
    nodes = [_gpus()]

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = (await reader.readline()).split()
        if word[:1] == [b"status"]:
            writer.write(f"{sum(nodes)}\n".encode())
        elif word:
            nodes.append(int(word[1]))
            await reader.read()
            nodes.remove(int(word[1]))
        writer.close()

    server = await asyncio.start_server(accept, address, port)
    _say(f"Local node IP: {address}\nRay runtime started. (SIMULATED)")
    async with server:
        await server.serve_forever()
    return 0


async def _connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _worker(address: str) -> int:
    for _ in range(_TRIES):
        try:
            reader, writer = await _connected(address)
            break
        except OSError:
            await asyncio.sleep(_RETRY_S)
    else:
        _say(f"RuntimeError: Failed to connect to GCS at address {address}")
        return 1
    writer.write(f"node {_gpus()}\n".encode())
    _say("Ray runtime started. (SIMULATED)")
    await reader.read()
    _say("Some Ray subprocesses exited unexpectedly: raylet (the head has ended)")
    return 1


async def _status(address: str) -> int:
    try:
        reader, writer = await _connected(address)
    except OSError:
        sys.stderr.write(
            f"ConnectionError: Could not find any running Ray instance at {address}.\n"
        )
        return 1
    writer.write(b"status\n")
    gpus = int(await reader.readline())
    _say(
        f"======== Autoscaler status ========\nResources\n\nUsage:\n 0.0/8.0 CPU\n 0.0/{gpus}.0 GPU"
    )
    return 0


def main(words: Sequence[str]) -> int:
    """Run `ray` with the arguments `words` and return its exit status."""
    if words[0] == "status":
        return asyncio.run(_status(_option(words, "--address")))
    if "--head" in words:
        address, port = (
            _option(words, "--node-ip-address", "127.0.0.1"),
            int(_option(words, "--port", "6379")),
        )
        return asyncio.run(_head(address, port))
    return asyncio.run(_worker(_option(words, "--address")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
