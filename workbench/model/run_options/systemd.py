"""The options of the launcher `systemd`."""

from __future__ import annotations

from workbench.model.run_options.option import RunOption, make_pattern_checker

OPTIONS = (
    RunOption(
        "scope",
        "whose service manager runs the unit: that of the user, or that of the system (root, or "
        "sudo without a "
        "password)",
        choices=("user", "system"),
        default="user",
    ),
    RunOption(
        "restart",
        "whether systemd starts the server again after it has ended by itself (Restart=)",
        choices=("no", "on-failure", "always"),
        default="no",
    ),
    RunOption(
        "installed",
        "whether the unit is a file that stays: no (it ends with the server), yes, or boot (it "
        "also starts at boot)",
        choices=("no", "yes", "boot"),
        default="no",
    ),
    RunOption(
        "unit",
        "name of an installed unit; without it, the name of the preset",
        check=make_pattern_checker(
            r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,200}", "a name of letters, digits and the signs : _ . -"
        ),
    ),
    RunOption(
        "property",
        "a further property of the unit, such as MemoryMax=200G or Nice=-5; repeatable",
        check=make_pattern_checker(r"[A-Za-z][A-Za-z0-9]*=[^\0\n\r]*", "a property as NAME=VALUE"),
        repeatable=True,
        foreign="sets a property of the systemd unit, which can run other programs or give the "
        "server more rights",
    ),
)
