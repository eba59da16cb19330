# Prints how much of an image is here. $1 KiB in the directory of a pull, then the files `layers`
# ("BYTES DIGEST" lines) and `pull` (the output of docker or podman, which without a terminal name
# layers, but no bytes).

function unit(bytes) { return sprintf(total >= 1e9 || bytes >= 1e9 ? "%.1f" : "%.0f", bytes / scale()) }
function scale() { return total >= 1e9 || done >= 1e9 ? 1e9 : 1e6 }
function name() { return scale() == 1e9 ? "GB" : "MB" }
FILENAME == ARGV[1] {
    id = substr($2, 8, 12)
    if (!(id in size)) { size[id] = $1; total += $1 }
    next
}
/^Digest:|config/ { next }
{
    for (i = 1; i <= NF; i++) {
        word = $i
        sub(/^sha256:/, "", word)
        sub(/:$/, "", word)
        if (length(word) < 12 || word ~ /[^0-9a-f]/) continue
        id = substr(word, 1, 12)
        if (!(id in seen)) { seen[id] = 1; layers++ }
        if ($0 ~ /(Download|Pull) complete|exists/ && !(id in here)) { here[id] = 1; count++; done += size[id] }
    }
}
END {
    if (kib > 8) done += kib * 1024
    if (total && done >= total) printf "unpacking %s %s", unit(total), name()
    else if (total) printf "pulling %s of %s %s", unit(done), unit(total), name()
    else if (done) printf "pulling, %s %s so far", unit(done), name()
    else if (layers) printf "pulling, %d of %d layers", count, layers
    else printf "pulling the image"
}
