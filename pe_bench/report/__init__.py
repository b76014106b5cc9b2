"""Rows in, tables out: as text, Markdown, LaTeX, charts, a page of HTML and a data frame."""
