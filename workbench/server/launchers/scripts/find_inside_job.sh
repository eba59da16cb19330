# Runs in the job. $1 the pattern, $2 read_command.sh. Prints "proc PID PARENT" and the command of
# each process of this job whose command line has the pattern.

for file in $(grep -alE "$1" /proc/[0-9]*/cmdline 2>/dev/null | head -n 64); do
    dir=${file%/cmdline} pid=${file%/cmdline} pid=${pid#/proc/}
    [ "$pid" != $$ ] || continue
    tr '\0' '\n' <"$dir/environ" 2>/dev/null | grep -qxF "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
    echo "proc $pid $(sed -n 's/^PPid:[[:space:]]*//p' "$dir/status" 2>/dev/null)"
    sh -c "$2" sh "$pid"
done
exit 0
