"""Training in several processes: `group` is what a step needs of the others, `launch` starts them."""
