"""A model that really asks its calculator, and the engines that run it."""

import pytest
import pytest_asyncio

from consumers.rollout.engines.base import Engine
from infra.recipes.demo.task import split
from infra.recipes.demo.tokenizer import save_tokenizer
from infra.recipes.demo.warmup import Teacher, build_model
from tests.factories.loading import starting

SLOTS, CONTEXT = 8, 34


@pytest.fixture(scope="session")
def caller_folder(tmp_path_factory):
    """The demo's model, taught calls only: greedily it asks the calculator every time."""
    folder = tmp_path_factory.mktemp("caller")
    model = build_model(0)
    teacher = Teacher(model, split()[0], seed=0)
    teacher.begin(lr=2e-3)
    teacher.teach(120, direct=0.0)
    model.eval()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest_asyncio.fixture(
    scope="session",
    loop_scope="session",
    params=["transformers", pytest.param("vllm", marks=pytest.mark.vllm)],
)
async def engine(request, caller_folder):
    if request.param == "transformers":
        from consumers.rollout.engines.transformers.engine import TransformersEngine as Engine_
    else:
        from consumers.rollout.engines.vllm.engine import VllmEngine as Engine_
    built: Engine = Engine_(
        model_folder=caller_folder, dtype="float32", slots=SLOTS, max_model_len=CONTEXT, options={}
    )
    await built.start(starting(caller_folder, "float32"))
    yield built
    await built.close()


@pytest.fixture(scope="session")
def untaught_folder(tmp_path_factory):
    """The demo's model with random weights."""
    folder = tmp_path_factory.mktemp("untaught")
    build_model(0).save_pretrained(folder)
    save_tokenizer(folder)
    return folder
