"""People look at runs, steps, groups and rollouts, and send each other links."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.page.conftest import NUM_ROLLOUTS, Serve
from tests.factories.run_folders import HOSTILE, NEEDLE, TurnKind, small_run

pytestmark = pytest.mark.browser
Shoot = Callable[[str], None]


def test_from_the_list_of_runs_to_one_rollout_and_back(
    page: Page, serve: Serve, runs_folder: Path, shoot: Shoot
) -> None:
    page.goto(serve(runs_folder))
    expect(page.locator("tbody tr")).to_have_count(2)
    shoot("runs")
    page.get_by_role("link", name="written", exact=True).click()
    expect(page.get_by_role("heading", name="Run")).to_be_visible()
    expect(page.locator("figure", has_text="Reward").first).to_contain_text("all that arrived 0.2")
    shoot("charts")

    page.get_by_role("link", name="Steps").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("tbody tr", has_text="v1").last.click()
    expect(page.locator(".group")).to_have_count(2)
    expect(page.locator(".group", has_text="trained")).to_have_count(2)
    shoot("groups")
    page.locator(".group .member").nth(1).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rollout 1.1")
    expect(page.locator(".facts")).to_contain_text("Advantage0.866")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", level=1)).to_have_text("Rollout 1.2")
    page.go_back()
    page.go_back()
    expect(page.locator(".group")).to_have_count(2)


def test_filters_find_and_the_link_of_what_they_found_can_be_shared(
    page: Page, serve: Serve, runs_folder: Path, shoot: Shoot
) -> None:
    url = serve(runs_folder)
    page.goto(f"{url}?run=written&view=rollouts")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(23)

    page.get_by_label("Order").select_option("cut")
    expect(rows.first).to_contain_text("2.1")
    page.get_by_role("checkbox", name="interrupted").check()
    expect(rows).to_have_count(1)
    page.get_by_role("checkbox", name="interrupted").uncheck()
    page.get_by_label("Its group").select_option("trained")
    page.get_by_label("Reward ≥").fill("0.75")
    expect(rows).to_have_count(7)
    page.get_by_label("Order").select_option("worst")
    expect(rows.first).to_contain_text("0.75")

    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    expect(rows).to_have_count(7)
    expect(rows.first).to_contain_text("0.75")
    expect(page.get_by_label("Reward ≥")).to_have_value("0.75")
    shoot("filtered")

    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(23)
    page.get_by_label("Search").fill("ASK THE TOOL")
    expect(rows).to_have_count(1)
    page.get_by_label("Search").fill("by zero")
    expect(rows).to_contain_text("5.0")
    rows.first.click()
    expect(page.locator(".failure")).to_contain_text("<b>division</b>")


def test_a_rollout_with_cuts_and_tools(
    page: Page, serve: Serve, runs_folder: Path, shoot: Shoot
) -> None:
    page.goto(f"{serve(runs_folder)}?run=written&view=rollout&id=2.1")
    tokens = page.get_by_label("Tokens")
    expect(tokens.locator(".turn h3")).to_have_text(
        ["prompt", "assistantstop", "tool", "assistantstop"]
    )
    expect(tokens.locator(".cut")).to_have_text(["✂ sync v0 · rollout-1", "✂ leave v1 · rollout-2"])
    expect(tokens.locator(".mark")).to_have_text(["v1"])
    expect(tokens.locator(".tool-call")).to_have_count(2)
    expect(tokens.locator(".tool-call").first).to_contain_text('add({"a": 40, "b": 88})')
    expect(tokens.locator(".tool-call.failed")).to_contain_text("Error: no such page")
    expect(tokens.locator(".turn").first.locator(".t:not(.masked)")).to_have_count(0)
    assert tokens.locator(".t.v0").count() > 0
    assert tokens.locator(".t.v1").count() > 0
    shoot("rollout-version")

    page.get_by_label("surprise").check()
    expect(page.locator(".legend")).to_contain_text("p ≤ 0.14")
    assert tokens.locator(".t.s4").count() > 0
    shoot("rollout-surprise")
    page.get_by_label("logprob gap").check()
    expect(page.locator(".legend")).to_contain_text("minus the one when sampled")
    assert tokens.locator(".t.down3").count() > 0
    page.get_by_label("advantage").check()
    expect(page.locator(".legend")).to_contain_text("for every sampled token")
    assert tokens.locator(".t.up1").count() > 0
    tokens.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_contain_text("token 0")
    expect(page.locator("aside")).to_contain_text("brief")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 800, "height": 860})
    expect(page.locator("aside")).to_be_visible()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 800
    shoot("rollout-narrow-dark")


def test_hostile_text_is_shown_and_never_executed(
    page: Page, serve: Serve, runs_folder: Path, shoot: Shoot
) -> None:
    url = serve(runs_folder)
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.goto(f"{url}?run=written&view=rollout&id=3.0")
    shown = page.locator(".turn.assistant .text")
    expect(shown).to_contain_text(HOSTILE.split("\u202e")[0])
    expect(shown).to_contain_text("⟨U+202E⟩evil⟨U+0000⟩⟨U+001B⟩[31m")
    page.get_by_text("Messages as text").click()
    expect(page.locator(".conversation .assistant")).to_contain_text("<script>window.hacked = 1")
    shoot("hostile")
    page.goto(f"{url}?run=written&view=rollouts&q=hacked&sort=%3Cimg+onerror%3Dx%3E")
    expect(page.locator("#notice")).to_contain_text("<img onerror=x>")
    page.goto(f"{url}?run=written&view=rollouts&q=srcdoc")
    expect(page.locator("td.says")).to_contain_text("<script>")
    assert page.evaluate("window.hacked") is None
    assert page.locator("iframe, main img, main script").count() == 0


def test_ten_thousand_rollouts_stay_usable(
    page: Page, serve: Serve, large_folder: Path, shoot: Shoot
) -> None:
    page.goto(f"{serve(large_folder)}?run=large&view=rollouts")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(100)
    expect(page.locator(".pager").first).to_contain_text(f"100 of {NUM_ROLLOUTS:,} rollouts")
    page.get_by_role("link", name="last »").first.click()
    expect(rows.last).to_contain_text("0.0")
    page.get_by_label("Order").select_option("cut")
    expect(page.locator(".state")).to_contain_text(f"{NUM_ROLLOUTS:,} rollouts", timeout=60_000)
    expect(rows.first).to_contain_text(".1")
    page.get_by_label("Search").fill(NEEDLE)
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(f"{NUM_ROLLOUTS // 8}.0")
    shoot("ten-thousand")


def test_a_run_is_watched_while_it_grows(
    page: Page, serve: Serve, tmp_path: Path, shoot: Shoot
) -> None:
    run = small_run(tmp_path)
    page.goto(f"{serve(run.root)}?view=rollouts")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(23)
    rows.first.locator("a").first.focus()
    run.arrive(run.trajectory(6, 0, [(TurnKind.PROMPT, "new?"), (TurnKind.ASSISTANT, "newest")]))
    run.step(3, [6], ["6.0"])
    expect(rows).to_have_count(24)
    expect(rows.first).to_contain_text("newest")
    expect(page.locator(".state")).to_contain_text("step 3/100 · v3")
    expect(rows.nth(1).locator("a").first).to_be_focused()
    run.close()
    shoot("grown")


def test_a_copy_without_its_tokenizer_shows_ids_and_messages(
    page: Page, serve: Serve, runs_folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(runs_folder / "written", tmp_path / "copied")
    page.goto(f"{serve(copy)}?run=copied&view=rollout&id=0.1")
    expect(page.locator(".turn.assistant")).to_contain_text("the sum is 128")
    shutil.rmtree(copy / "checkpoints")
    page.goto(f"{serve(copy)}?run=copied&view=rollout&id=0.1")
    expect(page.locator(".problem")).to_contain_text("tokens are shown by their ids")
    expect(page.locator(".conversation .assistant")).to_contain_text("the sum is 128")
