"""Kinds of encodings by name, for classes that are compatible with the weights of all of a kind.

Weights load into any other encoding where neither has parameters. Without `compatible_with` their scores mean
nothing, because the model never saw such logits in training.
"""

ROTARY = frozenset({"rope", "partial_rope", "p_rope"})
# A bias or terms of the distance or of the content, added to the logits: fewer keys or sharper logits leave
# what they mean as it is.
RELATIVE = frozenset(
    {"alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "shaw"}
    | {"transformer_xl", "deberta"}
)
