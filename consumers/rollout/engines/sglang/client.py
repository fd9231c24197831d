"""HTTP to one SGLang server: calls with deadlines, and streams of events."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.sglang.options import ADMIN_KEY, API_KEY
from infra.roles.errors import WarrenError

_KEEP_S = 2.0
"""Idle connections are closed before the server does so, after 5 s, in the middle of a call."""
_CONNECT_S = 10.0
_DATA = "data: "
_DONE = "[DONE]"


class Unreachable(WarrenError):
    """No answer, or a connection that broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Of a call."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked for."""
        return self.status == 200

    def json(self) -> dict[str, Any]:
        """The body; empty if it is no JSON object."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Client:
    """Calls one server. Knows the keys, and shows them to nobody else.

    Args:
        url: Of the server.
        api_key: For generation; may be empty.
        admin_key: For everything else; may be empty.
    """

    def __init__(self, url: str, *, api_key: str = "", admin_key: str = "") -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every call
        self.url = url.rstrip("/")
        self._api, self._admin = _bearer(api_key), _bearer(admin_key or api_key)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_S),
            trust_env=False,  # a proxy in the environment is not for it
        )

    @classmethod
    def of(cls, url: str) -> "Client":
        """To a server that is given, with the keys in the environment."""
        keys = {"api_key": os.environ.get(API_KEY, ""), "admin_key": os.environ.get(ADMIN_KEY, "")}
        return cls(url, **keys)

    async def status(self, path: str, *, timeout_s: float = 10.0) -> int:
        """The status of a GET; raises `Unreachable`."""
        return (await self.get(path, timeout_s=timeout_s)).status

    async def get(self, path: str, *, timeout_s: float = 30.0) -> Answer:
        """Read something.

        Raises:
            Unreachable: No answer within the time.
        """
        return await self._call("GET", path, None, timeout_s, headers=self._api)

    async def control(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float
    ) -> Answer:
        """Tell it what to do; everything that is told may be told twice.

        Raises:
            Unreachable: No answer within the time.
        """
        return await self._call("POST", path, body or {}, timeout_s, headers=self._admin)

    async def generate(self, body: Mapping[str, Any], *, timeout_s: float) -> Answer:
        """Generate without a stream.

        Raises:
            Unreachable: No answer within the time.
        """
        return await self._call("POST", "/generate", body, timeout_s, headers=self._api)

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        *,
        headers: dict[str, str],
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._once(method, path, body, headers)
                except httpx.RemoteProtocolError:  # a kept connection, closed meanwhile
                    return await self._once(method, path, body, headers)
        except TimeoutError as error:
            raise Unreachable(f"{self.url}{path} did not answer within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}{path}: {type(error).__name__} {error}") from error

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: dict[str, str]
    ) -> Answer:
        found = await self._http.request(method, path, json=body, headers=headers)
        _check_key(found.status_code, path)
        return Answer(status=found.status_code, text=found.text)

    async def begin(self, body: Mapping[str, Any], *, timeout_s: float) -> httpx.Response:
        """Generate; the answer has begun, and whoever gets it closes it.

        Raises:
            ValueError: The server refuses the request.
            Unreachable: No connection, it broke, or the answer does not begin.
        """
        request = self._http.build_request("POST", "/generate", json=body, headers=self._api)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.send(request, stream=True)
                if response.status_code == 200:
                    return response
                text = (await response.aread()).decode(errors="replace")
        except TimeoutError as error:
            raise Unreachable(f"{self.url}/generate did not begin in {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}/generate: {type(error).__name__} {error}") from error
        await response.aclose()
        _check_key(response.status_code, "/generate")
        problem = f"SGLang answers {response.status_code} to a request: {text[:500]}"
        if response.status_code in (400, 413, 422):
            raise ValueError(problem)
        raise Unreachable(problem)

    async def events(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream that began.

        Raises:
            Unreachable: It broke off.
        """
        try:
            async for line in response.aiter_lines():
                if not line.startswith(_DATA):
                    continue
                if line == _DATA + _DONE:
                    return
                yield json.loads(line[len(_DATA) :])
        except (httpx.HTTPError, ValueError) as error:
            raise Unreachable(f"{self.url}/generate broke off: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def _check_key(status: int, path: str) -> None:
    if status in (401, 403):
        raise EngineFailed(
            f"the SGLang server answers {status} to {path}: it wants a key, or another one",
            hint=f"set the environment variables {API_KEY} (generation) and {ADMIN_KEY} (control)",
        )


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
