"""The keys of the page about alerts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.tui.bindings import ALERT_KEYS
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import time_of_day_text
from workbench.tui.pages.base import Page

if TYPE_CHECKING:
    from workbench.tui.cells import Row
    from workbench.tui.controllers import Controllers


class AlertController(Controller):
    def __init__(self, controllers: Controllers) -> None:
        super().__init__(controllers)
        self._desktop_problem = ""

    def open_alerts_page(self) -> None:
        """Open the page with the rules of the alerts, their state and the last alerts."""
        from workbench.tui.alert_signals import desktop_notification_problem

        page = Page(f"Alerts of {self.state.host.name}", self._make_alert_rows, kind="alerts")
        page.replace_keys(ALERT_KEYS, self.controllers)
        self.services.pages.open(page)

        def show_desktop_problem(problem: str) -> None:
            self._desktop_problem = problem
            page.draw()

        self.run_in_background(
            desktop_notification_problem(), show_desktop_problem, exclusive_group="desktop problem"
        )

    def _make_alert_rows(self, width: int) -> list[Row]:
        from workbench.tui.pages.alerts import alerts_page_rows

        return alerts_page_rows(
            self.session.alerts.rule_rows(),
            self.state.alerts,
            self._delivery_problem_texts(),
            width,
        )

    def _delivery_problem_texts(self) -> Iterator[str]:
        """Yield why the desktop or the webhook does not get alerts as configured."""
        alerts = self.session.alerts
        config, webhook = alerts.config, alerts.webhook
        if config.desktop and self._desktop_problem:
            yield self._desktop_problem
        if config.webhook and not config.webhook_url:
            yield "webhook: no webhook_url is set in [alerts] of config.toml, so nothing is sent"
        if webhook is None:
            return
        if webhook.problem:
            at = time_of_day_text(webhook.problem_unix_s)
            yield f"webhook {config.masked_webhook_url}, at {at}: {webhook.problem}"
        if webhook.dropped:
            yield f"webhook: {webhook.dropped} dropped, because too many waited"

    def raise_test_alert(self) -> None:
        """Raise a test alert, which has every effect that any rule has."""
        self.session.alerts.raise_test_alert()

    def toggle_all_alert_rules(self) -> None:
        """Turn the bell, the mark and the title on for all rules. If they are on already, set them
        back to what they were before."""
        alerts = self.session.alerts
        on = not alerts.are_all_on

        def switch_rules_and_return_true() -> bool:
            alerts.switch_all(on)
            return True

        text = "the bell, the mark and the title are as before"
        if on:
            text = "all rules ring the bell, set a mark and show in the title of the window"
        if self.run_or_show_error(switch_rules_and_return_true):
            self.show_message(text)
