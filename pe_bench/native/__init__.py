"""Code in C++ that is compiled on first use where a compiler is, and what Python needs to call it."""
