# After locate_model.sh: `at` is the file or directory. Prints key=value lines, and the unchanged
# config.json last.
# shellcheck disable=SC2010 # names with other characters are kept

[ -e "$at" ] || { echo "looked=$at"; exit 0; }
if [ -f "$at" ]; then
    case $at in
        *-00001-of-*.gguf) set -- "${at%-00001-of-*}"-*-of-"${at##*-of-}" ;;
        *) set -- "$at" ;;
    esac
    for file do
        echo "bytes=$(stat -L -c %s -- "$file")"
        case $file in *.gguf) echo "gguf=$(realpath -- "$file")" ;; esac
    done
    exit 0
fi
[ -f "$at/config.json" ] || { echo "looked=$at/config.json"; exit 0; }
cd -- "$at" || exit 1
index=model.safetensors.index.json
if [ -f "$index" ]; then
    grep -q '"lm_head\.weight"' -- "$index" && echo "head=yes"
    names=$(head -c 33554432 -- "$index" | grep -o '"[^"/]*\.safetensors"' | tr -d '"' | sort -u)
elif [ -f model.safetensors ]; then
    names=model.safetensors
else
    names=$(ls | grep '\.safetensors$')
fi
set -f; all=0; IFS='
'
for name in $names; do
    if [ -f "$name" ]; then
        echo "bytes=$(stat -L -c %s -- "$name")"
        length=$(od -An -v -tu8 -N8 -- "$name" | tr -d ' ')
        case $length in ''|*[!0-9]*|????????*) length=0 ;; esac # more than 9999999 bytes
        all=$((all + length))
        if [ "$length" -gt 0 ] && [ "$all" -le 33554432 ]; then
            printf 'header='; tail -c +9 -- "$name" | head -c "$length" | tr -d '\n'; echo
        fi
        [ -f "$index" ] || { head -c 4194304 -- "$name" | grep -aq '"lm_head\.weight"' && echo "head=yes"; }
    else
        echo "absent=1"
    fi
done
echo "config="
head -c 1048576 -- config.json
exit 0
