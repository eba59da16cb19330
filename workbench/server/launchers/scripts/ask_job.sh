# $1 job name, $2 job id or "", $3 run directory. Prints "job ID", "phase PHASE", "state TEXT",
# "code N" and "why TEXT".

name=$1 job=$2 dir=$3
[ -n "$job" ] || find
if [ -n "$job" ]; then
    phase=unknown
    look
elif [ -z "$why" ]; then phase=gone
else phase=unknown
fi
if [ -r "$dir/job.exit" ]; then read -r code <"$dir/job.exit"; fi
for key in job phase state code why; do
    eval "echo \"$key \$$key\""
done
