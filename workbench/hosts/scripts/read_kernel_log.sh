# Prints "read" and the lines of the kernel's log that report the end of a process or a fault of a
# GPU. Prints "denied" if this user may not read that log.

limit=
lines=$(kernel_log) || { echo denied; exit 0; }
echo read
printf '%s\n' "$lines" |
    grep -aiE 'killed process|oom-kill:|segfault at|general protection|trap |NVRM: Xid' | tail -n 300
exit 0
