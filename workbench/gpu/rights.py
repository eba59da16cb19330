"""Who may change GPU settings on a host, and what to do when we may not."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.hosts.base import Host, HostFacts
from workbench.model.errors import HostError

CAP_SYS_ADMIN = 1 << 21  # include/uapi/linux/capability.h; the driver asks for it in the initial user namespace


@dataclass(frozen=True, slots=True)
class Rights:
    """`prefix` goes before each command; `refusal` says why no command can be run, None when they can."""

    nvidia_smi: str = "nvidia-smi"
    prefix: tuple[str, ...] = ()
    refusal: str | None = None
    user: str = "you"
    by_sudoers: bool = False  # a line in sudoers would help

    def argv(self, uuid: str, *change: str) -> tuple[str, ...]:
        return (*self.prefix, self.nvidia_smi if self.prefix else "nvidia-smi", "-i", uuid, *change)

    def needed_for(self, argv: tuple[str, ...]) -> str | None:
        """What right this command lacks, with the sudoers line that allows exactly it; None when it may run."""
        if self.refusal is None:
            return None
        if not self.by_sudoers:
            return self.refusal
        words = " ".join(_sudoers_word(word) for word in argv[1:])
        line = f"{self.user} ALL=(root) NOPASSWD: {self.nvidia_smi} {words}"
        return f"{self.refusal}; this line in /etc/sudoers.d/workbench (visudo -f) allows it: {line}"


async def rights_on(host: Host) -> Rights:
    """Looked at, not tried: uid, capability and user namespace, then whether sudo would run nvidia-smi unasked."""
    facts = await host.facts()
    if facts.nvidia_smi is None:
        return Rights(refusal="nvidia-smi is not on this host's PATH: settings are made with it")
    smi, user = facts.nvidia_smi, facts.user or "you"
    if facts.simulated is not None:
        return Rights(smi)
    if facts.uid == 0:
        return Rights(smi, refusal=await _refusal_of_root(host, facts), user=user)
    asked = await _sudo(host, smi)
    if asked:
        return Rights(smi, ("sudo", "-n"), user=user)
    return Rights(smi, refusal=f"needs root on {host.name} ({user} is not, and sudo asks for a password)", user=user,
                  by_sudoers=True)  # fmt: skip


async def _refusal_of_root(host: Host, facts: HostFacts) -> str | None:
    if facts.initial_user_namespace is False:
        return (
            "root in this unprivileged container is not root for the driver, which answers NO_PERMISSION: "
            "change GPU settings on the machine that runs the container"
        )
    done = await host.run(["grep", "-i", "CapEff", "/proc/self/status"], timeout_s=10)
    words = done.out.split()
    if len(words) == 2 and not int(words[1], 16) & CAP_SYS_ADMIN:
        return (
            "root here lacks CAP_SYS_ADMIN, which the driver asks for: "
            "start the container with --cap-add=SYS_ADMIN, or change settings on its host"
        )
    return None


async def _sudo(host: Host, smi: str) -> bool:
    """Whether `sudo -n nvidia-smi -i …` is allowed without a password. Listing runs nothing."""
    try:
        done = await host.run(["sudo", "-n", "-l", smi, "-i", "0", "-pm", "1"], timeout_s=10)
    except HostError:
        return False
    return done.returncode == 0


def _sudoers_word(word: str) -> str:
    return "".join("\\" + c if c in ",:=\\" else c for c in word)
