"""A launcher that would start a job several times is refused."""

import pytest


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "hydra.launcher.nodes=2",
            "hydra.launcher.nodes=2: a run takes 1 machine; say hydra.launcher.nodes=1",
        ),
        ("hydra.launcher.tasks_per_node=4", "hydra.launcher.tasks_per_node=4: a run takes 1 task"),
    ],
)
def test_a_launcher_that_would_start_a_job_several_times_is_refused_before_anything_starts(
    train, folder, word, said
):
    outcome = train("-m", "encoding=rope", "hydra/launcher=submitit_slurm", word)
    assert outcome.code == 2 and said in outcome.line
    assert not (folder / "results").exists()
