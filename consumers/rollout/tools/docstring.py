"""Google-style docstrings of tools: the summary, and a description per argument."""

import inspect
import re

_SECTION = re.compile(r"^[A-Z][A-Za-z ]*:$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def parse_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Text before the first section, and the entries of the `Args:` section."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in inspect.cleandoc(docstring or "").splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if depth == 0 and _SECTION.match(text):
            section, current = text[:-1], ""
        elif not section:
            summary.append(text)
        elif section in ("Args", "Arguments", "Parameters"):
            found = _ARGUMENT.match(text)
            if found and (not current or depth <= indent):
                current, indent = found[1], depth
                arguments[current] = found[2]
            elif current and text:
                arguments[current] = f"{arguments[current]} {text}".strip()
    return "\n".join(summary).strip(), arguments
