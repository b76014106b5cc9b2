"""The keys that help and `list keys` show are those of the configuration, with their defaults."""

import yaml

from pe_bench.config.groups import GROUPS, config_dir, keys
from pe_bench.config.schema import KEYS, SECTIONS, keys_of_sections


def test_every_key_of_the_schema_is_listed_with_a_meaning_but_those_of_the_groups():
    plain = {*KEYS} - {*SECTIONS, *GROUPS}
    inside = {key for key in keys_of_sections() if key.partition(".")[0] not in GROUPS}
    listed = keys()
    assert {key.name for key in listed} == {*GROUPS, *plain, *inside}
    assert len(listed) == len({key.name for key in listed})
    assert all(key.meaning for key in listed)


def test_defaults_are_those_of_the_file():
    values = yaml.safe_load((config_dir() / "train.yaml").read_text(encoding="utf-8"))
    chosen = {
        name: value
        for entry in values["defaults"]
        if isinstance(entry, dict)
        for name, value in entry.items()
    }
    for key in keys():
        section, dot, name = key.name.rpartition(".")
        found = chosen[name] if key.name in GROUPS else (values[section] if dot else values)[name]
        assert yaml.safe_load(key.default) == found, key
