"""The colours of verdicts and answers in a terminal, which only repeat their words and marks."""

STYLES = {
    "improves": "cyan",
    "better": "cyan",
    "holds": "green",
    "solves": "green",
    "finds": "green",
    "same": "green",
    "yes": "green",
    "degrades": "yellow",
    "partial": "yellow",
    "partly": "yellow",
    "no": "yellow",
    "worse": "bold red",
    "fails": "bold red",
    "chance": "bold red",
    "unclear": "magenta",
}
