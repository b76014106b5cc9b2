"""Every purpose has a random stream of its own, the same one on every machine and in every version."""

from pe_bench.model.decoder import derive_seed

GOLDEN = (
    "a stream has moved: every run that was trained would come out differently; change it only on purpose"
)


def test_streams_are_the_ones_that_runs_were_trained_with() -> None:
    assert derive_seed(0, "decoder") == 767_919_262_695_163_672, GOLDEN
    assert derive_seed(7, "ids", 250) == 3_840_997_423_740_020_940, GOLDEN


def test_seeds_purposes_and_steps_all_differ() -> None:
    purposes = ("decoder", "encoding", "ids")
    seeds = {derive_seed(seed, name, step) for seed in range(20) for name in purposes for step in range(20)}
    seeds |= {derive_seed(seed, name) for seed in range(20) for name in purposes}
    assert len(seeds) == 20 * 3 * 21


def test_a_seed_fits_every_generator() -> None:
    """torch and numpy take 63 bits without a sign; most of them are in use."""
    seeds = [derive_seed(seed, "decoder") for seed in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_numbers_that_run_together_are_different_streams() -> None:
    assert derive_seed(1, "ids", 12) != derive_seed(11, "ids", 2)
    assert derive_seed(0, "ids", 1, 12) != derive_seed(0, "ids", 11, 2)
