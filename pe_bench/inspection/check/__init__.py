"""The conformance suite: what is checked of every encoding, pe-bench's own and a person's alike."""
