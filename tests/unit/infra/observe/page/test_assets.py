"""The page needs nothing from outside, and never makes elements out of text."""

import re

import pytest

from infra.observe.page.server import load_assets

ASSETS = {path: content.decode() for path, (_, content) in load_assets().items()}
NEVER = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
    "DOMParser", "createContextualFragment", "srcdoc", 'setTimeout("', "javascript:",
)  # fmt: skip
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", ASSETS)
def test_nothing_comes_from_elsewhere(path: str) -> None:
    text = ASSETS[path].replace(NAMESPACE, "")
    assert not re.search(r"(https?:)?//[a-z0-9]+\.", text)
    assert "@import" not in text


@pytest.mark.parametrize("path", [path for path in ASSETS if path.endswith(".js")])
def test_no_text_becomes_an_element(path: str) -> None:
    assert [word for word in NEVER if word in ASSETS[path]] == []


def test_no_script_and_no_style_lies_in_the_document() -> None:
    html = ASSETS["/"]
    assert re.findall(r"<script(?![^>]* src=)", html) == []
    assert "<style" not in html
    assert not re.search(r"\s(on[a-z]+|style)=", html)


def test_every_module_that_is_imported_is_there() -> None:
    for path, text in ASSETS.items():
        for name in re.findall(r'from "\./([a-z]+\.js)"', text):
            assert f"/js/{name}" in ASSETS, path


def test_the_document_names_all_modules_so_that_none_waits_for_another() -> None:
    named = set(re.findall(r'(?:href|src)="(/js/[a-z]+\.js)"', ASSETS["/"]))
    assert named == {path for path in ASSETS if path.endswith(".js")}
