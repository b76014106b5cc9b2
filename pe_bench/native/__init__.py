"""Code in C++, compiled on first use if there is a compiler, and its Python interface."""
