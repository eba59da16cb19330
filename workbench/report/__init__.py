"""Results as documents, and results of other tools as Workbench's own.

registry.py           every format that Workbench writes or imports: the front ends take their lists from here
content.py            `Report`, the content that a format writes: results, a comparison, an experiment or a sweep
formats/              one module for each output format, with `render(report)`
imports/              one module for each tool whose result files can be imported
document.py           a report as titled blocks, for the formats that people read
blocks.py             the kinds of blocks: heading, table, plot, …
result_blocks.py      one result as blocks
series_blocks.py      comparisons, experiments and sweeps as blocks
plots.py, svg.py      plots: the data of each, and drawing it as inline SVG
format_values.py      numbers, changes and times as text
"""
