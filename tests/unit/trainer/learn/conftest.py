import pytest
import torch

from consumers.trainer.learn.policy import Policy
from tests.factories import models


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untied")
    models.build(folder, tied=False, seed=0)
    return folder


@pytest.fixture(scope="session")
def tied_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied")
    models.build(folder, tied=True, seed=0)
    return folder


@pytest.fixture
def policy(model_folder):
    return Policy.load(model_folder, device=torch.device("cpu"))
