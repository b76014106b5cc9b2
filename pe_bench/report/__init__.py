"""From rows and scores to tables, and tables as text, markup and a data frame."""
