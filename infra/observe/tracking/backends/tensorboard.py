"""TensorBoard: event files in `tensorboard/` of the run folder.

`tensorboard --logdir runs` shows all runs; a resumed one adds a file to its folder.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from infra.observe.tracking.tracker import TrackedRun
from infra.roles.registry import register
from infra.runs.metrics import Kind
from schemas.config import RunConfig


@register("tracker", "tensorboard")
class TensorBoard:
    """Scalars, by step."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(run.folder / "tensorboard"))

    @staticmethod
    def check(config: RunConfig) -> str:
        """Write an event to a folder that is thrown away."""
        with tempfile.TemporaryDirectory(prefix="warren-tensorboard-") as folder:
            run = TrackedRun(name=config.run.name, run_id="", folder=Path(folder), config={})
            tracker = TensorBoard(run)
            tracker.log("step", {"step": 0.0, "train/loss": 0.0})
            tracker.close()
        return "event files in tensorboard/ of the run folder"

    def log(self, kind: Kind, values: Mapping[str, float]) -> None:
        """One event."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if "/" in name
        ]
        summary = Summary(value=scalars)
        event = Event(wall_time=time.time(), step=int(values["step"]), summary=summary)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
