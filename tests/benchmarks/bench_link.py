"""Measure Workbench over a long link: a real sshd behind a relay that delays by 75 ms in each
direction.

    python tests/benchmarks/bench_link.py [--round-trip 0.15] [--kbytes-s 0] [--loss 0] [--rounds 3]

The screen runs in a pseudo-terminal, on a host with a simulated driver. Each round is a first
connection, to a host that has nothing of Workbench, and a later one. Printed are the seconds from
the connection to the first readings on the screen, with the turns and bytes of the link until then,
and the time from a key to the changed frame meanwhile. Another Workbench is measured with
PYTHONPATH=its directory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from support.slow_link import SlowLink  # noqa: E402
from support.ssh_box import driver_environment  # noqa: E402
from support.sshd import Sshd, sshd  # noqa: E402
from terminal import Terminal, load_1m  # noqa: E402

import workbench  # noqa: E402

PROFILE = "four-pcie"
FRAME = b"palette"  # the footer
FIGURES = b"A100"
PANES = b"23456"
QUIET_S = 0.15  # between two keys
SETTLED_S = 6.0  # after the first readings: what else is asked


@contextmanager
def person(directory: Path, server: Sshd, link: SlowLink) -> Iterator[dict[str, str]]:
    """Yield the environment of a user whose ssh configuration leads over the link."""
    home = directory / "person"
    (home / ".ssh").mkdir(parents=True)
    key = (server.directory / "host_key.pub").read_text().split()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{link.port} {key[0]} {key[1]}\n")
    known = str(home / ".ssh" / "known_hosts")
    (home / ".ssh" / "config").write_text(
        server.stanza(Port=str(link.port), UserKnownHostsFile=known)
    )
    folders = {
        f"XDG_{name}_HOME": str(home / name.lower())
        for name in ("STATE", "DATA", "CONFIG", "CACHE")
    }
    yield {
        "HOME": str(home),
        "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/workbench-bench-bytecode",
        **folders,
    }


def connection(env: dict[str, str], link: SlowLink) -> tuple[str, list[float]]:
    """Open the screen, press keys until the first readings stand there, and a little longer. Return
    the figures as text, and the seconds from each key to the next output."""
    link.reset()
    keys: list[float] = []
    with Terminal([sys.executable, "-m", "workbench", "box"], env=env) as screen:
        frame_s = screen.until(FRAME)
        pressed = 0
        while FIGURES not in screen.recent:
            screen.drain(QUIET_S)
            if FIGURES in screen.recent:
                break
            begin = time.monotonic()
            os.write(screen.master, PANES[pressed % len(PANES) :][:1])
            screen.read(2.0)
            keys.append(time.monotonic() - begin)
            pressed += 1
            if begin - screen.started_s > 60:
                raise SystemExit(f"no reading: {screen.recent[-600:]!r}")
        first_s, first = (
            time.monotonic() - screen.started_s,
            (link.turns, link.up_bytes, link.down_bytes),
        )
        screen.drain(SETTLED_S)
        then = (link.turns, link.up_bytes, link.down_bytes)
        screen.drain(SETTLED_S)
        idle = ((link.up_bytes - then[1]) / SETTLED_S, (link.down_bytes - then[2]) / SETTLED_S)
    text = (
        f"frame {frame_s:.2f} s, readings {first_s:.2f} s (turns {first[0]}, up "
        f"{first[1] / 1000:.1f} KB, "
        f"down {first[2] / 1000:.1f} KB); {SETTLED_S:.0f} s later turns {then[0]}, up "
        f"{then[1] / 1000:.1f} KB; "
        f"then {idle[0]:.0f} B/s up, {idle[1]:.0f} B/s down"
    )
    return text, keys


def summary(keys: Sequence[float]) -> str:
    if not keys:
        return "no key was pressed"
    ordered = sorted(1000 * key for key in keys)
    return (
        f"key to output: median {statistics.median(ordered):.0f} ms, largest "
        f"{ordered[-1]:.0f} ms of {len(keys)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--round-trip", type=float, default=0.15, help="seconds")
    parser.add_argument(
        "--kbytes-s", type=float, default=0.0, help="KB/s in each direction; 0: no limit"
    )
    parser.add_argument(
        "--loss", type=float, default=0.0, help="share of the segments, for example 0.02"
    )
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    rate = 1000 * chosen.kbytes_s or None
    print(f"{Path(workbench.__file__).parent}, load {load_1m():.1f}", flush=True)
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory(prefix="workbench-link-") as folder:
            directory = Path(folder)
            with (
                sshd(
                    directory / "ssh", environment=driver_environment(directory, PROFILE)
                ) as server,
                SlowLink(server.server_port, chosen.round_trip, rate, chosen.loss) as link,
                person(directory, server, link) as env,
            ):
                for name in ("first", "later"):
                    text, keys = connection(env, link)
                    print(f"{name}: {text}; {summary(keys)}", flush=True)


if __name__ == "__main__":
    main()
