# Prints "slurm" or "pbs", then what the programs answer: the jobs of this user. "none" if there is
# no scheduler. A line "refused WHY" stands for an answer that is an error.

me=$(id -un)
if command -v squeue >/dev/null 2>&1; then
    echo slurm
    answer=$(squeue -h -u "$me" -o '%i|%T|%P|%B|%b|%L|%r|%j' 2>&1)
elif command -v qstat >/dev/null 2>&1; then
    echo pbs
    answer=$(qselect -u "$me" 2>&1) && { [ -z "$answer" ] || answer=$(qstat -f $answer 2>&1); }
else
    echo none
fi || { printf 'refused %s\n' "$answer"; exit 0; }
printf '%s\n' "$answer"
