"""An administrator's broker: the definitions are imported, and a run starts on them."""

import json
from pathlib import Path

import pytest

from infra.amqp.admin import Management
from infra.amqp.local_broker import LocalBroker
from infra.amqp.url import management_url
from tests.e2e.runs import RunRecord, eventually, finish, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


def test_a_run_trains_on_imported_definitions(
    tmp_path: Path, untaught_folder: Path, killable_node: LocalBroker
) -> None:
    recipe = str(write_recipe(tmp_path, "managed", model=untaught_folder, steps=2))
    file = tmp_path / "managed.json"
    code, said = finish(tmp_path, "queues", "export", "--run", recipe, str(file))
    assert code == 0, said
    killable_node.control("import_definitions", str(file))
    assert json.loads(file.read_text())["queues"]

    settings = ("rollout.engine=simulated", "rollout.engine_options={mean_tokens = 10}")
    code, said = finish(tmp_path, "up", recipe, *settings, url=killable_node.url)
    assert code == 0, said
    RunRecord(tmp_path / "runs" / "managed").check_whole(steps=2)
    pages = Management(management_url(killable_node.url))
    eventually(
        lambda: pages.policies_of("managed").get("prompts") == "managed.work",
        "that the management pages, which lag behind, tell the policy of `prompts`",
    )
