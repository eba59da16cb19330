"""A report as one HTML file without scripts or external resources: light or dark by the reader's setting, black on
white in print. Values may come from strangers: each is escaped."""

from __future__ import annotations

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
    Text,
)
from workbench.report.content import Report
from workbench.report.document import document_of
from workbench.report.format_values import escape

_STYLE = """
:root { color-scheme: light dark; --text: #1d2024; --soft: #5b626c; --rule: #d9dde2; --paper: #fff; --tint: #f5f6f8;
  --warn: #9a5b00; --warn-tint: #fdf4e3; --bad: #b3261e; --bad-tint: #fdeceb; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e6ea; --soft: #9aa2ad; --rule: #353a42; --paper: #14171b;
  --tint: #1c2025; --warn: #e9b765; --warn-tint: #2b2317; --bad: #f2938c; --bad-tint: #331c1b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.65rem; line-height: 1.2; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .5rem 0; max-width: 46rem; }
.sub { color: var(--soft); margin: 0 0 1.4rem; }
.lead { font-size: 1.2rem; line-height: 1.4; font-weight: 600; margin: 1rem 0 1.2rem; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2.4rem; margin: 1.2rem 0 1.6rem; padding: 0; }
.figures div { min-width: 6rem; }
.figures dt, .figures small { color: var(--soft); font-size: .82rem; }
.figures dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--rule);
  overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody th { font-weight: 400; color: var(--soft); width: 16rem; }
.n { text-align: right; white-space: nowrap; }
pre { background: var(--tint); border: 1px solid var(--rule); border-radius: 4px; padding: .7rem .9rem;
  font-size: .82rem; line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; }
.alert { border-left: 4px solid var(--warn); background: var(--warn-tint); padding: .6rem .9rem; margin: 1rem 0; }
.alert strong { color: var(--warn); }
.alert ul { margin: .2rem 0 0; padding-left: 1.1rem; }
.alert.rejected { border-color: var(--bad); background: var(--bad-tint); }
.alert.rejected strong { color: var(--bad); }
.alert.simulated { border: 3px solid var(--bad); background: var(--bad-tint); text-align: center; }
.alert.simulated strong { color: var(--bad); font-size: 1.9rem; letter-spacing: .12em; display: block; }
.alert.simulated ul { list-style: none; padding: 0; }
figure { margin: 1.1rem 0 1.5rem; }
.plot { width: 100%; height: auto; display: block; font-family: inherit; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: .3rem; }
ul.items { padding-left: 1.1rem; max-width: 46rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--soft); }
footer { margin-top: 3rem; color: var(--soft); font-size: .82rem; }
@media print {
  :root { --text: #000; --soft: #444; --rule: #bbb; --paper: #fff; --tint: #fff; --warn-tint: #fff; --bad-tint: #fff; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  figure, tr, pre, .alert { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; }
}
""".strip()
# Should any markup slip through, `default-src 'none'` keeps the page from loading anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(report: Report) -> str:
    document = document_of(report)
    marked = "SIMULATED: " if document.simulated else ""
    body = "\n".join(_block(block) for block in document.blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(marked + document.title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(document.title)}</h1>\n<p class="sub">{escape(document.subtitle)}</p>\n{body}\n'
        f"<footer>Made by Workbench {escape(__version__)}</footer>\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
        case Text():
            return f'<p class="lead">{escape(block.text)}</p>' if block.lead else f"<p>{escape(block.text)}</p>"
        case Alert():
            lines = "".join(f"<li>{escape(line)}</li>" for line in block.lines)
            body = f"<ul>{lines}</ul>" if lines else ""
            return f'<div class="alert {block.kind}"><strong>{escape(block.title)}</strong>{body}</div>'
        case KeyMetrics():
            items = "".join(
                f"<div><dt>{escape(title)}</dt><dd>{escape(value)}</dd><small>{escape(detail)}</small></div>"
                for title, value, detail in block.items
            )
            return f'<dl class="figures">{items}</dl>'
        case Table():
            return _table(block)
        case Facts():
            rows = "".join(f'<tr><th scope="row">{escape(n)}</th><td>{escape(v)}</td></tr>' for n, v in block.rows)
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
            f"<{tag}{' class=n' if i in table.numeric else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    rows = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    head = cells(table.head, "th")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
