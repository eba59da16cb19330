# $1 job id, $2 a pattern of command lines for grep -E, $3 read_command.sh, $4 find_inside_job.sh.
# Prints "phase PHASE", "state TEXT", "host NODE" and "why TEXT"; of a job that runs, also what
# find_inside_job.sh prints, or "refused WHY".

job=$1 pattern=$2 read=$3 inside=$4
phase=unknown
look
for key in phase state host why; do
    eval "echo \"$key \$$key\""
done
[ "$phase" = running ] || exit 0
answer=$(enter sh -c "$inside" sh "$pattern" "$read" 2>&1) ||
    printf 'refused %s\n' "$(printf '%s\n' "$answer" | sed -n '$p')"
printf '%s\n' "$answer"
