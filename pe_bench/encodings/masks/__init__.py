"""Keys that a query does not see."""
