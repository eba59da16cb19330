# $1 run directory, $2 job name, $3 "submit", then the options of the job; or $2 job id, $3
# "follow". A job that is put back into the queue may look ended for a moment, and what a node
# writes may appear seconds later. A job that waits is looked at every 5 s; the end of a server that
# runs is seen at once, because its exit code appears.

unset WORKBENCH_RUN
dir=$1 name=$2 how=$3 at=0 tries=0 silent=0 wait=0
shift 3
cd -- "$dir" || exit 1
of=$dir log=$dir/job.log out=$dir/job.out
if [ "$how" = submit ]; then
    (
        umask 077
        exported PATH
        for key in $(env | sed -n 's/^\(WORKBENCH_[A-Z_]*\)=.*/\1/p'); do exported "$key"; done
    ) >environment
    state=submitting
    say
    if ! submit "$@" 2>job.refused; then
        cat job.refused >&2
        find
        if [ -z "$job" ]; then
            ended="not submitted: $(sed -n '$p' job.refused)"
            say
            rm -f server environment
            exit 1
        fi
    fi
else
    job=$name
    [ -e job.sh ] || { place; trap 'rm -f server; exit 143' TERM; }
fi
state=submitted
say
while :; do
    copy "$log"
    [ "$phase" = running ] && [ -e "$of/job.exit" ] && [ "$wait" -gt 1 ] && wait=1
    if [ "$wait" -le 0 ]; then
        ls "$of" >/dev/null  # a client of NFS then sees new files
        phase=unknown host= left= limit= code= why=
        look
        wait=1
        case $phase in
            queued) wait=5 ;;
            running) [ -e "$of/job.began" ] && wait=10 ;;
            unknown) silent=$((silent + 1)) wait=$((silent < 6 ? silent * 5 : 30)) state="unknown: $why" ;;
            *) tries=$((tries + 1)) ;;
        esac
        case $phase in queued | running) tries=0 silent=0 && learn ;; esac
        say
    fi
    [ "$tries" -ge 8 ] && break
    [ "$tries" -ge 2 ] && { [ -n "$code" ] || [ -e "$of/job.exit" ]; } && break
    sleep 1
    wait=$((wait - 1))
done
copy "$log"
at=0
[ -z "$out" ] || copy "$out"
if [ -e job.sh ] && ! [ -e job.began ] && [ "${state%% *}" = FAILED ]; then
    state="$state: it has written nothing into $dir; does its node see this directory?"
fi
if [ -r "$of/job.exit" ]; then read -r code <"$of/job.exit"; fi
exit_code=$code pid= began_unix_s= ends_unix_s=
[ "$phase" = ended ] || state="the scheduler no longer knows it${code:+ (exit code $code)}"
ended="job $job ended: $state"
say
echo "workbench: $ended"
rm -f server environment
exit "${code:-1}"
