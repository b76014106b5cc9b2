"""The properties that are checked, in the order in which they are shown."""

from collections.abc import Callable
from typing import NamedTuple

from pe_bench.errors import first_line
from pe_bench.inspection.check import (
    basics,
    calls,
    device,
    layers,
    model,
    options,
    precision,
    reach,
    reference,
    sizes,
    slopes,
)
from pe_bench.inspection.check.case import Case, where
from pe_bench.inspection.check.finding import Finding
from pe_bench.inspection.check.hooks import HOOKS, line_of, overridden
from pe_bench.system.signals import INTERRUPTIONS


class Property(NamedTuple):
    """A property that an encoding must have, or may claim."""

    name: str
    means: str
    look: str  # where to look when it fails
    check: Callable[[Case], Finding]


# The first of these that fails ends the check: without it, all others would fail, with wrong advice.
BASICS = (
    Property(
        "shape",
        "each hook returns the shape that base.py gives for it",
        "the line named; a missing [:, None], or axes in another order",
        basics.shapes_fit,
    ),
    Property(
        "finite",
        "each hook returns finite values",
        "the line named: a logarithm or a power at distance 0, a division by 0, or keys hidden by "
        "an infinite bias, which is for `visible`",
        basics.values_are_finite,
    ),
    Property(
        "runs",
        "a decoder with the encoding runs forwards and backwards",
        "the line named",
        basics.code_runs,
    ),
    Property(
        "repeatable",
        "the same call gives the same output twice",
        "random numbers or dropout in a hook: draw them in `ids`, from the given generator",
        basics.is_repeatable,
    ),
)
PROPERTIES = (
    *BASICS,
    Property("causal", "no output has a gradient at a later token", "visible, adjust, embed", model.causal),
    Property(
        "lookahead",
        "no output depends on which tokens follow",
        "ids and embed, where they read tokens",
        model.independent_of_the_future,
    ),
    Property(
        "prefix",
        "a prefix is treated as if nothing followed",
        "what reads the number of keys, k.shape[-2], or the largest position",
        model.prefix_consistent,
    ),
    Property(
        "shift",
        "moving all positions changes nothing, where claimed, and something, where not",
        "transform, bias and scores: a position where a difference of two should be; or `claims`",
        model.shift_invariant,
    ),
    Property(
        "batch",
        "sequences of a batch do not meet, nor do their ids",
        "a sum or a maximum over the batch; ids of the first sequence taken for all; a shared cache",
        calls.batch_independent,
    ),
    Property(
        "pure",
        "the same input gives the same output, whatever came before",
        "a cache: its key must hold all that its values depend on, every id among it",
        calls.pure,
    ),
    Property(
        "effect",
        "the output differs from that of no encoding",
        "a misspelt hook; a result not returned; parameters that cancel",
        model.acts,
    ),
    Property(
        "blocks",
        "blocks of queries are the whole",
        "queries.position and queries.index, where an arange was taken; hooks that read other rows",
        layers.blocks_are_the_whole,
    ),
    Property(
        "positions",
        "position ids are read, and no others counted",
        "q_position and queries.position, where an arange or an index was taken",
        layers.positions_are_read,
    ),
    Property(
        "score_scale",
        "scores are multiplied by the scale that they are given",
        "scores: a term beside scale * (...)",
        layers.scores_are_scaled,
    ),
    Property(
        "masked_weights",
        "hidden keys have a weight of exactly 0",
        "weights: masked logits are -inf, and no large number",
        layers.hidden_keys_weigh_nothing,
    ),
    Property(
        "ranges",
        "ranges hold every key that is visible",
        "ranges, against visible: the first query of a chunk sees the farthest key",
        layers.ranges_hold_what_is_seen,
    ),
    Property(
        "fused",
        "the fused path is the reference, in float64 and float32",
        "columns and distance_bias, against bias; the scale: 1/sqrt(d_head) multiplies scores alone",
        layers.fused_is_the_reference,
    ),
    Property(
        "half_precision",
        "half-precision queries and keys keep exact positions",
        "positions, angles or sums that were cast to the type of q",
        precision.half_precision_keeps_positions,
    ),
    Property(
        "long_context",
        "the last of 65,536 tokens are finite and exact",
        "angles and cumulative sums in float32; exponents that overflow",
        precision.finite_at_65536_tokens,
    ),
    Property("norm", "queries and keys keep their norms, where claimed", "transform", layers.norm_preserving),
    Property("decay", "the bias falls with distance, where claimed", "distance_bias", layers.decaying),
    Property(
        "extrapolation",
        "past the training length it does what it says",
        "past_training, and what is done with positions that no parameter was trained for",
        model.past_the_training_length,
    ),
    Property(
        "gradients",
        "every parameter gets a gradient, and a finite one",
        "a detach, or a part that is not used",
        model.parameters_matter,
    ),
    Property(
        "slopes",
        "gradients are the slopes of the output, and no parameter is inert",
        "a detach, a backward of its own; a phase or scale of queries and keys that cancels",
        slopes.gradients_are_slopes,
    ),
    Property(
        "heads",
        "an encoding of each head tells heads apart that share a key",
        "a parameter or constant that is n_kv_heads long and repeated",
        layers.heads_that_share_a_key_differ,
    ),
    Property(
        "sight",
        "a query sees as many of the latest keys as `window` says",
        "visible and ranges: `distance < window`, because the query's own key is one of them",
        reach.sees_its_window,
    ),
    Property(
        "wide_heads",
        "heads wider than 64 are treated as narrow ones",
        "a width that is written as a number; d_head, where half of it was meant",
        sizes.wide_heads_are_as_narrow_ones,
    ),
    Property(
        "many_keys",
        "no number of keys or position changes what an encoding does",
        "a table, a cache or a type of whole numbers that ends; a number of keys that is compared",
        sizes.no_number_of_keys_is_a_limit,
    ),
    Property(
        "option_ends",
        "options work as small and as large as they can be",
        "what the constructor should refuse with an error; a bound that it puts in silently",
        sizes.options_work_at_their_ends,
    ),
    Property(
        "device",
        "what a hook makes is made where its inputs are",
        "torch.arange, tensor, zeros, .. without device=, or a tensor that is no buffer",
        device.follows_the_device,
    ),
    Property(
        "options",
        "every option of the constructor is read",
        "__init__: a misspelt or forgotten name",
        options.options_are_read,
    ),
    Property(
        "state",
        "only parameters are saved, they are all that is needed, and every tensor moves with the model",
        "register_buffer(..., persistent=False); random numbers that no parameter holds",
        model.state_is_parameters,
    ),
    Property(
        "scale",
        "the input keeps its scale at the start",
        "embed and the initial values",
        model.starts_at_the_usual_scale,
    ),
    Property("ids", "position ids follow the given generator", "ids", model.ids_follow_the_generator),
    Property(
        "window",
        "a window from outside limits attention",
        "visible, weights, mix; a key's place among those given, where keys.index was meant",
        layers.obeys_a_window_from_outside,
    ),
    Property(
        "numbers",
        "pe-bench's own encodings have their reference numbers",
        "reference_numbers.yaml, which says where they come from; PyTorch's version",
        reference.has_its_reference_numbers,
    ),
)


def check(case: Case, wanted: Property) -> Finding:
    """Check one property; an encoding that raises has failed it, whatever it is."""
    try:
        finding = wanted.check(case)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        return Finding("fails", f"{where(error)}: {first_line(error)}")
    if finding.state != "fails" or wanted in BASICS:  # which name the line
        return finding
    places = [f"{line_of(part, hook)} {hook}" for part, hook in overridden(case.encoding, HOOKS)]
    return finding._replace(places=tuple(dict.fromkeys(places)))


def check_all(case: Case, watch: Callable[[Property], None] = lambda _: None) -> dict[Property, Finding]:
    """Check all properties; after a basic one that fails, the others are 'not checked'.

    `watch` gets each property before it is checked.
    """
    found: dict[Property, Finding] = {}
    for wanted in PROPERTIES:
        watch(wanted)
        found[wanted] = check(case, wanted)
        if wanted in BASICS and found[wanted].state == "fails":
            return {**dict.fromkeys(PROPERTIES, Finding("not checked", "")), **found}
    return found
