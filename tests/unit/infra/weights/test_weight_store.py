"""The weight store: create-only, durable, and honest about what is damaged."""

import errno
import hashlib
import json
import resource
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from infra.roles.errors import ExitCode
from infra.weights import tensor_file
from infra.weights.errors import StoreFailed, StoreUnusable, VersionExists, WeightsCorrupt
from infra.weights.fingerprint import fingerprint
from infra.weights.manifest import Manifests
from infra.weights.store import WeightStore
from schemas.control import WeightFile, WeightsPublished
from tests.factories import models
from tests.factories.loading import prepare, starting


def some_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.embed_tokens.weight": torch.randn(8, 4, generator=generator),
        "model.norm.weight": torch.randn(4, generator=generator),
        "lm_head.weight": torch.randn(8, 4, generator=generator),
    }


def publish(store: WeightStore, version: int = 1, **changes) -> WeightsPublished:
    values = {
        "tensors": some_tensors(version),
        "version": version,
        "run_id": "r",
        "incarnation": 3,
        "step": version,
        "dtype": torch.float32,
    } | changes
    return store.publish(values.pop("tensors"), **values)


def test_what_is_published_is_what_is_prepared(tmp_path):
    store = WeightStore.at(tmp_path / "store")
    tensors = some_tensors()
    published = publish(store, tensors=tensors)
    assert store.newest() == published
    assert store.manifest(1) == published
    assert store.manifest(2) is None
    prepared = prepare(tmp_path / "store", published, tmp_path)
    assert prepared.version == 1
    assert prepared.fingerprint == published.fingerprint
    assert prepared.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(prepared.tensors[name], tensor)
    by_safetensors = load_file(prepared.files[0])
    assert all(torch.equal(by_safetensors[name], tensor) for name, tensor in tensors.items())
    digest = hashlib.sha256(prepared.files[0].read_bytes()).hexdigest()
    assert published.full[0].sha256 == digest


def test_bfloat16_is_rounded_once(tmp_path):
    store = WeightStore.at(tmp_path)
    published = publish(store, dtype="bfloat16")
    prepared = prepare(tmp_path, published, tmp_path)
    for name, tensor in some_tensors(1).items():
        assert torch.equal(prepared.tensors[name], tensor.to(torch.bfloat16))


def test_a_rival_that_links_first_wins(tmp_path, monkeypatch):
    store = WeightStore.at(tmp_path)
    winner = publish(store, incarnation=2)
    monkeypatch.setattr(store.manifests, "read", lambda version: None)
    with pytest.raises(VersionExists):
        publish(store, incarnation=1)
    assert WeightStore.at(tmp_path).newest() == winner
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["manifests", winner.folder])


def test_a_file_system_without_links_still_refuses_a_second(tmp_path, monkeypatch):
    def no_link(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("infra.weights.files.local.os.link", no_link)
    store = WeightStore.at(tmp_path)
    first = publish(store)
    monkeypatch.setattr(store.manifests, "read", lambda version: None)
    with pytest.raises(VersionExists):
        publish(store)
    assert WeightStore.at(tmp_path).newest() == first


def test_large_versions_are_cut_into_files(tmp_path, monkeypatch):
    monkeypatch.setattr("infra.weights.publication.MAX_FILE_BYTES", 130)
    store = WeightStore.at(tmp_path)
    published = publish(store)
    assert len(published.full) == 3
    prepared = prepare(tmp_path, published, tmp_path)
    assert prepared.fingerprint == fingerprint(some_tensors(1))


def test_tensors_that_share_memory_are_written_once(tmp_path):
    embedding = torch.randn(8, 4)
    tied = {"lm_head.weight": embedding, "model.embed_tokens.weight": embedding}
    store = WeightStore.at(tmp_path)
    published = publish(store, tensors=tied)
    prepared = prepare(tmp_path, published, tmp_path)
    assert set(prepared.tensors) == {"model.embed_tokens.weight"}
    assert published.full[0].size_bytes < 2 * embedding.nbytes + 8 + 200
    assert published.fingerprint == fingerprint(tied)


def test_views_and_transposes_are_written_as_they_look(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {"a": base[1:3], "b": base.T}
    store = WeightStore.at(tmp_path)
    prepared = prepare(tmp_path, publish(store, tensors=tensors), tmp_path)
    assert torch.equal(prepared.tensors["a"], base[1:3])
    assert torch.equal(prepared.tensors["b"], base.T)


def test_prune_keeps_the_newest_and_every_manifest(tmp_path):
    store = WeightStore.at(tmp_path)
    manifests = [publish(store, version) for version in (1, 2, 3, 5)]
    orphan = tmp_path / "v00000002.i1.aaaaaaaa"
    orphan.mkdir()
    unfinished = tmp_path / ".partial-v00000005.i1.bbbbbbbb"
    unfinished.mkdir()
    beginning = tmp_path / ".partial-v00000006.i3.cccccccc"
    beginning.mkdir()
    assert store.prune(2) == [1, 2]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"manifests", manifests[2].folder, manifests[3].folder, beginning.name}
    assert store.manifest(1) == manifests[0]
    assert store.prune(0) == [3]
    assert store.newest() == manifests[3]
    prepare(tmp_path, manifests[3], tmp_path)


def test_clearing_takes_what_is_ours_and_leaves_what_else_lies_there(tmp_path):
    """`[weights] store` may be any folder: purging a run must not empty it."""
    store = WeightStore.at(tmp_path)
    store.clear()
    publish(store, 1)
    ours = (".partial-v00000002.i1.bbbbbbbb", ".trash-v00000000.i1.cccccccc", ".trash-manifests/x")
    for name in (*ours, "thesis", "v2.notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    store.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"thesis", "v2.notes", "notes.txt"}
    assert store.newest() is None
    publish(store, 1)


def test_pruning_reads_no_more_manifests_than_it_keeps(tmp_path, monkeypatch):
    store = WeightStore.at(tmp_path)
    for version in range(6):
        publish(store, version)
    read: list[int] = []
    real = Manifests.read
    monkeypatch.setattr(Manifests, "read", lambda self, n: (read.append(n), real(self, n))[1])
    assert store.prune(2) == [0, 1, 2, 3]
    assert read == [5, 4]


def test_a_reader_that_loses_the_race_is_told(tmp_path):
    store = WeightStore.at(tmp_path)
    first = publish(store, 1)
    publish(store, 2)
    store.prune(1)
    with pytest.raises(WeightsCorrupt, match="No such file"):
        prepare(tmp_path, first, tmp_path)


def test_an_unreadable_manifest_is_named_and_passed_over(tmp_path, caplog):
    store = WeightStore.at(tmp_path)
    first = publish(store, 1)
    (tmp_path / "manifests" / "00000002.json").write_text('{"version": 2')
    (tmp_path / "manifests" / "notes.json").write_text("")
    assert store.newest() == first
    assert "00000002.json" in caplog.text
    with pytest.raises(WeightsCorrupt, match=r"00000002\.json"):
        store.manifest(2)


def flip(path: Path, offset: int) -> None:
    body = bytearray(path.read_bytes())
    body[offset] ^= 1
    path.write_bytes(body)


def test_a_flipped_bit_is_found(tmp_path):
    store = WeightStore.at(tmp_path)
    published = publish(store)
    flip(tmp_path / published.folder / published.full[0].name, -5)
    with pytest.raises(WeightsCorrupt, match="sha256"):
        prepare(tmp_path, published, tmp_path)


def test_a_truncated_file_is_found_before_it_is_read(tmp_path):
    store = WeightStore.at(tmp_path)
    published = publish(store)
    path = tmp_path / published.folder / published.full[0].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsCorrupt, match="bytes"):
        prepare(tmp_path, published, tmp_path)


def test_a_manifest_that_promises_other_tensors_is_refused(tmp_path):
    store = WeightStore.at(tmp_path)
    published = publish(store)
    other = published.model_copy(update={"fingerprint": fingerprint(some_tensors(7))})
    with pytest.raises(WeightsCorrupt, match="fingerprint"):
        prepare(tmp_path, other, tmp_path)


def file_of(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(body) if length is None else length) + body + data


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x02",
        file_of({}, length=1 << 62),
        file_of({}, length=3),
        file_of(b"[" * 100_000),
        file_of(b"\xff\xfe"),
        file_of([]),
        file_of({"w": 3}),
        file_of(entry(dtype="F99"), b"abcd"),
        file_of(entry(dtype=["F32"]), b"abcd"),
        file_of(entry(shape=[-1]), b"abcd"),
        file_of(entry(shape=[True]), b"abcd"),
        file_of(entry(shape="1"), b"abcd"),
        file_of(entry(shape=[1 << 62, 1 << 62]), b"abcd"),
        file_of(entry(shape=[0, 1 << 70], offsets=[0, 0])),
        file_of(entry(offsets=[0, 8]), b"abcd"),
        file_of(entry(offsets=[4, 0]), b"abcd"),
        file_of(entry(offsets=[0]), b"abcd"),
        file_of(entry(), b"abcdefgh"),
        file_of(entry(offsets=[4, 8]), b"abcdefgh"),
        file_of(entry() | {"v": entry()["w"]}, b"abcd"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path, content):
    path = tmp_path / "evil.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsCorrupt, match="evil"):
        tensor_file.read(path)


@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_damage_anywhere_is_refused_or_harmless(tmp_path_factory, changes):
    """Whatever bytes change: either it is refused, or what is read has a consistent form."""
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "f.safetensors"
    tensor_file.write(path, {"a": torch.zeros(3, 2), "b": torch.ones(5, dtype=torch.bfloat16)})
    body = bytearray(path.read_bytes())
    for place, value in changes:
        body[place % len(body)] = value
    path.write_bytes(body)
    try:
        tensors = tensor_file.read(path)
    except WeightsCorrupt:
        return
    assert sum(tensor.nbytes for tensor in tensors.values()) <= 34


def test_unaligned_data_is_read_right(tmp_path):
    values = torch.tensor([1.5, -2.0])
    path = tmp_path / "odd.safetensors"
    body = json.dumps(entry(shape=[2], offsets=[0, 8])).encode()
    body += b" " * ((1 - len(body)) % 4)
    path.write_bytes(file_of(body, values.numpy().tobytes()))
    assert torch.equal(tensor_file.read(path)["w"], values)


def test_the_manifest_cannot_name_files_elsewhere():
    with pytest.raises(ValueError, match="pattern"):
        WeightFile(name="../../etc/passwd", size_bytes=1, sha256="0" * 64)


def test_the_fingerprint_knows_names_dtypes_shapes_and_bytes():
    base = some_tensors()
    seen = {fingerprint(base)}
    seen.add(fingerprint({"x" + name: tensor for name, tensor in base.items()}))
    seen.add(fingerprint({name: tensor.to(torch.bfloat16) for name, tensor in base.items()}))
    seen.add(fingerprint({name: tensor.view(torch.int32) for name, tensor in base.items()}))
    seen.add(fingerprint({name: tensor.reshape(-1, 2) for name, tensor in base.items()}))
    changed = {name: tensor.clone() for name, tensor in base.items()}
    changed["model.norm.weight"][0] += 1e-3
    seen.add(fingerprint(changed))
    assert len(seen) == 6
    assert fingerprint(dict(reversed(base.items()))) == fingerprint(base)


def test_a_tied_head_counts_once_in_whatever_form():
    embedding = torch.randn(8, 4)
    alone = fingerprint({"model.embed_tokens.weight": embedding})
    shared = {"lm_head.weight": embedding, "model.embed_tokens.weight": embedding}
    copied = shared | {"lm_head.weight": embedding.clone()}
    assert fingerprint(shared) == fingerprint(copied) == alone
    assert fingerprint(shared | {"lm_head.weight": embedding + 1}) != alone


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_folder_has_the_fingerprint_of_its_publication(tmp_path, tied):
    model = models.build(tmp_path / "model", tied=tied, seed=1)
    store = WeightStore.at(tmp_path / "store")
    tensors = dict(model.state_dict())
    for dtype in ("float32", "bfloat16"):
        version = len(dtype)
        published = publish(store, version, tensors=tensors, dtype=dtype)
        assert starting(tmp_path / "model", dtype).fingerprint == published.fingerprint


def test_a_model_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(WeightsCorrupt, match="save_pretrained"):
        starting(tmp_path, "float32")


def test_a_store_that_is_a_file_is_refused_with_advice(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreUnusable, match=r"\[weights\] store") as caught:
        WeightStore.at(tmp_path / "store").check()
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_usable_store_passes_and_stays_clean(tmp_path):
    WeightStore.at(tmp_path / "a" / "b").check()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("infra.weights.files.local.write", full)
    store = WeightStore.at(tmp_path)
    with pytest.raises(StoreFailed, match="disk is full"):
        publish(store)
    assert store.newest() is None
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_the_system_cuts_short_is_a_clear_error(tmp_path):
    store = WeightStore.at(tmp_path)
    first = publish(store, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        with pytest.raises(StoreFailed, match="version 2"):
            publish(store, 2, tensors={"w": torch.zeros(64 << 10)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.newest() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["manifests", first.folder])
