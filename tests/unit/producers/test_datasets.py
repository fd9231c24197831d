"""Files by row, order by credit, shares by weight."""

import itertools
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.roles.errors import ConfigError
from producers.datasets import BLOCK, Dataset
from producers.jsonl import JsonlFile
from producers.parquet import ParquetFile
from producers.rows import DatasetError
from schemas.config import DataSource


def jsonl(path, count, tag=""):
    path.write_text("".join(json.dumps({"prompt": f"{tag}{n}"}) + "\n" for n in range(count)))
    return DataSource(path=str(path))


def parquet(path, count, *, row_group_size=7):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"row {n}"}],
            "reward_model": {"style": "rule", "ground_truth": str(n)},
            "data_source": "test",
            "extra_info": {"index": n},
        }
        for n in range(count)
    ]
    pa.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return DataSource(path=str(path))


@given(
    lines=st.lists(st.sampled_from(['{"a": 1}', '{"b": "\\u00fc"}', "", "  ", "not json"])),
    end=st.sampled_from(["", "\n", "\r\n"]),
    newline=st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=80, deadline=None)
def test_jsonl_rows_equal_a_plain_reading(tmp_path_factory, lines, end, newline):
    path = tmp_path_factory.mktemp("rows") / "d.jsonl"
    path.write_bytes((newline.join(lines) + end).encode())
    expected = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not expected:
        with pytest.raises(ConfigError, match="no rows"):
            JsonlFile(path)
        return
    file = JsonlFile(path)
    assert len(file) == len(expected)
    for row, (number, line) in enumerate(expected):
        assert file.where(row) == f"{path}:{number}"
        if line == "not json":
            with pytest.raises(DatasetError, match=rf":{number}: not JSON"):
                file.read(row)
        else:
            assert file.read(row) == json.loads(line)
    file.close()


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\n')
    assert JsonlFile(path).read(0) == {"prompt": "x"}


def test_parquet_rows_are_found_across_row_groups(tmp_path):
    parquet(tmp_path / "d.parquet", 40)
    file = ParquetFile(tmp_path / "d.parquet")
    assert len(file) == 40
    for row in (0, 6, 7, 39, 20, 13, 14, 0):
        assert file.read(row)["extra_info"] == {"index": row}
    assert file.where(3) == f"{tmp_path / 'd.parquet'} row 3"


def test_a_damaged_row_group_costs_its_own_rows_only(tmp_path):
    path = tmp_path / "d.parquet"
    parquet(path, 40)
    metadata = pa.parquet.read_metadata(path)
    starts = [metadata.row_group(n).column(0).data_page_offset for n in range(2)]
    data = bytearray(path.read_bytes())
    data[starts[0] : starts[0] + 40] = bytes([0xFF]) * 40
    path.write_bytes(data)
    file = ParquetFile(path)
    with pytest.raises(DatasetError, match=r"d\.parquet row 3: cannot be read"):
        file.read(3)
    assert file.read(8)["prompt"][0]["content"] == "row 8"


def test_a_verl_parquet_becomes_prompts(tmp_path):
    dataset = Dataset([parquet(tmp_path / "d.parquet", 9)], seed=0)
    row = dataset.read(8)
    assert row.messages[0].content == "row 8"
    assert row.reward_data.ground_truth == "8"
    assert row.reward_data.data_source == "test"


def test_each_epoch_has_every_row_once_in_another_order(tmp_path):
    dataset = Dataset([jsonl(tmp_path / "d.jsonl", 60)], seed=5)
    epochs = [[dataset.row_of(epoch * 60 + n) for n in range(60)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_two_producers_agree_and_another_seed_does_not(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", 100)
    orders = [
        [Dataset([source], seed=seed).row_of(credit) for credit in (0, 1, 57, 99, 100, 12_345)]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_weights_are_shares_of_credits_whatever_the_sizes(tmp_path):
    big = jsonl(tmp_path / "big.jsonl", 500, "big ")
    small = jsonl(tmp_path / "small.jsonl", 20, "small ").model_copy(update={"weight": 3.0})
    dataset = Dataset([big, small], seed=0)
    rows = [dataset.row_of(credit) for credit in range(2 * BLOCK)]
    assert Counter(row >= 500 for row in rows) == {True: 1500, False: 500}
    assert sorted(row for row in rows if row < 500) == list(range(500))
    assert set(Counter(row for row in rows if row >= 500).values()) == {75}
    runs = sum(a != b for a, b in itertools.pairwise(rows) if (a < 500) != (b < 500))
    assert runs > 400  # mixed, not one source after the other


def test_a_row_of_the_second_source_is_read_from_it(tmp_path):
    sources = [jsonl(tmp_path / "a.jsonl", 3, "a"), jsonl(tmp_path / "b.jsonl", 2, "b")]
    dataset = Dataset(sources, seed=0)
    texts = [dataset.read(row).messages[0].content for row in range(len(dataset))]
    assert texts == ["a0", "a1", "a2", "b0", "b1"]
    assert dataset.where(4) == f"{tmp_path / 'b.jsonl'}:2"
    with pytest.raises(IndexError):
        dataset.read(5)


def test_a_tiny_share_still_gets_credits(tmp_path):
    rare = jsonl(tmp_path / "b.jsonl", 2, "b").model_copy(update={"weight": 1e-9})
    dataset = Dataset([jsonl(tmp_path / "a.jsonl", 3), rare], seed=0)
    assert sum(dataset.row_of(credit) >= 3 for credit in range(BLOCK)) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "No such file"),
        ("none.parquet", None, "No such file"),
        ("empty.jsonl", b"", "has no rows"),
        ("blank.jsonl", b"\n \n", "has no rows"),
        ("bad.parquet", b"PAR1 no", "cannot read dataset"),
        ("table.csv", b"a,b\n", "unknown kind '.csv'"),
        ("noending", b"x", "unknown kind"),
    ],
)
def test_files_that_are_no_dataset(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Dataset([DataSource(path=str(path))], seed=0)
    assert said in str(caught.value)
    assert name in str(caught.value)


def test_a_parquet_file_without_rows(tmp_path):
    pa.parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "e.parquet")
    with pytest.raises(ConfigError, match="has no rows"):
        Dataset([DataSource(path=str(tmp_path / "e.parquet"))], seed=0)


def test_an_unknown_column_gets_the_nearest(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", 1).model_copy(update={"columns": {"promt": "q"}})
    with pytest.raises(ConfigError, match="did you mean 'prompt'"):
        Dataset([source], seed=0)
