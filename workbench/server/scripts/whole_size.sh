# $@: safetensors files. Prints the size that each header says: its own length, and the end of its
# last tensor.

for file do
    length=$(od -An -v -tu8 -N8 -- "$file" | tr -d ' ')
    case $length in ''|*[!0-9]*|?????????*) printf 'whole=0 %s\n' "$file"; continue ;; esac
    end=$(tail -c +9 -- "$file" | head -c "$length" | tr -d ' \n' | grep -ao '"data_offsets":\[[0-9]*,[0-9]*' |
        sed 's/.*,//' | sort -n | tail -n 1)
    printf 'whole=%s %s\n' $((8 + length + ${end:-0})) "$file"
done
exit 0
