"""A learned number that stays within bounds, and whose gradient does not stop at them."""

from torch import Tensor


def bounded(parameter: Tensor, smallest: float, largest: float | None = None) -> Tensor:
    """Within the bounds; a plain clamp would stop the gradient, and hold a value there for good."""
    return parameter + (parameter.clamp(smallest, largest) - parameter).detach()
