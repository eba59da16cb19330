# $1 is the path or name to look for first (may be empty), the others are the engine's own names.
# Prints key=value lines: the first program found, the engine's own one, and those in the usual
# places of venvs, conda and uv. Starts none of them. Ignores relative entries of PATH: files in the
# current directory may come from a stranger.

first=$1; shift
look() {
    path=
    case $1 in
        /*) [ -f "$1" ] && [ -x "$1" ] && path=$1; return ;;
        */*) return ;;
    esac
    set -f; ifs=$IFS; IFS=:
    for entry in $PATH; do
        case $entry in /*) [ -f "$entry/$1" ] && [ -x "$entry/$1" ] && path=$entry/$1 && break ;; esac
    done
    IFS=$ifs; set +f
}
own=
for name do look "$name"; own=$path; [ -n "$own" ] && break; done
[ -n "$first" ] && look "$first"
if [ -d "$first" ]; then echo "fault=is a directory"
elif [ -e "$first" ]; then echo "fault=is not an executable file"
fi
if [ -n "$path" ]; then
    echo "path=$path"
    echo "own=$own"
    echo "real=$(readlink -f -- "$path")"
    echo "modified=$(stat -L -c %Y -- "$path" 2>/dev/null || stat -L -f %m -- "$path" 2>/dev/null)"
    echo "simulated=${WORKBENCH_SIM_PROFILE:-}"
    head -c 2 -- "$path" | grep -q '#!' && head -n 3 -- "$path" | head -c 1000 | sed 's/^/script=/'
fi
echo "PATH=$PATH"
@READ_GPU_ALLOTMENT@
@COUNT_CORES@
for name do
    for place in "$HOME"/venv*/bin "$HOME"/.venv*/bin "$HOME"/*/.venv/bin "$HOME"/*/venv/bin "$HOME"/.local/bin \
        "$HOME"/.local/share/uv/tools/*/bin "$HOME"/.local/share/pipx/venvs/*/bin "$HOME"/.virtualenvs/*/bin \
        "$HOME"/*conda*/envs/*/bin "$HOME"/*forge*/envs/*/bin "$HOME"/.conda/envs/*/bin "$HOME"/*/envs/*/bin \
        /opt/*/bin /opt/*/venv/bin /opt/*/.venv/bin /opt/*conda*/envs/*/bin /srv/*/bin /srv/*/.venv/bin; do
        [ -x "$place/$name" ] && [ ! -d "$place/$name" ] && echo "elsewhere=$place/$name"
    done
done
exit 0
