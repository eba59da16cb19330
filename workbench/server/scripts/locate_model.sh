# $1 model as the engine is given it, $2 working directory, $3 revision, $4 HF_HUB_CACHE, $5 HF_HOME
# (2 to 5 may be ""). Prints commit=…, or only looked=…; then `at` is the model's file or directory.
# A hub id is looked up in the layout of huggingface_hub's cache: models--org--name/refs/REVISION
# names the commit, snapshots/COMMIT contains the files.
# shellcheck disable=SC2164 # a directory that is missing is no error here

[ -n "$2" ] && cd -- "$2" 2>/dev/null
at=$1
case $at in "~"/*) at=$HOME/${at#"~"/} ;; esac
if [ ! -e "$at" ]; then
    folder=$hub/models--$(printf %s "$1" | sed 's,/,--,g')
    commit=$(cat "$folder/refs/${3:-main}" 2>/dev/null) || commit=$3
    at=$folder/snapshots/$commit
    [ -n "$commit" ] && [ -d "$at" ] || { echo "looked=$hub"; exit 0; }
    echo "commit=$commit"
fi
