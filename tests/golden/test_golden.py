"""The numbers of version 0.2, which no change of structure may move; record.py records and compares all of them."""

import json
from pathlib import Path

import pytest

from tests.golden import record

RECORDED = json.loads(Path(__file__).with_name("v0_2.json").read_text())


@pytest.mark.parametrize("part", ["digits", "pretrained", "theorem"])
def test_numbers_are_those_of_version_0_2(part):
    found = record.PARTS[part]()
    for name, expected in RECORDED[part].items():
        assert record.difference(expected, found[name]) <= record.TOLERANCE[part], name
