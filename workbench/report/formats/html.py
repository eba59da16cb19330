"""A report as one HTML file without scripts or external resources. It follows the light or dark
setting of the reader and is black on white in print. The template is page.html. All values are
escaped, because an imported result can contain any text."""

from __future__ import annotations

from collections.abc import Iterable
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
from workbench.report.document import document_from_report
from workbench.report.format_values import escape_markup

_PAGE = Path(__file__).with_name("page.html")


def render(report: Report) -> str:
    document = document_from_report(report)
    title = f"SIMULATED: {document.title}" if document.simulated else document.title
    return Template(_PAGE.read_text("utf-8")).substitute(
        title=escape_markup(title),
        heading=escape_markup(document.title),
        subtitle=escape_markup(document.subtitle),
        blocks="\n".join(map(_block_html, document.blocks)),
        version=escape_markup(__version__),
    )


def _block_html(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{escape_markup(block.text)}</h{block.level}>"
        case TextBlock():
            kind = ' class="lead"' if block.lead else ""
            return f"<p{kind}>{escape_markup(block.text)}</p>"
        case Alert():
            body = f"<ul>{_items_html(block.lines)}</ul>" if block.lines else ""
            return (
                '<div class="alert '
                f'{block.kind}"><strong>{escape_markup(block.title)}</strong>{body}</div>'
            )
        case KeyMetrics():
            return f'<dl class="figures">{"".join(map(_key_metric_html, block.items))}</dl>'
        case Table():
            return _table_html(block)
        case Facts():
            rows = "".join(
                f'<tr><th scope="row">{escape_markup(n)}</th><td>{escape_markup(v)}</td></tr>'
                for n, v in block.rows
            )
            return f'<div class="wide"><table><tbody>{rows}</tbody></table></div>'
        case CodeBlock():
            return f"<pre><code>{escape_markup(block.text)}</code></pre>"
        case PlotBlock():
            caption = escape_markup(block.caption)
            return f"<figure>{block.svg}<figcaption>{caption}</figcaption></figure>"
        case Items():
            return f'<ul class="items">{_items_html(block.lines)}</ul>'
        case Fold():
            inner = "".join(map(_block_html, block.blocks))
            return f"<details><summary>{escape_markup(block.title)}</summary>{inner}</details>"


def _key_metric_html(item: tuple[str, str, str]) -> str:
    title, value, detail = map(escape_markup, item)
    return f"<div><dt>{title}</dt><dd>{value}</dd><small>{detail}</small></div>"


def _items_html(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape_markup(line)}</li>" for line in lines)


def _table_html(table: Table) -> str:
    def cells_html(row: tuple[str, ...], tag: str) -> str:
        written = ""
        for i, cell in enumerate(row):
            kind = " class=n" if i in table.numeric else ""
            written += f"<{tag}{kind}>{escape_markup(cell)}</{tag}>"
        return written

    rows = "".join(f"<tr>{cells_html(row, 'td')}</tr>" for row in table.rows)
    head = cells_html(table.head, "th")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
