"""The properties that are checked, in the order in which they are shown."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

from pe_bench.errors import first_line
from pe_bench.inspection.check import code, hooks, layers, model, numbers, reference, sizes
from pe_bench.inspection.check.case import Case, Finding, where
from pe_bench.inspection.check.hooks import HOOKS, line_of, overridden
from pe_bench.system.signals import INTERRUPTIONS


class Property(NamedTuple):
    """A property that an encoding must have, or may claim.

    The docstring of its check begins with what must hold, and goes on with where to look when it does not.
    """

    name: str
    check: Callable[[Case], Finding]

    @property
    def means(self) -> str:
        text = self._paragraphs[0]
        return text[0].lower() + text[1:].removesuffix(".")

    @property
    def look(self) -> str:
        return self._paragraphs[1].removeprefix("Look at: ").removesuffix(".")

    @property
    def _paragraphs(self) -> list[str]:
        parts = (inspect.getdoc(self.check) or "").split("\n\n")
        return [" ".join(part.split()) for part in (*parts, "", "")]


PROPERTIES = tuple(
    Property(name, check)
    for name, check in (
        ("shape", hooks.shapes_fit),
        ("finite", hooks.values_are_finite),
        ("runs", hooks.code_runs),
        ("repeatable", hooks.is_repeatable),
        ("causal", model.causal),
        ("lookahead", model.independent_of_the_future),
        ("prefix", model.prefix_consistent),
        ("shift", model.shift_invariant),
        ("batch", model.batch_independent),
        ("pure", model.pure),
        ("effect", model.acts),
        ("blocks", layers.blocks_are_the_whole),
        ("positions", layers.positions_are_read),
        ("score_scale", layers.scores_are_scaled),
        ("masked_weights", layers.hidden_keys_weigh_nothing),
        ("ranges", layers.ranges_hold_what_is_seen),
        ("fused", layers.fused_is_the_reference),
        ("half_precision", numbers.half_precision_keeps_positions),
        ("long_context", numbers.finite_at_65536_tokens),
        ("norm", layers.norm_preserving),
        ("decay", layers.decaying),
        ("extrapolation", model.past_the_training_length),
        ("gradients", model.parameters_matter),
        ("slopes", numbers.gradients_are_slopes),
        ("heads", layers.heads_that_share_a_key_differ),
        ("sight", layers.sees_its_window),
        ("wide_heads", sizes.wide_heads_are_as_narrow_ones),
        ("many_keys", sizes.no_number_of_keys_is_a_limit),
        ("option_ends", sizes.options_work_at_their_ends),
        ("device", code.follows_the_device),
        ("options", code.options_are_read),
        ("state", model.state_is_parameters),
        ("scale", model.starts_at_the_usual_scale),
        ("ids", model.ids_follow_the_generator),
        ("window", layers.obeys_a_window_from_outside),
        ("numbers", reference.has_its_reference_numbers),
    )
)
BASICS = PROPERTIES[:4]  # the first that fails ends the check: all others would fail, with wrong advice


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
