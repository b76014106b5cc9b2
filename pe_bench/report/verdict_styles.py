"""The colours of verdicts and answers in a terminal, which only repeat their words and marks."""

STYLES = {
    "improves": "cyan",
    "better": "cyan",
    "holds": "green",
    "same": "green",
    "yes": "green",
    "degrades": "yellow",
    "no": "yellow",
    "worse": "bold red",
    "fails": "bold red",
    "unclear": "magenta",
}
