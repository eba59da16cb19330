# $1 program, $2 image, $3 image to pull, $4 when to pull, $5 platform or "". Pulls a missing image.

[ "$4" != never ] || exit 0
if [ "$4" != always ]; then
    for name in "$2" "$3"; do
        ! "$1" image inspect "$name" >/dev/null 2>&1 || exit 0
    done
fi
"$1" pull ${5:+--platform "$5"} "$3" >/dev/null
