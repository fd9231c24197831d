import orjson
import pytest
from pydantic import ValidationError

from schemas.tokens import Tokens


def tokens(**changes: object) -> Tokens:
    values: dict[str, object] = {
        "mask": ((0, 2), (1, 3), (0, 1), (1, 1)),
        "versions": ((-1, 2), (4, 1), (5, 2), (-1, 1), (7, 1)),
        "token_ids": [1, 2, 3, 4, 5, 6, 7],
        "logprobs": [0, 0, -1, -0.5, -0.25, 0, -2],
    }
    return Tokens.model_validate(values | changes)


def test_everything_has_one_length_on_access() -> None:
    record = tokens()
    assert len(record) == 7
    assert record.mask_array.tolist() == [0, 0, 1, 1, 1, 0, 1]
    assert record.version_array.tolist() == [-1, -1, 4, 5, 5, -1, 7]
    assert record.num_sampled == 4
    assert (record.oldest_version, record.newest_version) == (4, 7)


def test_round_trip_through_json() -> None:
    record = tokens()
    body = orjson.dumps(record.model_dump(mode="json"))
    assert Tokens.model_validate(orjson.loads(body)) == record
    assert record != tokens(logprobs=[0, 0, -1, -0.5, -0.25, 0, -3])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": ((0, 2), (1, 3))}, "mask covers 5 tokens, token_ids has 7"),
        ({"mask": ((0, 2), (1, 10**12))}, "mask covers"),
        ({"mask": ((0, 2), (2, 3), (0, 1), (1, 1))}, "other than 0 and 1"),
        ({"mask": ((0, 0), (1, 7))}, "greater than 0"),
        ({"versions": ((-1, 3), (5, 2), (-1, 1), (7, 1))}, "exactly where mask is 0"),
        ({"versions": ((-1, 2), (5, 2), (4, 1), (-1, 1), (7, 1))}, "versions decrease"),
        ({"logprobs": [0, 0, -1]}, "logprobs has 3 tokens"),
        ({"logprobs": [-1, 0, -1, -0.5, -0.25, 0, -2]}, "0.0 where mask is 0"),
        ({"token_ids": [1, 2, 3, 4, 5, 6, -7]}, "negative id"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        tokens(**changes)


def test_nothing_sampled_has_no_versions() -> None:
    record = Tokens(mask=((0, 2),), versions=((-1, 2),), token_ids=[1, 2], logprobs=[0, 0])
    assert (record.num_sampled, record.oldest_version, record.newest_version) == (0, None, None)
