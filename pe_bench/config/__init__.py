"""The keys and their checks: Hydra's overrides in, a configuration out."""
