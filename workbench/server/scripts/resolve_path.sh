# $1 a path that may begin with ~/; $2 HF_HUB_CACHE, $3 HF_HOME: prints the path, or that of the
# hub's cache for "".

place=$1
case $place in "~"/*) place=$HOME/${place#"~"/} ;; esac
printf '%s\n' "${place:-$hub}"
