"""A weight store on S3."""

import pytest

from tests.factories.stores import StoreSuite


class TestS3Store(StoreSuite):
    """In a new bucket each."""

    @pytest.fixture
    def location(self, s3: str) -> str:
        return s3
