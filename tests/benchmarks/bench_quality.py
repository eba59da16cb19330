"""Measure the verdicts about quality: the table of docs/REFERENCE.md, "How sure a verdict about
quality is". The truth of each comparison is known (tests/support/simulated_quality.py).

    .venv/bin/python tests/benchmarks/bench_quality.py [COMPARISONS]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.simulated_quality import Truth, shares

FIRST_SEED = 20_262_128  # of the first row; nothing in the product was chosen by these draws
ROWS = (
    ("A = B, no noise", Truth(floor_kl=0.0, floor_forks=0, forks=0), {}),
    ("A = B, noise 0.00001", Truth(floor_kl=1e-5), {}),
    ("A = B, noise 0.0001", Truth(floor_kl=1e-4), {}),
    ("A = B, noise 0.0005", Truth(floor_kl=5e-4), {}),
    ("A = B, noise 0.0005, uneven texts", Truth(floor_kl=5e-4), {"text_sigma": 0.8}),
    ("B has 0.001 more, noise 0.00001", Truth(floor_kl=1e-5, more_kl=1e-3), {}),
    ("B has 0.001 more, noise 0.0001", Truth(floor_kl=1e-4, more_kl=1e-3), {}),
    ("B has 0.001 more, noise 0.0005", Truth(floor_kl=5e-4, more_kl=1e-3), {}),
    (
        "B has 0.01 more, noise 0.0001",
        Truth(more_kl=1e-2, ln_ppl=0.009, forks=12.0, answer_drop=0.05),
        {},
    ),
    ("only the forks: 12 and 2 per 1,000 tokens, noise 0.0001", Truth(forks=12.0), {}),
    (
        "forks of A and of B: 40 per 1,000 tokens; A finds the answers of B 0.2 nats less probable",
        Truth(floor_forks=40.0, forks=40.0, answer_drop=0.2),
        {},
    ),
)
HEAD = (
    "| truth, with the noise of A against A in nats | differs | same | KLD covered | ln PPL | same "
    "token | forks | answers under A |"
)


def main() -> None:
    comparisons = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(HEAD)
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for number, (label, truth, options) in enumerate(ROWS):
        found = shares(truth, comparisons, seed=FIRST_SEED + number, **options)
        cells = [found.differs, found.same, *found.covered.values()]
        print(f"| {label} | {' | '.join(f'{cell:.1f} %' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
