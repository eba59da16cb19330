# $1: how the names of the packages' directories begin; the others: where they may be installed.

packages=$1; shift
for package in $packages; do
    for prefix do
        for info in "$prefix"/lib/python3*/site-packages/"$package"-*.dist-info \
            "$prefix"/lib/python3*/dist-packages/"$package"-*.dist-info \
            "$prefix"/local/lib/python3*/dist-packages/"$package"-*.dist-info; do
            [ -d "$info" ] && echo "$info" && exit 0
        done
    done
done
exit 0
