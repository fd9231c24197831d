"""The house rules that can be read off the source: who imports whom, sizes, where to print."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("schemas", "infra", "producers", "consumers")
DEMO = "infra/recipes/demo/"
SOURCES = sorted(
    [ROOT / "run.py", *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
)
ALL = sorted([*SOURCES, *(ROOT / "tests").rglob("*.py")])

ALLOWED = {
    "schemas": {"schemas"},
    "infra": {"schemas", "infra"},
    "producers": {"schemas", "infra", "producers"},
    "consumers/rollout": {"schemas", "infra", "consumers/rollout"},
    "consumers/reward": {"schemas", "infra", "consumers/reward"},
    "consumers/trainer": {"schemas", "infra", "consumers/trainer"},
    "consumers/evaluator": {"schemas", "infra", "consumers/evaluator"},
    "run.py": {"infra"},
}
"""Room -> the rooms it may import."""

ONLY_IN = {
    "pika": ("infra/amqp/",),
    "vllm": ("consumers/rollout/engines/vllm",),
    "sglang": ("consumers/rollout/engines/sglang",),
    "torch": ("infra/weights/", "consumers/rollout/engines/", "consumers/trainer/", DEMO),
    "matplotlib": (DEMO,),
    "prometheus_client": ("infra/observe/metrics/",),
    "tensorboard": ("infra/observe/tracking/",),
}
"""Third-party package -> path prefixes that may import it."""

PRINTS = ("run.py", "infra/observe/", "infra/storm/", DEMO)
NEVER_CALLED = {"eval", "exec", "__import__"}
NEVER_IMPORTED = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MACHINE_PATH = re.compile(r"""["'\s](/work/|/root/|/home/[a-z]|[A-Z]:\\\\Users)""")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: str) -> str:
    """`infra`, `consumers/rollout`, ...; a package door sign of `consumers` belongs to no role."""
    parts = path.split("/")
    if parts[0] == "consumers" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute names of all imported modules, at any depth, with their lines."""
    package = name_of(path).removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, node.lineno
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno


def imported_room(module: str) -> str | None:
    """The room of ours that a module lies in, or None."""
    parts = module.split(".")
    if parts[0] not in ROOMS:
        return "run.py" if module == "run" else None
    if parts[0] == "consumers":
        return "/".join(parts[:2]) if len(parts) > 1 else None
    return parts[0]


def may_import(importer: str, module: str) -> bool:
    """Whether architecture's one direction allows it."""
    room = imported_room(module)
    if room is None or importer.startswith(DEMO):
        return True
    return room in ALLOWED[room_of(importer)]


def calls_of(path: Path) -> Iterator[tuple[str, int]]:
    """Plain names that are called, with their lines."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def test_imports_point_one_way() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in SOURCES
        for module, line in imports_of(path)
        if not may_import(name_of(path), module)
    ]
    assert wrong == []


def test_heavy_packages_stay_in_their_place() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in SOURCES
        for module, line in imports_of(path)
        for package, places in ONLY_IN.items()
        if module.split(".")[0] == package and not name_of(path).startswith(places)
    ]
    assert wrong == []


def test_nothing_dangerous_is_imported_or_called() -> None:
    wrong = [
        f"{name_of(path)}:{line} uses {name}"
        for path in SOURCES
        for name, line in (*imports_of(path), *calls_of(path))
        if name.split(".")[0] in NEVER_IMPORTED or name in NEVER_CALLED
    ]
    assert wrong == []


def test_code_of_a_model_folder_is_never_trusted() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.keyword)
        and node.arg == "trust_remote_code"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ]
    assert wrong == []


def test_only_the_screen_prints() -> None:
    wrong = [
        f"{name_of(path)}:{line}"
        for path in SOURCES
        for name, line in calls_of(path)
        if name == "print" and not name_of(path).startswith(PRINTS)
    ]
    assert wrong == []


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in ALL:
        num_lines = path.read_text(encoding="utf-8").count("\n")
        if num_lines > MAX_LINES:
            long.append(f"{name_of(path)}: {num_lines} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or 0) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    long.append(f"{name_of(path)}: {node.name} has {num_lines} lines")
    assert long == []


def test_no_path_of_somebodys_machine() -> None:
    here = Path(__file__).resolve()
    wrong = [
        f"{name_of(path)}: {found.strip()}"
        for path in ALL
        for found in MACHINE_PATH.findall(path.read_text(encoding="utf-8"))
        if path != here
    ]
    assert wrong == []


def test_door_signs_hold_no_logic() -> None:
    wrong = [
        name_of(path)
        for path in SOURCES
        if path.name == "__init__.py"
        and (len(tree_of(path).body) != 1 or not ast.get_docstring(tree_of(path)))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "module", "allowed"),
    [
        ("schemas/work.py", "infra.roles.errors", False),
        ("infra/text/renderer.py", "producers.rows", False),
        ("producers/prompts.py", "consumers.rollout.worker", False),
        ("consumers/rollout/worker.py", "consumers.reward.worker", False),
        ("consumers/rollout/worker.py", "consumers.rollout.slots", True),
        ("consumers/trainer/worker.py", "producers.datasets", False),
        ("consumers/trainer/worker.py", "run", False),
        ("infra/recipes/demo/calls.py", "consumers.rollout.parsers.base", True),
        ("run.py", "consumers.trainer.worker", False),
        ("infra/amqp/link.py", "pika", True),
    ],
)
def test_the_rule_itself(importer: str, module: str, allowed: bool) -> None:
    assert may_import(importer, module) is allowed
