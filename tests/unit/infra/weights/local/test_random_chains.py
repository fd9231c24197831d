"""Random runs: whatever is damaged, refused or skipped, what is prepared is what was published."""

import random

import pytest
import torch

from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import fingerprint
from infra.weights.local import version as version_module
from infra.weights.local.weights import LocalWeights
from tests.factories.weight_chains import ChainStore, model_folder, moved

NAMES = ("a.weight", "b.weight", "c.norm", "d.bias")


def tensors():
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(40, 30).to(torch.bfloat16),
        "b.weight": torch.randn(50, 20),
        "c.norm": torch.randn(30).to(torch.bfloat16),
        "d.bias": torch.randn(7),
    }


def reachable(store, version, bad, held):
    """Whether some undamaged way leads to a version."""
    while True:
        if held == version or (store.manifests[version].full and (version, "full") not in bad):
            return True
        if not store.manifests[version].delta or (version, "delta") in bad:
            return False
        version = store.manifests[version].base_version


@pytest.mark.parametrize("seed", range(6))
def test_a_random_run(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(version_module, "LARGE_BYTES", 1000)
    chance = random.Random(seed)
    store = ChainStore(tmp_path / "store", copies=bool(seed % 2))
    model = model_folder(tmp_path / "model")

    def joined():
        return LocalWeights(store, model_folder=model, cache=str(tmp_path / "cache"))

    local, held, bad, outcomes = joined(), -1, set(), []
    newest = 0
    store.publish(0, tensors())
    for _ in range(60):
        version = newest + 1
        changed = tuple(name for name in NAMES if chance.random() < 0.5) or NAMES[:1]
        mode = chance.choice(["step", "absolute"])
        store.publish(
            version,
            moved(store.versions[newest], version, changed),
            base=newest if chance.random() < 0.95 else None,
            full=chance.random() < 0.25,
            mode=mode,
        )
        newest = version
        for kind in ("full", "delta"):
            if getattr(store.manifests[version], kind) and chance.random() < 0.15:
                bad.add((version, kind))
                store.damage(version, kind)
        if chance.random() < 0.5:  # it hears of later ones only
            continue
        if chance.random() < 0.1:
            local.close()
            local, held = joined(), -1
        try:
            prepared = local.prepare(store.manifests[version])
        except WeightsCorrupt:
            assert not reachable(store, version, bad, held)
            outcomes.append("corrupt")
            continue
        true = store.versions[version]
        assert all(torch.equal(prepared.tensors[name], tensor) for name, tensor in true.items())
        if held >= 0:
            assert prepared.base_fingerprint == fingerprint(store.versions[held])
            assert prepared.changed == {
                name
                for name, tensor in true.items()
                if not torch.equal(tensor, store.versions[held][name])
            }
        outcomes.append(chance.choice(["taken", "refused", "skipped"]))
        if outcomes[-1] == "taken":
            local.taken(version)
            held = version
        elif outcomes[-1] == "refused":
            local.discard()
    local.close()
    assert {"corrupt", "taken", "refused", "skipped"} <= set(outcomes)
    assert list((tmp_path / "cache").iterdir()) == []
