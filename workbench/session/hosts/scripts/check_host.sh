# $1: Workbench's state directory, $2: a program to look for (may be ""), $3: "sudo" to ask sudo;
# the others are directories. Prints key=value lines, and those of the state directory.

[ -n "$2" ] && echo "program=$(command -v -- "$2")"
if [ "$3" = sudo ] && [ "$(id -u)" = 0 ]; then
    echo "sudo=not needed: the login is root"
elif [ "$3" = sudo ] && command -v sudo >/dev/null 2>&1; then
    if sudo -n -v </dev/null >/dev/null 2>&1; then echo "sudo=without a password"
    elif sudo -n -l </dev/null 2>/dev/null | grep -q NOPASSWD; then echo "sudo=without a password for some commands"
    else echo "sudo=asks for a password"; fi
fi
shift 3
for place; do
    case $place in "~"/*) place=$HOME/${place#"~"/} ;; esac
    [ -d "$place" ] && [ -r "$place" ] && echo "there=$place" || echo "absent=$place"
done
exit 0
