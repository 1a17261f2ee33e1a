"""The numbers of version 0.2, which no change of structure may move; record.py compares all of them."""

import json

import pytest

from tests.golden import record

RECORDED = json.loads(record.RECORD.read_text())


@pytest.mark.as_users
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("part", ["digits", "pretrained", "theorem"])
def test_numbers_are_those_of_version_0_2(part, tmp_path):
    found = record.PARTS[part](tmp_path)
    for name, expected in RECORDED[part].items():
        assert record.difference(expected, found[name]) <= record.TOLERANCE[part], name
