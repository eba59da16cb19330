"""The keys that explain the terms on the screen or a chosen term, and the key that opens the list
of all keys."""

from __future__ import annotations

from workbench.model.flags import FlagRow
from workbench.tui.cells import Painted, Row
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.base import PickModal
from workbench.tui.pages.base import Page
from workbench.tui.pages.texts import flag_page_rows, glossary_term_rows, help_rows
from workbench.tui.panes import ALL_KEYS, PANES, PLACES
from workbench.tui.panes.launch import Launch

IN_SIGHT = "Terms on the screen"


class ExplainController(Controller):
    def open_key_list(self) -> None:
        """Open the page of all keys."""
        titles = [(pane.NAME, f"In {number} {pane.TITLE}") for number, pane in enumerate(PANES, 1)]
        titles += PLACES.items()
        self.services.pages.open(Page("Keys", lambda width: help_rows(ALL_KEYS, titles, width)))

    def explain_visible_terms(self) -> None:
        """Open a page that explains the flag under the cursor of the Launch pane. The page also
        explains each glossary term that the active pane or open page, the GPU rows or the status
        bar contains. If this page is open already, open the page of all keys instead."""
        from workbench.store import glossary

        page, panes = self.services.pages.visible_page, self.services.panes
        if page is not None and page.kind == IN_SIGHT:
            page.close_page()
            self.open_key_list()
            return
        flag = (
            self.pane_of_type(Launch).current_item
            if page is None and panes.active == Launch.NAME
            else None
        )
        shown: Painted = page if page is not None else panes.current_pane
        shown_title = page.title if page is not None else panes.current_pane.TITLE
        shown_terms = glossary.terms_in_text(shown.drawn_text)
        text_above = f"{panes.strip.drawn_text}\n{self.services.status_bar.drawn_text}"
        terms_above = [
            term for term in glossary.terms_in_text(text_above) if term not in shown_terms
        ]
        titled_terms = ((f"Words of {shown_title}", shown_terms), ("Above", terms_above))

        def make_term_rows(width: int) -> list[Row]:
            made: list[Row] = [(("? again, or F1, lists every key.", "dim"),)]
            if flag is not None:
                made += [(), ((flag.name, "title"),), *self._flag_explanation_rows(flag, width)]
            for title, terms in titled_terms:
                if terms:
                    made += [(), ((title, "title"),), *glossary_term_rows(terms, width)]
            return made

        self.services.pages.open(Page(IN_SIGHT, make_term_rows))

    def _flag_explanation_rows(self, flag: FlagRow, width: int) -> list[Row]:
        plans = self.session.plans
        notes = plans.preset_texts_about_flag(flag.name) if not flag.is_env else ()
        estimate: str | None = None
        if self.state.plan is not None:
            estimate = self.state.plan.memory
        return flag_page_rows(flag, notes, estimate, width)

    async def pick_and_explain_term(self) -> None:
        """Ask for a term of the glossary, and explain it."""
        from workbench.store import glossary

        items = [
            (term.term, ", ".join((term.term, *term.seen)), "text")
            for term in glossary.read_all_terms()
        ]

        def explain_chosen_term(name: str | None) -> None:
            if name is None:
                return
            same = tuple(term for term in glossary.read_all_terms() if term.term == name)
            found = same or glossary.find_terms(name)
            if found:
                self.services.pages.open(
                    Page("Explanation", lambda width: glossary_term_rows(found, width))
                )

        await self.app.push_screen(
            PickModal("Explain a word", items, filter=True), explain_chosen_term
        )
