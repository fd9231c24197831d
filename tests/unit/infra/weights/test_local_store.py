"""A weight store in a folder."""

from pathlib import Path

import pytest

from infra.weights.store import WeightStore
from tests.factories.stores import StoreSuite, put


class TestLocalStore(StoreSuite):
    """In a folder that nobody has made yet."""

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    store = WeightStore.at(f"file://{tmp_path}/store")
    published = put(store, 1)
    assert WeightStore.at(tmp_path / "store").newest() == published
    assert store.where == f"{tmp_path}/store"
