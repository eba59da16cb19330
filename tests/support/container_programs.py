"""Stand-ins for the programs of containers that are not packaged or cannot run on a test machine:
pct, LXC, Incus, LXD.

They take the same arguments, print the same lines and end with the same codes as the real ones
(pct.pm of pve-container, lxc_attach.c and lxc_info.c of LXC, the manual pages of Incus), record
each call, and run the command: in a podman container, entered as lxc-attach does (its namespaces,
the caller's process group, no shell between), or right here.
"""

from __future__ import annotations

from pathlib import Path

_COMMON = """
name_is() {{ [ -e "{states}/$1" ]; }}
state() {{ cat "{states}/$1"; }}
record() {{ for word; do printf '%s\\0' "$word"; done >>"{calls}"; printf '\\0' >>"{calls}"; }}
enter() {{
    container=$1
    shift
    {enter}
}}
record "${{0##*/}}" "$@"
"""
_HERE = 'exec env container=lxc "$@"'
_PODMAN = (
    "pid=$({podman} inspect --format '{{{{.State.Pid}}}}' \"$container\")\n"
    '    exec nsenter -t "$pid" -m -u -i -n -p -- env container=lxc "$@"'
)
_PROGRAMS = {
    "pct": """
case $1 in
    status|exec) name_is "$2" || { echo "Configuration file 'nodes/pve/lxc/$2.conf' does not exist" >&2; exit 2; } ;;
esac
case $1 in
    list)
        printf '%-10s %-10s %-12s %-20s\\n' VMID Status Lock Name
        for file in STATES/[0-9]*; do
            [ -e "$file" ] && printf '%-10s %-10s %-12s %-20s\\n' "${file##*/}" "$(cat "$file")" "" "ct-${file##*/}"
        done ;;
    status) echo "status: $(state "$2")" ;;
    exec)
        name=$2
        [ "$(state "$name")" = running ] || { echo "container '$name' not running!" >&2; exit 255; }
        [ "$3" = -- ] || { echo "400 too many arguments" >&2; exit 255; }
        shift 3
        enter "$name" "$@" ;;
    *) echo "ERROR: unknown command 'pct $1'" >&2; exit 255 ;;
esac
""",
    "lxc-attach": """
[ "$1 $2 $4" = "--clear-env -n --" ] || { echo "usage" >&2; exit 1; }
name=$3
shift 4
[ "$(state "$name" 2>/dev/null)" = RUNNING ] || { echo "lxc-attach: $name: Failed to get init pid" >&2; exit 1; }
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset HOME USER LOGNAME
enter "$name" "$@"
""",
    "lxc-info": """
[ "$1 $3 $4" = "-n -s -H" ] || { echo "usage" >&2; exit 1; }
name_is "$2" || { echo "$2 doesn't exist" >&2; exit 1; }
state "$2"
""",
    "lxc-ls": """
cd STATES && for name in *; do [ "$(cat "$name")" = RUNNING ] && echo "$name"; done
""",
    "incus": """
case $1 in
    list) cd STATES && for name in *; do
        case $2 in
            status=running) [ "$(cat "$name")" = RUNNING ] && echo "$name" ;;
            "^$name$") echo "$name,$(cat "$name")" ;;
        esac
    done ;;
    exec) name=$2; shift 4; enter "$name" "$@" ;;
esac
exit 0
""",
    "docker": """
case $1 in
    exec)
        name=$3
        name_is "$name" || { echo "Error: No such container: $name" >&2; exit 1; }
        shift 3
        enter "$name" setsid -w "$@" ;;
    inspect)
        name_is "$4" || { echo "[]"; echo "Error: No such container: $4" >&2; exit 1; }
        printf '[{"Id": "0123456789ab", "Name": "/%s", "State": {"Status": "%s"}}]\\n' "$4" "$(state "$4")" ;;
    ps) cd STATES && for name in *; do printf '0123456789ab\\t%s\\timage:1\\n' "$name"; done ;;
esac
""",
}
_PROGRAMS["squeue"] = """
case $1 in
    --me) cd STATES && for name in *; do [ "$(cat "$name")" = RUNNING ] && echo "$name|serve"; done; exit 0 ;;
esac
name_is "$5" || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
echo "$(state "$5")|c01 2026-11-22T21:20:30"
"""
_PROGRAMS["srun"] = """
name=${1#--jobid=}
[ "$(state "$name" 2>/dev/null)" = RUNNING ] || { echo "srun: error: Invalid job id specified" >&2; exit 1; }
[ "$2" = --overlap ] || { echo "srun: Job $name step creation temporarily disabled" >&2; exit 1; }
shift 2
while case $1 in --*) ;; *) false ;; esac; do shift; done
( enter "$name" "$@" ) && exit
code=$?
echo "srun: error: c01: task 0: Exited with exit code $code" >&2
exit "$code"
"""
_PROGRAMS["lxc"], _PROGRAMS["podman"] = _PROGRAMS["incus"], _PROGRAMS["docker"]
RUNNING = {"pct": "running", "docker": "running", "podman": "running"}  # others: "RUNNING"


class ContainerPrograms:
    """The stand-ins `names`, in the directory `bin`. The commands run in the containers of
    `podman`, the path of a podman; without it, on this machine."""

    def __init__(self, directory: Path, *names: str, podman: str | None = None) -> None:
        self.bin = directory / "stand-ins"
        self.states = directory / "states"
        self.calls_file = directory / "calls"
        for place in (self.bin, self.states):
            place.mkdir(parents=True, exist_ok=True)
        enter = _HERE if podman is None else _PODMAN.format(podman=podman)
        common = _COMMON.format(states=self.states, calls=self.calls_file, enter=enter)
        for name in names:
            file = self.bin / name
            file.write_text(
                "#!/bin/sh" + common + _PROGRAMS[name].replace("STATES", str(self.states))
            )
            file.chmod(0o755)

    def put(self, container: str, state: str = "running") -> None:
        """Make a container exist, in a state in the program's own words."""
        (self.states / container).write_text(f"{state}\n")

    def remove(self, container: str) -> None:
        (self.states / container).unlink()

    def hang_at_entering(self, program: str) -> None:
        """Make `program` never begin a command in a container."""
        file = self.bin / program
        file.write_text(
            file.read_text().replace("    exec)", "    exec) exec sleep 76.75 ;;\n    exec)")
        )

    def refuse_to_enter(self, program: str, message: str) -> None:
        """Make `program` say `message` whenever a command is to run in a container."""
        file = self.bin / program
        file.write_text(
            file.read_text().replace(
                "    exec)", f"    exec) echo '{message}' >&2; exit 127 ;;\n    exec)"
            )
        )

    def calls(self) -> list[list[str]]:
        """Return the recorded calls, each as a program's name and its arguments."""
        text = (
            self.calls_file.read_bytes().decode("utf-8", "surrogateescape")
            if self.calls_file.exists()
            else ""
        )
        return [call.split("\0") for call in text.split("\0\0") if call]
