# Prints the network namespace, then the table of the kernel from which the own addresses follow.

readlink /proc/self/ns/net
cat /proc/net/fib_trie 2>/dev/null
exit 0
