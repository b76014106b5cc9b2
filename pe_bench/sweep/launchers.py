"""Launchers: how many jobs they run side by side on this machine, and so how many cores each job gets."""

from collections.abc import Mapping
from typing import Any

from pe_bench.errors import require
from pe_bench.system.machine import available_cores


def cores_each(hydra: Any, jobs: int) -> int:
    """Return the cores of one job: all, shared by those that run at the same time."""
    return max(1, available_cores() // side_by_side(hydra, jobs))


def side_by_side(hydra: Any, jobs: int) -> int:
    """Return how many of a sweep's `jobs` run at a time.

    `hydra` is Hydra's own part of the configuration of one of them.
    """
    launcher = hydra.launcher
    name = str(launcher["_target_"]).rpartition(".")[2]
    batch = min(jobs, hydra.sweeper.get("max_batch_size") or jobs)
    count = COUNTS.get(name, _one_by_one)(launcher)
    return max(1, min(count or batch, batch))


def _one_by_one(launcher: Any) -> int:
    return 1


def _joblib(launcher: Any) -> int:
    """Return joblib's count of processes: -1 means as many as there are cores, -2 one less."""
    count = int(launcher.get("n_jobs") or 1)
    return count if count > 0 else max(1, available_cores() + 1 + count)


def _all_at_once(launcher: Any) -> int:
    """Return 0, which stands for every job of a batch: submitit's local executor starts them all."""
    return 0


def _ray(launcher: Any) -> int:
    ray = launcher.get("ray") or {}
    cores = (ray.get("init") or {}).get("num_cpus") or available_cores()
    return max(1, int(cores // ((ray.get("remote") or {}).get("num_cpus") or 1)))


# Slurm gives a job cores of its own, which are all that the job sees.
COUNTS = {"JoblibLauncher": _joblib, "LocalLauncher": _all_at_once, "RayLauncher": _ray}


# How often a scheduler starts a job: a run's processes are started by the job itself, on one machine.
STARTS = {"nodes": "1 machine", "tasks_per_node": "1 task, which starts train.processes itself"}


def require_one_start(launcher: Mapping[str, Any]) -> None:
    """Raise `UserError` for a launcher that would start one job several times."""
    for key, wanted in STARTS.items():
        value = launcher.get(key)
        require(
            value in (None, 1),
            f"hydra.launcher.{key}={value}: a run takes {wanted}; say hydra.launcher.{key}=1",
        )
