"""A sweep on two Ray nodes, both of this machine: what a node that stops takes with it is made again."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import start, write_corpus

RAY = Path(sys.executable).with_name("ray")
pytestmark = [pytest.mark.full, pytest.mark.skipif(not RAY.exists(), reason="no ray here")]


def node(*arguments: str) -> subprocess.Popen[str]:
    """Start a node that ends with the process that is returned, and wait until it is there."""
    options = ["--num-cpus=1", "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block"]
    process = subprocess.Popen([RAY, "start", *options, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("Ray runtime started" in line for line in process.stdout)
    return process


def test_a_node_that_stops_loses_nothing_that_the_same_command_does_not_make(tmp_path, monkeypatch):
    write_corpus(tmp_path / "corpus")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    short = Path("/tmp") / f"pe-bench-ray-{os.getpid()}"  # a socket's path may have 107 characters
    first = node("--head", f"--port={port}", f"--temp-dir={short}", "--include-dashboard=false")
    second = node(f"--address=127.0.0.1:{port}")
    init = "hydra.launcher.ray.init"
    cluster = [f"{init}.address=127.0.0.1:{port}", f"+{init}.object_store_memory=null", "hydra/launcher=ray"]
    sweep = ["-m", "encoding=nope,alibi", "seed=0,1", "train.steps=600", *cluster]
    try:
        process, runs = start(tmp_path, *sweep), tmp_path / "results" / "runs"
        while len({path.parts[-4] for path in runs.glob("*/checkpoints/step-*/meta.json")}) < 2:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        second.terminate()
        process.communicate(timeout=300)
        again = start(tmp_path, *sweep)
        told = again.communicate(timeout=300)
        assert again.returncode == 0, told
        assert len(list(runs.glob("*/result.json"))) == 4
    finally:
        for each in (second, first):
            each.terminate()
            each.communicate(timeout=60)
        shutil.rmtree(short, ignore_errors=True)
