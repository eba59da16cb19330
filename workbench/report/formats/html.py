"""A report as one HTML file without scripts or external resources. It follows the light or dark
setting of the reader and is black on white in print. The template is page.html. All values are
escaped, because an imported result can contain any text."""

from __future__ import annotations

from pathlib import Path
from string import Template

from workbench import __version__
from workbench.report.blocks import (
    Alert,
    Block,
    CodeBlock,
    Facts,
    Fold,
    Heading,
    Items,
    KeyMetrics,
    PlotBlock,
    Table,
    TextBlock,
)
from workbench.report.content import Report
from workbench.report.document import document_of
from workbench.report.format_values import escape

_PAGE = Path(__file__).with_name("page.html")


def render(report: Report) -> str:
    document = document_of(report)
    return Template(_PAGE.read_text("utf-8")).substitute(
        title=escape(f"SIMULATED: {document.title}" if document.simulated else document.title),
        heading=escape(document.title),
        subtitle=escape(document.subtitle),
        blocks="\n".join(_block(block) for block in document.blocks),
        version=escape(__version__),
    )


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
        case TextBlock():
            return (
                f'<p class="lead">{escape(block.text)}</p>'
                if block.lead
                else f"<p>{escape(block.text)}</p>"
            )
        case Alert():
            lines = "".join(f"<li>{escape(line)}</li>" for line in block.lines)
            body = f"<ul>{lines}</ul>" if lines else ""
            return (
                '<div class="alert '
                f'{block.kind}"><strong>{escape(block.title)}</strong>{body}</div>'
            )
        case KeyMetrics():
            items = "".join(
                f"<div><dt>{escape(title)}</dt><dd>{escape(value)}</dd><small>{escape(detail)}</small></div>"
                for title, value, detail in block.items
            )
            return f'<dl class="figures">{items}</dl>'
        case Table():
            return _table(block)
        case Facts():
            rows = "".join(
                f'<tr><th scope="row">{escape(n)}</th><td>{escape(v)}</td></tr>'
                for n, v in block.rows
            )
            return f'<div class="wide"><table><tbody>{rows}</tbody></table></div>'
        case CodeBlock():
            return f"<pre><code>{escape(block.text)}</code></pre>"
        case PlotBlock():
            return f"<figure>{block.svg}<figcaption>{escape(block.caption)}</figcaption></figure>"
        case Items():
            return f'<ul class="items">{"".join(f"<li>{escape(line)}</li>" for line in block.lines)}</ul>'
        case Fold():
            inner = "".join(_block(one) for one in block.blocks)
            return f"<details><summary>{escape(block.title)}</summary>{inner}</details>"


def _table(table: Table) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in table.numeric else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    rows = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    head = cells(table.head, "th")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
