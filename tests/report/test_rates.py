"""The rate at which an encoding learned, and the optimizer, stand in the table."""

from pathlib import Path

from support.results import add_run

from pe_bench.config.schema import Config, TrainConfig
from pe_bench.report.legend import short_title
from pe_bench.report.tables.build import build_tables
from pe_bench.runs.config_file import write_config


def test_the_title_says_the_optimizer_and_the_rate_that_were_chosen(tmp_path: Path) -> None:
    run = add_run(tmp_path, "t5", {128: 3.0, 256: 3.0}, encoding_lr=3.0)
    options = {"name": "t5", "class": "pe_bench.encodings.bias.t5:T5"}
    write_config(run, Config(options, train=TrainConfig(optimizer="adamw", encoding_lr=3.0)))
    (table,) = build_tables(tmp_path)
    assert "with optimizer=adamw encoding_lr=3.0" in table.title
    assert any("optimizer=adamw encoding_lr=3.0" in part for part in short_title(table))


def test_a_rate_that_a_class_declares_is_a_note(tmp_path: Path) -> None:
    add_run(tmp_path, "t5", {128: 3.0, 256: 3.0}, encoding_lr=10.0)
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.0})
    (table,) = build_tables(tmp_path)
    assert "optimizer" not in table.title
    assert "parameters of the encoding learned at a multiple of train.lr: t5 10" in table.notes
