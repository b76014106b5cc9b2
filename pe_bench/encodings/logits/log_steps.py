r"""Logits that grow with the logarithm of the steps before a query: times 1 + beta ln(1 + floor(p / step)).

With `counts_itself` the position p counts from 1, as the number of keys does. With `smooth` there are no
steps: the factor is 1 + beta ln(max(1, p / step)).

$z_{ij} \mapsto \left( 1 + \beta \ln \left( 1 + \left\lfloor \frac{p}{\text{step}} \right\rfloor \right)
\right) z_{ij}$

Past the training length: defined; attention over more keys is as sharp as it was. With steps of the training
length the factor is 1 up to it, so that training is untouched.

Meta 2025, https://ai.meta.com/blog/llama-4-multimodal-intelligence/: Llama 4 (from 1, in layers without
positions: `llama4`), Ministral 3 and Mistral 4 (from 0, in every layer) and Inkling (from 1, smooth, in
global layers), as transformers has them: beta is 0.1 in all, `step` 8,192 in Llama 4 and the length before
any scaling in Mistral's models. No paper is known.

Steps of the training length are ours.
"""

from torch import Tensor

from pe_bench.encodings.base import ROTARY_ENCODINGS, AtLeast1, LayerEncoding, NotNegative, Side, precise


class LogSteps(LayerEncoding):
    """Options:

    step: tokens of one step
    beta: how much logits grow with the logarithm of the steps
    counts_itself: true: positions count from 1, as in Llama 4, not from 0
    smooth: true: position / step is not rounded down to whole steps
    """

    claims = frozenset({"prefix_consistent"})
    compatible_with = ROTARY_ENCODINGS | {"nope", "sinusoidal"}

    def __init__(
        self, step: AtLeast1, beta: NotNegative = 0.1, counts_itself: bool = False, smooth: bool = False
    ):
        super().__init__()
        self.step = step
        self.beta = beta
        self.first = int(counts_itself)
        self.smooth = smooth

    def logit_scale(self, queries: Side) -> Tensor:
        # Shifted positions may lie before 0.
        steps = (queries.position.double() + self.first) / self.step
        whole_steps = steps.floor().clamp(min=0)
        logarithm = steps.clamp(min=1).log() if self.smooth else whole_steps.log1p()
        factor = 1 + self.beta * logarithm
        return factor.to(precise(queries.raw.dtype)).unsqueeze(-1)
