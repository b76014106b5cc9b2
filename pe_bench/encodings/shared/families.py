"""Kinds of trained encodings, by their first names, for what may be scored after all of a kind.

A pair that is in no `may_follow` loads as well where neither has parameters, and means nothing: the weights
were never shown such scores.
"""

ROTARY = frozenset({"rope", "partial_rope", "p_rope"})
# A bias or terms of the distance or of the content, added to the logits: fewer keys or sharper logits leave
# what they mean as it is.
RELATIVE = frozenset(
    {"alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "shaw"}
    | {"transformer_xl", "deberta"}
)
