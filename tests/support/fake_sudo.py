"""A program that behaves as sudo 1.9 does for one user, without root. Its rules, its password and a
record of its calls are in a directory.

The program runs the command as the current user, with that user's SUDO_UID. A `stat` beside it
reports that every file belongs to root, whoever runs the tests.

As in the real sudo (compared with 1.9.13), `-n -l` needs no password as soon as one rule has
NOPASSWD, and then also lists rules that would ask. `-S` reads one line of stdin, byte by byte, and
only if a password is needed; the rest is for the command. There are three tries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

TEXT = r"""#!{python}
import fnmatch, json, os, sys
here = {here!r}
state = json.load(open(here + "/sudo.json"))
args, options = sys.argv[1:], []
while args and args[0].startswith("-"):
    options.append(args.pop(0))
    if options[-1] == "-p":
        args.pop(0)
with open(here + "/sudo.calls", "a") as log:
    log.write(json.dumps([options, args]) + "\n")

def fail(text):
    sys.stderr.write(text + "\n")
    sys.exit(1)

def password():
    if "-n" in options:
        fail("sudo: a password is required")
    for attempt in range(3):
        line = b""
        while (byte := os.read(0, 1)) not in (b"", b"\n"):
            line += byte
        if line.decode() == state["password"]:
            return
        if byte == b"":
            fail("\nsudo: no password was provided\nsudo: %d incorrect password attempts" % attempt)
        sys.stderr.write("Sorry, try again.\n")
    fail("sudo: 3 incorrect password attempts")

rules = [(r.startswith("NOPASSWD: "), r.replace("NOPASSWD: ", "")) for r in state["rules"]]
if not rules:
    fail("Sorry, user ada may not run sudo on box.")
if "-v" in options:
    if not all(free for free, _ in rules):
        password()
    sys.exit(0)
if "-l" in options:
    if not any(free for free, _ in rules):
        password()
    print("Matching Defaults entries for ada on box:\n    env_reset, use_pty\n")
    print("User ada may run the following commands on box:")
    for rule in state["rules"]:
        print("    (root) " + rule)
    sys.exit(0)
unescape = lambda text: text.replace("\\,", ",").replace("\\=", "=").replace("\\:", ":")
matching = [free for free, rule in rules if rule == "ALL" or rule == args[0]
            or fnmatch.fnmatchcase(" ".join(args), unescape(rule))]
if not matching:
    if not all(free for free, _ in rules):
        password()
    fail("Sorry, user ada is not allowed to execute '%s' as root on box." % " ".join(args))
if not matching[-1]:
    password()
os.environ["SUDO_UID"] = str(os.getuid())
os.execvp(args[0], args)
"""
STAT = """#!/bin/sh
said=$(/usr/bin/stat "$@") || exit
printf '%s\\n' "$said" | sed 's/^[0-9]* [0-9]* \\([0-9a-f]*\\)$/0 0 \\1/'
"""


class Sudo:
    """A sudo installed in `here`; put `here` first on PATH."""

    def __init__(self, here: Path, *rules: str, password: str = "correct horse") -> None:
        self.here = here
        program = here / "sudo"
        program.write_text(TEXT.format(python=sys.executable, here=str(here)))
        program.chmod(0o755)
        (here / "stat").write_text(STAT)
        (here / "stat").chmod(0o755)
        self.password = password
        self.allow(*rules)

    def allow(self, *rules: str) -> None:
        """Set the rules, written as `sudo -l` prints them: "NOPASSWD: /usr/bin/nvidia-smi -i 0 -pm
        1", "ALL"."""
        (self.here / "sudo.json").write_text(
            json.dumps({"rules": rules, "password": self.password})
        )

    @property
    def calls(self) -> list[tuple[Sequence[str], Sequence[str]]]:
        """Return (options, command) of each call."""
        path = self.here / "sudo.calls"
        return (
            [tuple(json.loads(line)) for line in path.read_text().splitlines()]
            if path.exists()
            else []
        )
