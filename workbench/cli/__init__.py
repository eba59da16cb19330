"""The command line. Importing this package imports no other file; each command imports the modules
that it needs.

registry.py          the `@command` declaration, and the table of command files
parser.py, run.py    command line → namespace → handler → exit code
streams.py, output.py, questions.py    safe stdout and stderr, printing, questions on the terminal
shared_options.py, load_options.py     options that several commands share
declared_arguments.py                  options of a load or an experiment, made from their declarations
end_signals.py       SIGTERM and SIGHUP before a command handles them
open_session.py, stop_signals.py       a connected session for one command; SIGINT, SIGTERM and SIGHUP
*_text.py            conversion of results and settings to terminal text
all other files      one group of commands each: arguments, examples and handlers
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. The code is 0 for success, 1 for a failure, 2 for
    invalid usage or input, 3 for an invalid benchmark result, and 128 plus the number of the signal
    that ended the command, such as 130 for Ctrl-C. Errors are printed as messages, never as
    tracebacks."""
    from workbench.cli.run import run

    return run(list(sys.argv[1:] if argv is None else argv))
