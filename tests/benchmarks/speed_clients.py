"""Rows of the speed table about the load client, in turns with the smallest clients in C and Rust
(clients/) and with any command that --peer names."""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from bench_client import (
    Figures,
    accuracy,
    accuracy_on_two_cores,
    pin_workers,
    start_up,
    truth_server,
)
from peers import Peer
from speed_home import built

CLIENTS = Path(__file__).resolve().parent / "clients"
COMPILERS = (
    ("C", "sse_client.c", ("cc", "-O2", "-D_GNU_SOURCE")),
    ("Rust", "sse_client.rs", ("rustc", "-O")),
)
Rounds = dict[str, list[Figures]]
pin_workers()


def peers(chosen: argparse.Namespace) -> list[Peer]:
    found = [(name, built(CLIENTS / source, *command)) for name, source, command in COMPILERS]
    small = [
        f"{name}={program} {{url}} {{streams}} {{requests}} {{tokens}}"
        for name, program in found
        if program
    ]
    return [Peer(text) for text in (*small, *chosen.peer)]


def median(rounds: list[Figures], figure: str) -> float:
    return statistics.median(each[figure] for each in rounds)


def streams_of_a_core(chosen: argparse.Namespace) -> tuple[str, str]:
    """256 streams of 100 tokens/s on one core, and on as many as the load needs."""
    parts = []
    cores = (("one core", accuracy), ("two cores", accuracy_on_two_cores))
    for name, measure in cores[: os.cpu_count()]:
        rounds = [measure(256, 4, "--exact") for _ in range(chosen.rounds)]
        refused = sum(each["refused"] for each in rounds)
        error = (
            f"TTFT +{median(rounds, 'TTFT error mean'):.3f} mean, "
            f"+{median(rounds, 'p99'):.2f} ms p99"
        )
        parts.append(f"256 on {name}: refused {refused:.0f} of {len(rounds)}, {error}")
    return "", "; ".join(parts)


def accurate(chosen: argparse.Namespace) -> tuple[str, str]:
    """128 streams of 100 tokens/s: errors of TTFT and gaps in ms."""
    rounds: Rounds = {"": []}
    for _ in range(chosen.rounds):
        rounds[""].append(accuracy(128, 4))
        for peer in peers(chosen):
            with truth_server("--ttft-ms", "50", "--itl-ms", "10") as server:
                rounds.setdefault(peer.name, []).append(
                    peer.measure(server, streams=128, requests=512, tokens=128)
                )
    own = rounds.pop("")
    told = (
        f"{name} {median(each, 'TTFT mean off'):+.3f} / {median(each, 'ITL p99 off'):+.3f}"
        for name, each in rounds.items()
    )
    return ", ".join(told), f"{median(own, 'TTFT error mean'):+.3f} / {median(own, 'gap p99'):+.3f}"


def start_and_end(chosen: argparse.Namespace) -> tuple[str, str]:
    rounds = [start_up() for _ in range(chosen.rounds)]
    last, first = median(rounds, "s after the last answer"), median(rounds, "s after the exec")
    return "", f"{last:.2f} s; first request after {first:.2f} s"
