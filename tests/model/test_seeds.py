"""Every purpose has a random stream of its own, the same one on every machine and in every version."""

from pe_bench.model.decoder import derive_seed


def test_streams_are_the_ones_that_runs_were_trained_with_and_all_differ() -> None:
    golden = "a stream has moved: every run that was trained would come out differently"
    assert derive_seed(0, "decoder") == 767_919_262_695_163_672, golden
    assert derive_seed(7, "ids", 250) == 3_840_997_423_740_020_940, golden
    purposes = ("decoder", "encoding", "ids")
    seeds = {derive_seed(seed, name, step) for seed in range(20) for name in purposes for step in range(20)}
    assert len(seeds) == 20 * 3 * 20 and 2**62 < max(seeds) < 2**63, "63 bits without a sign"
