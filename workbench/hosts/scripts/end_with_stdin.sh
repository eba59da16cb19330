# Runs "$@" and ends it when stdin ends. Closing an SSH channel, or the end of the reader, does not
# end a process that never writes. All processes are in one process group of their own: sshd and
# LocalHost both start a new session. When stdin ends, the group gets TERM, and KILL 2 s later. When
# the command ends first, the group gets TERM (this ends `cat`) and the command's exit code is
# passed on. The shell's own "Terminated" is kept out of stderr. (TERM is repeated until the shell
# has ended: a process that has just been forked still has its parent's trap.)

trap : TERM HUP INT
exec 9>&2 2>/dev/null
{
    cat
    trap '' TERM
    exec >&-
    kill -s TERM 0
    sleep 2
    kill -s KILL 0
} 9>&- | {
    trap 'ended=1' TERM
    (exec "$@" 2>&9 9>&-)
    code=$?
    [ -n "$ended" ] && kill -s KILL 0
    trap '' TERM
    kill -s TERM 0
    (while { sleep 0.1 || sleep 1; } && kill -s 0 $$; do kill -s TERM 0; done) >/dev/null 9>&- &
    exit "$code"
}
