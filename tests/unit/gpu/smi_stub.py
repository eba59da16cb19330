"""A fake nvidia-smi: its GPU's state is the simulated NVML library's script, so that what it sets
can be read back.

Its behaviour is a word in the file `mode`: ok, no-effect, warn, refuse, hang, lost, old. It notes
each call in `calls`, and for the first setter what the journal held at that moment.
"""

from __future__ import annotations

import sys
from pathlib import Path

TEXT = r"""#!{python}
import os, sys, time
here = {here!r}
script, journal = {script!r}, {journal!r}
args = sys.argv[1:]
mode = open(here + "/mode").read().strip()
with open(here + "/calls", "a") as log:
    log.write(" ".join(args) + "\n")
line = " ".join(args)
if "--query" in line:
    exec(open(here + "/query.py").read())
    sys.exit(0)
if not os.path.exists(here + "/seen"):
    with open(here + "/seen", "w") as seen:
        seen.write(open(journal).read() if os.path.exists(journal) else "nothing")
uuid = args[args.index("-i") + 1]
index = int(uuid[4:12])
calls = len([c for c in open(here + "/calls") if "--query" not in c])
if mode == "lost" and calls > 1:
    with open(script, "a") as out:
        out.write("lost %d 15\n" % index)
    print("Unable to determine the device handle for GPU%d: GPU is lost.  Reboot the system" % index)
    sys.exit(15)
if mode == "hang":
    time.sleep(600)
if mode == "refuse":
    print("The current user does not have permission to change clocks for GPU 00000000:01:00.0.")
    print("Terminating early due to previous errors.")
    sys.exit(4)
if mode == "warn":
    print("Changing power management limit is not supported for GPU: 00000000:01:00.0.")
    print("Treating as warning and moving on.\nAll done.")
    sys.exit(0)
change = args[args.index("-i") + 2:]
new = ""
if change[0] == "-pl":
    new = "nvmlDeviceGetPowerManagementLimit %d %d\nnvmlDeviceGetEnforcedPowerLimit %d %d\n" % (
        index, float(change[1]) * 1000, index, float(change[1]) * 1000)
    print("Power limit for GPU 00000000:01:00.0 was set to %.2f W from 600.00 W." % float(change[1]))
elif change[0] == "-pm":
    new = "nvmlDeviceGetPersistenceMode %d %s\n" % (index, change[1])
    print(("Enabled" if change[1] == "1" else "Disabled") + " persistence mode for GPU 00000000:01:00.0.")
elif change[0].startswith("--lock-gpu-clocks="):
    print('GPU clocks set to "(gpuClkMin 1000, gpuClkMax 2000)" for GPU 00000000:01:00.0')
elif change[0].startswith("--lock-memory-clocks="):
    print('Memory clocks set to "(memClkMin 14001, memClkMax 14001)" for GPU 00000000:01:00.0')
elif not change[0].startswith("--reset-"):
    print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
    sys.exit(2)
if mode != "no-effect":
    with open(script, "a") as out:
        out.write(new)
print("All done.")
"""


class Smi:
    """Installed in `here`; put `here` first on PATH."""

    def __init__(self, here: Path, script: Path, journal: Path) -> None:
        here.mkdir(exist_ok=True)
        self.here = here
        program = here / "nvidia-smi"
        program.write_text(
            TEXT.format(
                python=sys.executable, here=str(here), script=str(script), journal=str(journal)
            )
        )
        program.chmod(0o755)
        self.mode("ok")

    def mode(self, word: str) -> None:
        (self.here / "mode").write_text(word)

    def query(self, python: str) -> None:
        """What it does when asked for readings: Python, with `args` and `line`."""
        (self.here / "query.py").write_text(python)

    @property
    def calls(self) -> list[str]:
        path = self.here / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def setters(self) -> list[str]:
        return [" ".join(call.split()[2:]) for call in self.calls if "--query" not in call]

    @property
    def journal_at_first_change(self) -> str:
        return (self.here / "seen").read_text()
