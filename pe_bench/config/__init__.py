"""The keys of the configuration, and Hydra's overrides read into a checked configuration."""
