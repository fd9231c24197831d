"""`run.py monitor [RUN] [--once] [--json]`: a live view, or one picture. Changes nothing."""

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TextIO

from infra.amqp.listener import Listener
from infra.amqp.url import parse_url
from infra.observe.columns import trimmed
from infra.observe.monitor.picture import Picture
from infra.observe.monitor.poller import Poller
from infra.observe.monitor.scene import SILENT_S
from infra.observe.monitor.world import World
from infra.roles.broker_url import find_url
from infra.roles.command.target import Target, add_run, target
from infra.roles.errors import BrokerUnreachable, ConfigError, ExitCode
from infra.roles.heartbeats import PERIOD_S

if TYPE_CHECKING:
    from rich.console import Console

_TICK_S = 0.2
_DRAWN_S = PERIOD_S
"""Nobody tells more often."""
_LOOKED_S = 0.5
_LINE_S = 10.0
_CONNECT_S = 6.0
_ENOUGH_S = 4.2
"""Two heartbeats of everybody: rates need two."""
_ROLES = {"trainer", "producer", "rollout", "reward"}
_PLAIN_WIDTH = 120
_POLITE = 10
"""What is watched goes first, where it shares the watcher's machine."""


def add_arguments(parser: ArgumentParser) -> None:
    """Of the command line."""
    add_run(parser)
    parser.add_argument(
        "--once", action="store_true", help="listen for some seconds, print one picture, leave"
    )
    parser.add_argument(
        "--json", action="store_true", help="the same for machines: one JSON object"
    )


def run(options: Namespace) -> int:
    """Watch; 3 when `--once` finds no broker.

    Raises:
        ConfigError: There is no such run, or its broker's URL is malformed.
        BrokerUnreachable: With `--once`, nobody answers.
    """
    found = target(options)
    try:
        parse_url(_url(found))
    except BrokerUnreachable:
        if options.once and not options.json:
            raise
    live = not (options.once or options.json)
    if live:
        os.nice(_POLITE)
    watcher = Watcher(found)
    watcher.start()
    try:
        return _until_told(watcher) if live else _once(watcher, as_json=options.json)
    finally:
        watcher.stop()


def _until_told(watcher: "Watcher") -> int:
    """Until Ctrl-C or SIGTERM, which is how this ends well."""
    from rich.console import Console

    signal.signal(signal.SIGTERM, _leave)
    console = Console(highlight=False, markup=False)
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            return _live(watcher, console)
        return _lines(watcher, sys.stdout)
    except KeyboardInterrupt:
        return ExitCode.DONE


class Watcher:
    """Everything that hears and asks, put together.

    Args:
        found: The run to look at.
    """

    def __init__(self, found: Target) -> None:
        url = partial(_url, found)
        self.name = found.config.run.name
        self.listener = Listener(url, run=self.name)
        self._poller = Poller(url, run=self.name)
        self.world = World(found.config)

    def start(self) -> None:
        """Begin to listen and to ask."""
        self.listener.start()
        self._poller.start()

    def stop(self) -> None:
        """Leave the broker."""
        self._poller.stop()
        self.listener.stop()

    def look(self) -> Picture:
        """Take in what was heard; the picture of now."""
        now = time.monotonic()
        for delivery in self.listener.take():
            self.world.hear(delivery, now)
        scene = self.world.scene(
            now,
            hearing=self.listener.hearing,
            told=self._poller.told,
            depths=self.listener.depths,
        )
        return Picture.of(scene)


def _url(found: Target) -> str:
    return find_url(found.config, found.folder)


def _leave(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _once(watcher: Watcher, *, as_json: bool) -> int:
    """Until two heartbeats of everybody can have been heard; longer while somebody is missing."""
    began = time.monotonic()
    while True:
        time.sleep(_TICK_S)
        picture = watcher.look()
        scene = picture.scene
        if not scene.broker.connected:
            if scene.broker.missing or time.monotonic() - began >= _CONNECT_S:
                break
            continue
        everybody = watcher.world.roles >= _ROLES or scene.over or bool(scene.broker.alarms)
        if scene.listened_s >= (_ENOUGH_S if everybody else SILENT_S + _TICK_S):
            break
    if as_json:
        sys.stdout.write(json.dumps(picture.to_json()) + "\n")
    elif scene.broker.connected:
        _print_plainly(picture)
    if scene.broker.connected:
        return ExitCode.DONE
    if as_json:
        return ExitCode.USAGE if scene.broker.missing else ExitCode.BROKER_UNREACHABLE
    if scene.broker.missing:
        raise ConfigError(picture.findings[0].what, hint=picture.findings[0].do)
    where = f"no broker answers at {scene.broker.address}: " if scene.broker.address else ""
    raise BrokerUnreachable(
        f"{where}{scene.broker.error}",
        hint="start it, or correct [broker] url or WARREN_BROKER_URL",
    )


def _print_plainly(picture: Picture) -> None:
    from rich.console import Console

    from infra.observe.monitor.screen import screen

    console = Console(highlight=False, markup=False, width=_width())
    with console.capture() as printed:
        console.print(screen(picture, width=console.width))
    sys.stdout.write(trimmed(printed.get()))


def _width() -> int | None:
    return None if sys.stdout.isatty() else _PLAIN_WIDTH


def _live(watcher: Watcher, console: "Console") -> int:
    """The whole terminal."""
    from rich.live import Live

    from infra.observe.monitor.screen import screen

    due, drawn = 0.0, console.size
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            size, now = console.size, time.monotonic()
            if now >= due or size != drawn:
                due, drawn = now + _DRAWN_S, size
                picture = screen(watcher.look(), width=size.width, height=size.height)
                live.update(picture, refresh=True)
            time.sleep(_TICK_S)


def _lines(watcher: Watcher, stream: TextIO, *, pause: Callable[[float], None] = time.sleep) -> int:
    """Plain lines: one every few seconds, and one for each fault that comes or goes."""
    from infra.observe.monitor.screen import summary_line

    said_at = -_LINE_S
    known: dict[tuple[str, str], str] = {}
    while True:
        pause(_LOOKED_S)
        picture, now = watcher.look(), time.monotonic()
        found = {(one.fault.value, one.who): one for one in picture.findings}
        lines = [
            f"{one.severity.value}: {one.what} -> {one.do}"
            for key, one in found.items()
            if key not in known
        ]
        lines += [f"over: {what}" for key, what in known.items() if key not in found]
        known = {key: known.get(key, one.what) for key, one in found.items()}
        if now - said_at >= _LINE_S:
            said_at = now
            lines.insert(0, summary_line(picture))
        for line in lines:
            stream.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        stream.flush()
