"""Shell code for jobs: the script that a scheduler runs on a node, and the keeper that follows the
job from the login host.

All of it is constant POSIX sh, for dash, bash and busybox. Inputs are arguments; the command line
and the environment of the server are in the file `server` of the run directory. The module of each
scheduler defines these shell functions:

submit WORDS    submit job.sh with the options WORDS and set `job` to its id, or print an error to stderr and return 1
find            set `job` to the id of the newest job called $name; leave it empty if there is none; set `why` if the
                scheduler does not answer
look            set `phase` (queued, running, ended, gone, unknown), `state`, `host` (the node), `left` (seconds) or
                `limit` (seconds from the start), `code` (exit code that the scheduler reports), and
                `why` if `phase` is unknown
place           for a job that another keeper or user has submitted: set `log` and `out` to the paths of the server's
                and of the scheduler's output, and `of` to their directory
cancel          ask the scheduler to end `job`
enter WORDS     run the command WORDS inside the job, on its first node; not defined for a scheduler that cannot

Files in the run directory, which the node and the login host must both see:
server          exports, working directory and command line of the server, with its secrets; removed when the job ends
environment     PATH of the login host and variables of Workbench, which the scheduler does not pass to the job
job.log         output of the server       job.out   output of the scheduler for the job
job.began       written on the node: lines "node NAME", "pid N", "gpus …", "restarts N", "began UNIX_S"
job.exit        exit code of the server
"""

from __future__ import annotations

from workbench.hosts.script_files import read_script

JOB_SCRIPT = read_script(__file__, "run_in_job.sh")

_SHARED_FUNCTIONS = read_script(__file__, "job_functions.sh")

_KEEP_SCRIPT = read_script(__file__, "keep_job.sh")

_STOP_SCRIPT = read_script(__file__, "stop_job.sh")

_ASK_SCRIPT = read_script(__file__, "ask_job.sh")


_FIND_SCRIPT = read_script(__file__, "find_job.sh")

FIND_INSIDE_JOB_SCRIPT = read_script(__file__, "find_inside_job.sh")


def job_commands_script(scheduler: str) -> str:
    """Return the shell script that prints the commands of the processes of a job. `scheduler` is
    the shell code of the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_FIND_SCRIPT}"


def keeper_script(scheduler: str) -> str:
    """Return the shell script of the keeper, the process that submits a job and follows it.
    `scheduler` is the shell code of the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_KEEP_SCRIPT}"


def cancel_script(scheduler: str) -> str:
    """Return the shell script that cancels a job and waits for its end. `scheduler` is the shell
    code of the scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_STOP_SCRIPT}"


def state_script(scheduler: str) -> str:
    """Return the shell script that prints the state of a job. `scheduler` is the shell code of the
    scheduler's functions."""
    return f"{_SHARED_FUNCTIONS}{scheduler}{_ASK_SCRIPT}"
