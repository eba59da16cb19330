# $1: a process. Prints its words and its environment, each on a line. A line feed in them becomes
# the character 036. "cut" if its words are longer than what is read; "changed" if it became another
# program, or ended, meanwhile.

words() { head -c 131073 <"/proc/$1/cmdline" 2>/dev/null | cksum; }
[ -r "/proc/$1/cmdline" ] || exit 3
before=$(words "$1")
[ "$(head -c 131073 <"/proc/$1/cmdline" | wc -c)" -gt 131072 ] && echo cut
echo "cwd $(readlink "/proc/$1/cwd" 2>/dev/null)"
tr '\0\n' '\n\036' <"/proc/$1/cmdline" | head -c 131072 | sed 's/^/arg /'
tr '\0\n' '\n\036' <"/proc/$1/environ" 2>/dev/null | head -c 262144 | sed 's/^/env /'
head -c 1 "/proc/$1/environ" >/dev/null 2>&1 && echo readable
[ "$(words "$1")" = "$before" ] || echo changed
exit 0
