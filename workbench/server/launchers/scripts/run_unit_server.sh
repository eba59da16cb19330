# The process of the unit: $1 run directory, $2 working directory or "", then the engine's command.

. "$1/environment" || exit 126
if [ -n "$2" ]; then cd -- "$2" || exit 126; fi
shift 2
exec "$@"
