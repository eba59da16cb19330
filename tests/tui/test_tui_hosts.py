"""The list of hosts: labels, containers, and adding a host."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow
def test_a_host_is_added_from_the_list(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("h")
        await d.until(lambda: "ctrl+n add" in d.text)
        await d.press("ctrl+n")
        await d.until(lambda: "Add a host to hosts.toml" in d.text)
        await d.press(
            *"llm", "tab", *"proxmox", "tab", *"pct", "colon", *"101", "tab", *"the box", "enter"
        )
        await d.until(lambda: d.session.called("add_host"))
        assert d.session.called("add_host")[0][1:] == ("llm", "proxmox", "pct:101", "the box")
        await d.until(lambda: "the box  proxmox/pct:101  hosts.toml" in d.text)
        await d.press("enter")  # the cursor is on the new host
        await d.until(lambda: d.session.called("switch_host"))
        assert d.session.called("switch_host")[0][1] == "llm"

    drive(scenario)


def test_escape_in_the_form_of_a_new_host_leads_back_to_the_list(drive: Any) -> None:
    """It closed the list as well."""

    async def scenario(d: Any) -> None:
        await d.press("h")
        await d.until(lambda: "ctrl+n add" in d.text)
        await d.press("ctrl+n")
        await d.until(lambda: "Add a host to hosts.toml" in d.text)
        await d.press("escape")
        await d.until(lambda: "ctrl+n add" in d.text)
        await d.press("escape")
        await d.until(lambda: "ctrl+n add" not in d.text)
        assert not d.session.called("add_host")

    drive(scenario)


def test_the_list_is_searched_by_label(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.add_host("xx-7", "me@10.0.0.7", label="left Spark")
        await d.press("h", *"left", "enter")
        await d.until(lambda: d.session.called("switch_host"))
        assert d.session.called("switch_host")[0][1] == "xx-7"

    drive(scenario)
