"""A change beside its baseline: whether it is better, asked after each seed and of one try after another."""
