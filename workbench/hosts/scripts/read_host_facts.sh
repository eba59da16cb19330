# Prints key=value lines. With $1 = "ping" it first answers a line on stdin, from which the latency
# is measured.

if [ "$1" = ping ]; then IFS= read -r ping; echo "ping=$ping"; fi
say() { [ -n "$2" ] && printf '%s=%s\n' "$1" "$2"; }
first() { word=; { IFS= read -r word <"$2"; } 2>/dev/null; say "$1" "$word"; }
limit=$(command -v timeout) && limit="$limit -s KILL"
say user "$(id -un 2>/dev/null)"
say uid "$(id -u)"
say hostname "$(uname -n)"
say kernel "$(uname -r)"
say arch "$(uname -m)"
say os "$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)"
first boot_id /proc/sys/kernel/random/boot_id
say cpu_count "$(getconf _NPROCESSORS_ONLN 2>/dev/null || grep -c '^processor' /proc/cpuinfo)"
say memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)"
if python=$(command -v python3); then
    say python3 "$python"
    look='import platform; print(platform.python_version())'
    say python3_version "$(${limit:+$limit 5} python3 -c "$look" 2>/dev/null | head -c 64)"
fi
say nvidia_smi "$(command -v nvidia-smi)"
first uid_map /proc/self/uid_map
if command -v systemd-detect-virt >/dev/null 2>&1; then
    say detect_container "$(${limit:+$limit 2} systemd-detect-virt --container 2>/dev/null | head -c 64)"
    say detect_vm "$(${limit:+$limit 2} systemd-detect-virt --vm 2>/dev/null | head -c 64)"
fi
first container_manager /run/systemd/container
[ -e /run/.containerenv ] && say container_file podman
[ -e /.dockerenv ] && say container_file docker
if grep -q '^flags.*[[:space:]]hypervisor' /proc/cpuinfo 2>/dev/null; then say cpu_hypervisor yes; fi
first dmi_vendor /sys/class/dmi/id/sys_vendor
first dmi_product /sys/class/dmi/id/product_name
first hypervisor_type /sys/hypervisor/type
missing=
for tool in setsid sed grep head tail mktemp stat du; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
say missing_programs "$missing"
say init "$(tr '\0' ' ' </proc/1/cmdline 2>/dev/null | head -c 200)"
say home "$HOME"
say path "$PATH"
say shell "${SHELL-}"
say simulated "${WORKBENCH_SIM_PROFILE-}"
exit 0
