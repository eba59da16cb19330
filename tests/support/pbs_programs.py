"""qsub, qstat, qselect, qdel, qrerun and pbsnodes as PBS Pro and Torque have them, with one node that is
this machine.

`install(directory)` puts the programs into `directory`/bin and returns a `Pbs`. A job is a process
that reads its script from stdin, as a MOM runs it, in a clean environment; its output is in a spool
file until the job has ended. The arguments of each program are recorded. Files in the directory
change what the programs do: `hold` keeps jobs in the queue, `down` makes the server unreachable,
`torque` makes it Torque, `no-history` forgets ended jobs.

This module imports nothing from Workbench, and runs under `python3 -S`.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("qsub", "qstat", "qselect", "qdel", "qrerun", "pbsnodes")
SERVER, NODE = "pbs01", "c02"
KILL_DELAY_S = 2.0
_OPTIONS = {"-N", "-q", "-A", "-l", "-S", "-j", "-o", "-e", "-v", "-W", "-r", "-k"}
_EXITS = {"unknown": 153, "finished": 35, "down": 111, "option": 2, "name": 1}


class Pbs:
    """The stand-in in `directory`: `bin` is for the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"

    def set(self, name: str, on: bool = True) -> None:
        """Switch one of the files that change what the programs do."""
        path = self.directory / name
        path.touch() if on else path.unlink(missing_ok=True)

    def calls(self, program: str) -> list[list[str]]:
        """Return the arguments of all calls of this program, in their order."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "calls").read_text().splitlines()
            return [
                call["argv"][1:] for call in map(json.loads, lines) if call["argv"][0] == program
            ]
        return []

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.directory.glob("job-*.json"))]

    def living(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return [job["id"] for job in self.jobs() if job["state"] not in "FC"]


def install(directory: Path) -> Pbs:
    """Install the programs in `directory`/bin."""
    found = Pbs(directory)
    found.bin.mkdir(parents=True)
    for name in PROGRAMS:
        words = shlex.join(
            [sys.executable, "-S", str(Path(__file__).resolve()), str(directory), name]
        )
        (found.bin / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (found.bin / name).chmod(0o755)
    return found


class Server:
    """The state of the stand-in on disk, as one program sees it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.torque = (directory / "torque").exists()

    def path(self, job_id: str) -> Path:
        return self.directory / f"job-{job_id.split('.')[0]}.json"

    def read(self, job_id: str) -> dict[str, Any] | None:
        try:
            job: dict[str, Any] = json.loads(self.path(job_id).read_text())
        except FileNotFoundError:
            return None
        return job

    def write(self, job: dict[str, Any]) -> None:
        new = self.path(job["id"]).with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(job))
        new.replace(self.path(job["id"]))

    def change(self, job_id: str, **values: Any) -> None:
        self.write({**(self.read(job_id) or {}), **values})

    def new_id(self) -> str:
        number = 1
        while True:
            with contextlib.suppress(FileExistsError):
                (self.directory / f"id-{number}").open("x").close()
                return f"{number}.{SERVER}"
            number += 1


def fail(kind: str, text: str) -> int:
    print(text, file=sys.stderr)
    return _EXITS[kind]


def qsub(server: Server, words: list[str]) -> int:
    job: dict[str, Any] = {
        "resources": {},
        "name": "STDIN",
        "queue": "workq",
        "shell": "/bin/sh",
        "out": None,
    }
    variables: dict[str, str] = {}
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option not in _OPTIONS or not words:
            return fail(
                "option", f"qsub: invalid option -- '{option}'\nusage: qsub [-a date_time] …"
            )
        value = words.pop(0)
        if option == "-l":
            resources = dict(part.partition("=")[::2] for part in value.split(","))
            if ("select" in resources) == server.torque and {"select", "nodes"} & resources.keys():
                return fail("option", f"qsub: Unknown resource: {value}")
            job["resources"].update(resources)
        elif option == "-N":
            if not re.fullmatch(r"[A-Za-z][\x21-\x7e]{0,14}", value):
                return fail("name", "qsub: illegal -N value")
            job["name"] = value
        elif option == "-v":
            variables.update(
                (n, v or os.environ.get(n, ""))
                for n, _, v in (w.partition("=") for w in value.split(","))
            )
        else:
            job[
                {"-q": "queue", "-S": "shell", "-o": "out", "-A": "account"}.get(option, option)
            ] = value
    script = Path(words[0]).read_text() if words else sys.stdin.read()
    workdir = os.getcwd()
    out = os.path.join(workdir, job["out"] or f"{job['name']}.o")
    job |= {
        "id": server.new_id(),
        "state": "Q",
        "owner": getpass.getuser(),
        "workdir": workdir,
        "out": out,
    }
    job |= {"script": script, "variables": variables, "arguments": words[1:]}
    server.write(job)
    none = subprocess.DEVNULL
    mom = [sys.executable, "-S", __file__, str(server.directory), "mom", job["id"]]
    subprocess.Popen(mom, stdin=none, stdout=none, stderr=none, start_new_session=True)
    print(job["id"])
    return 0


def mom(server: Server, words: list[str]) -> int:
    """Run one job until it has ended, again each time that it was put back into the queue."""
    while ran(server, words[0]):
        pass
    return 0


def ran(server: Server, job_id: str) -> bool:
    """Wait for the turn of a job, run its script, end it at its walltime, and deliver its output.
    Return whether it was put back into the queue."""
    job = server.read(job_id)
    assert job is not None
    while (server.directory / "hold").exists():
        if (server.read(job["id"]) or {}).get("state") in "FC":
            return False
        time.sleep(0.02)
    home = os.environ.get("HOME", "/")
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": home,
        "USER": job["owner"],
        "SHELL": "/bin/sh",
        "PBS_JOBID": job["id"],
    }
    env |= {"PBS_O_WORKDIR": job["workdir"], "PBS_ENVIRONMENT": "PBS_BATCH", **job["variables"]}
    script, spool = server.directory / f"{job['id']}.SC", server.directory / f"{job['id']}.OU"
    script.write_text(job["script"])
    with script.open() as stdin, spool.open("w") as out:
        process = subprocess.Popen(
            [job["shell"]],
            stdin=stdin,
            stdout=out,
            stderr=out,
            env=env,
            cwd=home,
            start_new_session=True,
        )
        job |= {
            "state": "R",
            "began": time.time(),
            "sid": process.pid,
            "runs": job.get("runs", 0) + 1,
        }
        server.write(job)
        limit = _seconds(job["resources"].get("walltime"))
        killed = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            killed = f"walltime {limit + 1:.0f} exceeded limit {limit:.0f}"
            out.write(f"=>> PBS: job killed: {killed}\n")
            end(process.pid)
            code = process.wait()
    job = server.read(job["id"]) or job
    if job.pop("requeue", False):
        del job["began"]
        server.write(job | {"state": "Q"})
        return True
    status = 256 - code if code < 0 else code
    job |= {
        "state": "C" if server.torque else "F",
        "exit": -29 if killed and not server.torque else status,
    }
    with contextlib.suppress(OSError):
        Path(job["out"]).write_bytes(spool.read_bytes())
    if (server.directory / "no-history").exists():
        server.path(job["id"]).unlink()
    else:
        server.write(job)
    return False


def end(session: int) -> None:
    """End all processes of a session, as a MOM does: TERM, then KILL after some seconds."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for pid in _members(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
        until = time.monotonic() + KILL_DELAY_S
        while time.monotonic() < until and _members(session):
            time.sleep(0.02)


def _members(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rpartition(") ")[2].split()
            if int(words[3]) == session and words[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    total = 0
    for word in text.split(":"):
        total = total * 60 + int(word)
    return float(total)


def qstat(server: Server, words: list[str]) -> int:
    if words == ["--version"]:
        print(
            "Version: 6.1.3\nCommit: 22b0fc1" if server.torque else "pbs_version = 22.05.11",
            file=sys.stderr,
        )
        return 0
    history = "-x" in words
    if history and server.torque:
        print("<Data/>")
        return 0
    code = 0
    for job_id in [word for word in words if not word.startswith("-")]:
        job = server.read(job_id)
        if job is None:
            code = fail("unknown", f"qstat: Unknown Job Id {job_id}")
        elif job["state"] == "F" and not history:
            said = (
                f"qstat: {job_id} Job has finished, use -x or -H to obtain historical job "
                "information"
            )
            code = fail("finished", said)
        else:
            print(shown(server, job))
    return code


def shown(server: Server, job: dict[str, Any]) -> str:
    """Return a job as `qstat -f` prints it: long values continue on lines that begin with a tab."""
    values = {
        "Job_Name": job["name"],
        "Job_Owner": f"{job['owner']}@login",
        "job_state": job["state"],
    }
    if "began" in job:
        used = int(time.time() - job["began"])
        values["resources_used.walltime"] = f"{used // 3600:02}:{used // 60 % 60:02}:{used % 60:02}"
        values["exec_host"] = f"{NODE}/0*2" if not server.torque else f"{NODE}/0-1"
    if "runs" in job and not server.torque:
        values["run_count"] = str(job["runs"])
    values |= {
        "queue": job["queue"],
        "server": SERVER,
        "Join_Path": "oe",
        "Output_Path": f"login:{job['out']}",
    }
    values |= {f"Resource_List.{name}": value for name, value in job["resources"].items()}
    if "exit" in job:
        values["exit_status" if server.torque else "Exit_status"] = str(job["exit"])
    if job["state"] == "Q":
        values["comment"] = "Not Running: Insufficient amount of resource: ngpus (R: 2 A: 0 T: 4)"
    values["Variable_List"] = (
        f"PBS_O_WORKDIR={job['workdir']},PBS_O_SHELL=/bin/bash," + "PBS_O_PATH=/x" * 9
    )
    lines = [f"Job Id: {job['id']}"]
    for name, value in values.items():
        line = f"    {name} = {value}"
        while len(line) > 79:
            lines.append(line[:79])
            line = f"\t{line[79:]}"
        lines.append(line)
    return "\n".join([*lines, ""])


def qselect(server: Server, words: list[str]) -> int:
    history = "-x" in words and not server.torque
    words = [word for word in words if word != "-x"]
    asked = dict(zip(words[::2], words[1::2], strict=True))
    for path in sorted(server.directory.glob("job-*.json")):
        job = json.loads(path.read_text())
        if asked.get("-u", job["owner"]) != job["owner"]:
            continue
        if (history or job["state"] not in "FC") and asked.get("-N", job["name"]) == job["name"]:
            print(job["id"])
    return 0


def qdel(server: Server, words: list[str]) -> int:
    for job_id in words:
        job = server.read(job_id)
        if job is None:
            return fail("unknown", f"qdel: Unknown Job Id {job_id}")
        if job["state"] in "FC":
            return fail("finished", f"qdel: Job has finished {job_id}")
        if job["state"] == "Q":
            server.write(job | {"state": "C" if server.torque else "F", "exit": 271})
        else:
            child = os.fork()
            if child == 0:
                os.setsid()
                end(job["sid"])
                os._exit(0)
    return 0


def qrerun(server: Server, words: list[str]) -> int:
    """End the processes of running jobs, and put the jobs back into the queue."""
    for job_id in words:
        job = server.read(job_id)
        if job is None:
            return fail("unknown", f"qrerun: Unknown Job Id {job_id}")
        server.change(job_id, requeue=True)
        end(job["sid"])
    return 0


def pbsnodes(server: Server, words: list[str]) -> int:
    print(
        f"{NODE}\n     Mom = {NODE}.cluster\n     state = free\n     resources_available.ngpus = "
        "4\n"
    )
    return 0


def main() -> int:
    server, name, words = Server(Path(sys.argv[1])), sys.argv[2], sys.argv[3:]
    if name != "mom":
        stdin = "" if sys.stdin is None or sys.stdin.isatty() else None
        with (server.directory / "calls").open("a") as calls:
            calls.write(
                json.dumps({"argv": [name, *words], "stdin": stdin, "cwd": str(Path.cwd())}) + "\n"
            )
        if (server.directory / "down").exists():
            return fail(
                "down", f"Connection refused\n{name}: cannot connect to server {SERVER} (errno=111)"
            )
    programs = {
        "qsub": qsub,
        "qstat": qstat,
        "qselect": qselect,
        "qdel": qdel,
        "qrerun": qrerun,
        "pbsnodes": pbsnodes,
        "mom": mom,
    }
    return programs[name](server, words)


if __name__ == "__main__":
    sys.exit(main())
