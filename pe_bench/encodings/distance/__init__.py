"""RoPE whose distances are other ones far away."""
