# $1: the file with known hashes; the others are files. Prints a line for each file as soon as its
# hash is known.

known=$1
shift
for file do
    about=$(stat -L -c '%s %Y' -- "$file") || { printf 'failed %s\n' "$file"; continue; }
    sum=$(WB_LINE="$about $file" awk 'substr($0, 66) == ENVIRON["WB_LINE"] { print $1; exit }' "$known" 2>/dev/null)
    if [ -z "$sum" ]; then
        sum=$(sha256sum <"$file") || { printf 'failed %s\n' "$file"; continue; }
        sum=${sum%% *}
        [ "$(stat -L -c '%s %Y' -- "$file")" = "$about" ] && printf '%s %s %s\n' "$sum" "$about" "$file" >>"$known"
    fi
    printf '%s %s\n' "$sum" "$file"
done
