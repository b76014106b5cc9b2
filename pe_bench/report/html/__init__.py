"""The report as one page that needs nothing else: no network, no other file, no other program."""
