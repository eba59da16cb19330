# $1 run directory, $2 umask of the caller, then the command. The process writes its own id, then
# becomes the command. Not `"$@" &`: a background command of sh ignores SIGINT and SIGQUIT, and so
# would the server.

dir=$1 mask=$2
shift 2
start_of $$ >"$dir/starttime"
echo $$ >"$dir/pid"
umask "$mask"
exec "$@"
