"""What a launcher's configuration says: how many jobs run at a time, and which is refused."""

import pytest
from omegaconf import OmegaConf

from pe_bench.sweep.check import cores_each, side_by_side


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


def hydra_of(target: str, **launcher):
    return OmegaConf.create(
        {"launcher": {"_target_": target, **launcher}, "sweeper": {"max_batch_size": None}}
    )


@pytest.mark.parametrize(
    ("hydra", "count"),
    [
        (hydra_of("hydra._internal.core_plugins.basic_launcher.BasicLauncher"), 1),
        (hydra_of("x.JoblibLauncher", n_jobs=3), 3),
        (hydra_of("x.JoblibLauncher", n_jobs=30), 8),
        (hydra_of("x.JoblibLauncher", n_jobs=-1), 4),
        (hydra_of("x.JoblibLauncher", n_jobs=-2), 3),
        (hydra_of("x.LocalLauncher"), 8),
        (hydra_of("x.SlurmLauncher"), 1),
        (hydra_of("x.RayLauncher", ray={"init": {"num_cpus": 6}, "remote": {"num_cpus": 3}}), 2),
        (hydra_of("x.RayLauncher", ray={"init": {"address": None}, "remote": {}}), 4),
        (hydra_of("x.SomebodysLauncher"), 1),
    ],
)
def test_the_number_of_parallel_jobs_follows_from_the_launcher(hydra, count, monkeypatch):
    monkeypatch.setattr("pe_bench.sweep.check.available_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert side_by_side(hydra, 8) == count
    assert cores_each(hydra, 8) == max(1, 4 // count)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cores_each(hydra, 8) == 1


def test_the_sweepers_batch_size_limits_parallel_jobs(monkeypatch):
    monkeypatch.setattr("pe_bench.sweep.check.available_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    hydra = hydra_of("x.LocalLauncher")
    hydra.sweeper.max_batch_size = 2
    assert cores_each(hydra, 8) == 2
