"""The command line. Importing this costs argparse only; each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 success, 1 failure, 2 bad usage or input, 130 interrupted. Never a traceback."""
    from workbench.cli.dispatch import run

    return run(list(sys.argv[1:] if argv is None else argv))
