"""The fingerprint follows bytes, columns, weights and order, never the path."""

import hashlib
import json

import pytest

from infra.roles.errors import ConfigError
from infra.runs.dataset_fingerprint import dataset_fingerprint
from schemas.config import DataSource


def write(path, text):
    path.write_text(text)
    return str(path)


def test_equals_the_formula_computed_by_hand(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"prompt": "x"}\n')
    terms = {
        "kind": ".jsonl",
        "columns": {"prompt": "prompt"},
        "weight": 2.0,
        "sha256": hashlib.sha256(b'{"prompt": "x"}\n').hexdigest(),
    }
    expected = hashlib.sha256(json.dumps(terms, sort_keys=True).encode() + b"\n").hexdigest()
    source = DataSource(path=path, weight=2.0, columns={"prompt": "prompt"})
    assert dataset_fingerprint([source]) == expected


def test_does_not_follow_the_path(tmp_path):
    one = DataSource(path=write(tmp_path / "a.jsonl", "same\n"))
    two = DataSource(path=write(tmp_path / "b.jsonl", "same\n"))
    assert dataset_fingerprint([one]) == dataset_fingerprint([two])


def test_follows_bytes_columns_weight_and_order(tmp_path):
    a = DataSource(path=write(tmp_path / "a.jsonl", "a\n"))
    b = DataSource(path=write(tmp_path / "b.jsonl", "b\n"))
    heavy = DataSource(path=a.path, weight=3.0)
    mapped = DataSource(path=a.path, columns={"prompt": "question"})
    prints = [dataset_fingerprint(s) for s in ([a], [b], [heavy], [mapped], [a, b], [b, a], [])]
    assert len(set(prints)) == len(prints)


def test_a_missing_file_is_named(tmp_path):
    missing = tmp_path / "nowhere.jsonl"
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl.*No such file"):
        dataset_fingerprint([DataSource(path=str(missing))])
