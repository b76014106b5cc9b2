"""The one job that every launcher calls: prepare, train, score."""
