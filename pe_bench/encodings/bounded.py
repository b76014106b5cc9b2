"""A learned number that stays within bounds, and whose gradient does not stop at them."""

from torch import Tensor


def bounded(parameter: Tensor, smallest: float, largest: float | None = None) -> Tensor:
    """Return the value within the bounds: a plain clamp would stop its gradient and hold it for good."""
    return parameter + (parameter.clamp(smallest, largest) - parameter).detach()
