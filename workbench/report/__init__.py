"""Reports: benchmark results written as documents and data files, and result files of other tools
imported.

registry.py           the table of formats that Workbench writes or imports, for the command line and the screen
content.py            `Report`, the content of a report: results, a comparison, an experiment or a sweep
formats/              one module for each output format, with `render(report)`
imports/              one module for each tool whose result files can be imported
document.py           conversion of a report to titled blocks, for the formats that people read
blocks.py             the kinds of blocks: heading, table, plot, …
result_blocks.py      one result as blocks
quality_blocks.py     comparisons of answers as blocks
finding_blocks.py     the examination of a host, and advice, as blocks
in_force_blocks.py    the settings of a server, requested and in force, as blocks
series_blocks.py      comparisons, experiments and sweeps as blocks
tune_blocks.py        tunes as blocks
plots.py, svg.py      the data of each plot, and the drawing of plots as inline SVG
watch_night.py        a night of watches as blocks, Markdown and JUnit XML
proof_document.py     the file of a shareable proof: its data, its page and their checksums
format_values.py      numbers, changes and times as text
"""
