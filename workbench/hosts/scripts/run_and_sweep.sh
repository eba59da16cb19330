# $1: a word that no other process has. Runs the other arguments, then ends what they left; keeps
# their exit code. @SWEEP@: the code of end_marked_processes.sh.

mark=$1
shift
WORKBENCH_SWEPT=$mark "$@"
code=$?
set -- "$mark"
@SWEEP@
exit "$code"
