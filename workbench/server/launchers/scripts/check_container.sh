# $1 program, $2 image, $3 image to pull, $4 GPUs (cdi, gpus, none), $5 path of the model or "".
# Prints lines of a key and a value.
# shellcheck disable=SC2010 # grep only looks for an ending

command -v "$1" >/dev/null 2>&1 || { echo missing; exit 0; }
[ -z "$5" ] || [ -e "$5" ] || echo 'no-model'
if ! problem=$("$1" ps --quiet 2>&1 >/dev/null); then
    printf '%s\n' "$problem" | sed 's/^/problem /'
    exit 0
fi
echo "uid $(id -u)"
form='{{.Os}}/{{.Architecture}}{{range .RepoDigests}} {{.}}{{end}}'
inspect() { "$1" image inspect --format "$form" "$2"; }
unsure=
for name in "$2" "$3"; do
    image=$(inspect "$1" "$name" 2>/dev/null) && break
    answer=$(inspect "$1" "$name" 2>&1 >/dev/null) && image=$(inspect "$1" "$name" 2>/dev/null) && break
    code=$?
    printf '%s\n' "$answer" | grep -qiE "$no_image" && continue
    unsure="exit code $code${answer:+: $(printf '%s\n' "$answer" | tail -n 1)}"
    [ "$code" -le 128 ] || unsure="it was ended by signal $((code - 128))"
done
if [ -n "$image" ]; then echo "image $image"; elif [ -n "$unsure" ]; then echo "unsure $unsure"; fi
[ "$4" = none ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || [ -e /dev/nvmap ] || echo 'no-gpu'
[ "$4" != cdi ] || ls /etc/cdi /var/run/cdi 2>/dev/null | grep -q '\(yaml\|json\)$' || echo 'no-cdi'
if command -v loginctl >/dev/null 2>&1; then
    echo "linger $(loginctl show-user --property=Linger --value "$(id -un)" 2>/dev/null)"
fi
exit 0
