# $1 run directory, $2 id of the process that has ended, $3 start_process.sh, then its arguments
# from the working directory on. Moves the files of the ended process into a directory of its own,
# then starts another process in the run directory, as a part of the same run (same token and time
# of start). The new directory has the name of the ended process: of two callers, only one can make
# it.

dir=$1 ended=$2 before=$1/before-$2 start=$3
shift 3
umask 077
used() { echo "error used"; exit 1; }
if [ -e "$dir/pid" ]; then
    # Of another process than the ended one: another caller has started it since.
    pid= began=
    { IFS= read -r pid <"$dir/pid"; IFS= read -r began <"$dir/starttime"; } 2>/dev/null
    [ -e "$dir/starttime" ] && [ "${pid:-None}-${began:-None}" = "$ended" ] || used
else
    # Another caller has just moved the files of the ended process, or was killed while it did.
    [ -n "$(find "$dir" -prune -mmin +1)" ] || used
fi
# Another caller that has made the directory writes the token again: then it may be empty here.
{ IFS= read -r token <"$dir/token" && mkdir -- "$before"; } 2>/dev/null ||
    { [ -d "$before" ] && used; echo "error write"; exit 1; }
for name in log pid starttime sid sid_starttime boot_id started exit exit.tmp ended; do
    [ ! -e "$dir/$name" ] || mv -f -- "$dir/$name" "$before/$name" || { echo "error write"; exit 1; }
done
sh -c "$start" sh "$dir" "$token" "$@"
code=$?
cat "$before/started" >"$dir/started"
exit "$code"
