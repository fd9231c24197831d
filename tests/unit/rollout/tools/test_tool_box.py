"""Tools within limits: whatever happens becomes text for the model."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
from typing import Literal

import pytest

from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.errors import ToolError
from consumers.rollout.tools.tool import tool
from infra.roles.errors import ConfigError
from schemas.chat import FunctionCall, ToolCall


def call_of(name, position=0, /, **arguments):
    return ToolCall(
        id=f"3.1:0:{position}",
        function=FunctionCall(name=name, arguments=json.dumps(arguments)),
    )


async def run(box, *calls, names=None):
    running = box.start(calls, names if names is not None else list(box._tools))
    await asyncio.wait_for(running.wait(), 20)
    return [running.results[call.id] for call in calls]


async def one(entry, /, **arguments):
    (result,) = await run(
        ToolBox({entry.name: entry}, timeout_s=5), call_of(entry.name, **arguments)
    )
    return result


@tool
def weather(
    city: str, days: int = 1, unit: Literal["C", "F"] = "C", tags: list[str] | None = None
) -> dict:
    """Forecast the weather.

    Looks far ahead.

    Args:
        city: Where,
            with its country.
        days: How far ahead.

    Returns:
        A forecast.
    """
    return {"city": city, "days": days, "unit": unit, "tags": tags}


def test_the_model_is_shown_the_signature():
    function = weather.spec.function
    assert function.name == "weather"
    assert function.description == "Forecast the weather.\n\nLooks far ahead."
    assert function.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where, with its country."},
            "days": {"type": "integer", "default": 1, "description": "How far ahead."},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
        },
        "required": ["city"],
    }


def test_a_parameter_called_title_survives():
    @tool
    def book(title: str) -> str:
        """Find."""
        return title

    assert list(book.spec.function.parameters["properties"]) == ["title"]


def test_functions_that_cannot_be_shown_are_refused():
    def untyped(a):
        """x"""

    def variadic(*a: int):
        """x"""

    def positional(a: int, /):
        """x"""

    for function in (untyped, variadic, positional):
        with pytest.raises(ConfigError):
            tool(function)


async def test_values_become_text():
    result = await one(weather, city="Zürich", days="3")
    assert result.ok
    assert json.loads(result.content) == {"city": "Zürich", "days": 3, "unit": "C", "tags": None}
    assert "Zürich" in result.content


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"city": "a", "planet": "b"}', "planet: Extra inputs"),
        ("{}", "city: Field required"),
        ('{"city": ["a"]}', "city: Input should be a valid string"),
        ('{"city": "a", "days": "many"}', "days: Input should be a valid integer"),
        ('{"city": "a", "unit": "K"}', "unit: Input should be 'C' or 'F'"),
        ("[1]", "must be a JSON object"),
        ("nonsense", "not valid JSON"),
        ('{"city": ' + "[" * 50_000 + "]" * 40_000, "not valid JSON"),
        ('{"city": "' + "x" * 200_000 + '"}', "at most 100000"),
        ('{"days": ' + "9" * 9000 + "}", "not valid JSON"),
    ],
    ids=range(10),
)
async def test_arguments_are_checked(arguments, says):
    call = ToolCall(id="3.1:0:0", function=FunctionCall(name="weather", arguments=arguments))
    (result,) = await run(ToolBox({"weather": weather}), call)
    assert not result.ok
    assert says in result.content
    assert len(result.content) <= 2000


async def test_errors_of_tools_become_text():
    @tool
    def refuse() -> str:
        """Refuse."""
        raise ToolError("say please")

    @tool
    def leave() -> str:
        """Leave."""
        sys.exit(3)

    @tool
    async def cancelled() -> str:
        """Give up."""
        raise asyncio.CancelledError

    @tool
    def odd() -> str:
        """Hand out what cannot be encoded."""
        return "a\ud800b"

    assert (await one(refuse)).content == "Error: say please"
    assert "SystemExit" in (await one(leave)).content
    assert "CancelledError" in (await one(cancelled)).content
    assert (await one(odd)).content == "a?b"


async def test_only_the_tasks_tools_may_be_called():
    box = ToolBox({"weather": weather, "pkg.mod:other": tool(name="other")(weather.function)})
    (result,) = await run(box, call_of("weather", city="a"), names=["pkg.mod:other"])
    assert result.content == "Error: there is no tool 'weather'. Available tools: other"
    (result,) = await run(box, call_of("other", city="a"), names=["pkg.mod:other"])
    assert result.ok


async def test_async_tools_are_abandoned_at_their_limit_even_if_they_resist():
    resisted = asyncio.Event()

    @tool(timeout_s=0.05)
    async def resist() -> str:
        """Ignore cancellation."""
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                resisted.set()
                await asyncio.sleep(0.1)
                return "late"

    result = await one(resist)
    assert result.content == "Error: resist did not finish within 0.05 s"
    await resisted.wait()


async def test_a_failure_that_meets_the_end_of_the_wait_is_nobodys_surprise():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    go, started = asyncio.Event(), asyncio.Event()

    @tool
    async def fail() -> str:
        """Fail when told to."""
        started.set()
        await go.wait()
        raise ToolError("no")

    running = ToolBox({"fail": fail}, timeout_s=5).start([call_of("fail")], ["fail"])
    await started.wait()
    go.set()
    await asyncio.sleep(0)  # it has failed now, and who waits for it does not know yet
    running.abandon()
    await asyncio.sleep(0.01)
    assert running.results == {}
    del running
    gc.collect()
    assert complaints == []


async def test_sync_tools_run_beside_the_event_loop():
    barrier = threading.Barrier(4)

    @tool
    def meet() -> str:
        """Wait for the others."""
        barrier.wait(10)
        return threading.current_thread().name

    results = await run(ToolBox({"meet": meet}), *[call_of("meet", k) for k in range(4)])
    assert [result.content for result in results] == ["tool"] * 4


async def test_concurrency_of_one_tool_is_bounded():
    running, most = 0, 0

    @tool(max_concurrency=2)
    async def work() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return "ok"

    results = await run(ToolBox({"work": work}), *[call_of("work", k) for k in range(7)])
    assert all(result.ok for result in results)
    assert most == 2


async def test_hanging_threads_are_bounded_and_give_their_place_back():
    release = threading.Event()
    begun = []

    @tool(timeout_s=0.1)
    def hang() -> str:
        """Hang."""
        begun.append(1)
        release.wait(30)
        return "late"

    box = ToolBox({"hang": hang}, max_threads=3)
    results = await run(box, *[call_of("hang", k) for k in range(5)])
    assert all("did not finish" in result.content for result in results)
    assert len(begun) == 3
    release.set()
    while box._threads._free._value < 3:
        await asyncio.sleep(0.01)
    (result,) = await run(box, call_of("hang"))
    assert result.content == "late"


def test_a_hanging_thread_does_not_hold_the_process():
    program = """
import asyncio, time
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.tool import tool
from schemas.chat import FunctionCall, ToolCall

@tool(timeout_s=0.05)
def hang() -> str:
    "Hang."
    time.sleep(600)

async def main():
    call = ToolCall(id="3.1:0:0", function=FunctionCall(name="hang", arguments="{}"))
    running = ToolBox({"hang": hang}).start([call], ["hang"])
    await running.wait()
    print(running.results["3.1:0:0"].content)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "did not finish" in done.stdout
    assert done.stderr == ""


async def test_too_many_calls_are_told_so():
    results = await run(
        ToolBox({"weather": weather}, max_calls=2),
        *[call_of("weather", k, city="a") for k in range(4)],
    )
    assert [result.ok for result in results] == [True, True, False, False]
    assert results[3].content == "Error: not run: at most 2 calls in one turn are run"


async def test_long_results_are_cut_at_their_end_with_a_mark():
    @tool
    def much() -> str:
        """Say much."""
        return "abcdefghij" * 10

    (result,) = await run(ToolBox({"much": much}, max_result_chars=12), call_of("much"))
    assert result.content == "abcdefghijab\n[88 of 100 characters left out]"
    (result,) = await run(ToolBox({"much": much}, max_result_chars=100), call_of("much"))
    assert result.content == "abcdefghij" * 10


def test_loading_by_name_and_import_path():
    here = "tests.unit.rollout.tools.test_tool_box"
    box = ToolBox.load(["calculator", f"{here}:weather", f"{here}:plain"], timeout_s=1)
    names = [spec.function.name for spec in box.specs([f"{here}:plain", "calculator"])]
    assert names == ["plain", "calculator"]
    with pytest.raises(ConfigError, match="has no tool other"):
        box.specs(["other"])
    with pytest.raises(ConfigError):
        ToolBox.load(["calculatr"])
    with pytest.raises(ConfigError, match="two tools are called weather"):
        ToolBox({"a": weather, "b": weather})


def plain(text: str) -> str:
    """A plain function."""
    return text


async def test_a_tool_may_ask_for_the_calls_id():
    @tool
    def idempotent(text: str, call_id: str) -> str:
        """Do once."""
        return f"{call_id} {text}"

    assert list(idempotent.spec.function.parameters["properties"]) == ["text"]
    assert (await one(idempotent, text="x")).content == "3.1:0:0 x"
    assert "call_id" in (await one(idempotent, text="x", call_id="mine")).content
