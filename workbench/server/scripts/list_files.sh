# Prints a line per file: size, modification time, digest, name.

if [ -d "$at" ]; then
    set -- "$at"/*.safetensors "$at"/*.bin "$at"/*.gguf "$at"/*.pt "$at"/*.pth "$at"/*.json "$at"/*.model "$at"/*.jinja
else
    case $at in
        *-00001-of-*.gguf) set -- "${at%-00001-of-*}"-*-of-"${at##*-of-}" ;;
        *) set -- "$at" ;;
    esac
fi
for file do
    [ -f "$file" ] || continue
    digest=$({ head -c 65536 -- "$file"; tail -c 65536 -- "$file"; } | sha256sum) || exit 1
    echo "file=$(stat -L -c '%s %Y' -- "$file") ${digest%% *} ${file##*/}"
done
exit 0
