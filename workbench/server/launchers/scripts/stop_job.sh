# $1 job name, $2 job id or "", $3 run directory, $4 seconds. Cancels the job, waits for its end,
# and removes the words of its server. Prints why not.

name=$1 job=$2 dir=$3 seconds=$4
over() {
    rm -f "$dir/server" "$dir/environment"
    exit 0
}
[ -n "$job" ] || find
[ -n "$job$why" ] || over
[ -n "$job" ] || { echo "$why"; exit 1; }
refused=$(cancel 2>&1)
while [ "$seconds" -gt 0 ]; do
    phase=unknown state= why=
    look
    case $phase in ended | gone) over ;; esac
    sleep 1
    seconds=$((seconds - 1))
done
echo "job $job is still ${state:-in an unknown state}${refused:+: $refused}${why:+: $why}"
exit 1
