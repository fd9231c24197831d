import pytest

from infra.text.renderer import Renderer
from tests.factories.rollouts import chatml_renderer


@pytest.fixture(scope="session")
def renderer(tmp_path_factory) -> Renderer:
    return chatml_renderer(tmp_path_factory.mktemp("chatml"))
