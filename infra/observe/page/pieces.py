"""What each token of a rollout says, by the run's tokenizer. Runs no code of a model folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BROKEN = "\N{REPLACEMENT CHARACTER}"


class Pieces:
    """Texts of token ids.

    Args:
        tokenizer: A `tokenizers.Tokenizer`; None: there is none, and `problem` says why.
    """

    def __init__(self, tokenizer: Any, problem: str = "") -> None:
        self._tokenizer = tokenizer
        self.problem = problem

    @classmethod
    def find(cls, folders: Sequence[Path]) -> "Pieces":
        """By the first folder that has a `tokenizer.json`."""
        from tokenizers import Tokenizer

        for folder in folders:
            path = folder / "tokenizer.json"
            try:
                if not path.is_file():
                    continue
            except OSError:  # a name that is too long, a folder that may not be looked into
                continue
            try:
                return cls(Tokenizer.from_file(str(path)))
            except Exception as error:  # the boundary to the library, which raises nothing narrower
                return cls(None, f"{path} cannot be read: {error}")
        places = ", ".join(str(folder) for folder in folders) or "no folder that is known"
        return cls(None, f"no tokenizer.json in {places}: tokens are shown by their ids")

    def texts(self, token_ids: Sequence[int]) -> list[str] | None:
        """One text for each token; joined, they are the text of all.

        A character of several tokens is told by its last one. None without a tokenizer.
        """
        if self._tokenizer is None:
            return None
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        texts: list[str] = []
        for token_id in token_ids:
            try:
                texts.append(stream.step(self._tokenizer, token_id) or "")
            except Exception:  # the same boundary: the ids do not come from us
                stream = DecodeStream(skip_special_tokens=False)
                texts.append(BROKEN)
        return texts
