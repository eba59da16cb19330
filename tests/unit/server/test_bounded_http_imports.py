"""A request searches the disk for no module that is not installed."""

from __future__ import annotations

import subprocess
import sys

SEARCHED = """
import asyncio, importlib.util, sys
from workbench.server import bounded_http

searched = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        searched.append(name)

async def ask():
    async with bounded_http.BoundedClient() as http:
        for _ in range(3):
            searched.clear()
            try:
                await http.get("http://127.0.0.1:9/")
            except bounded_http.httpx.HTTPError:
                pass

sys.meta_path.insert(0, Finder())
asyncio.run(ask())
print(searched)
"""


def test_a_request_searches_for_no_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEARCHED], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
