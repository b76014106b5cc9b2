"""RoPE at other frequencies, for windows longer than those of training."""
