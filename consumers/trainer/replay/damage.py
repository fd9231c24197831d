"""Which step a damaged rollout was trained in: for the message, once the journal is damaged."""

from infra.runs.folder import RunFolder
from infra.runs.frames import MAGIC, read_frame
from infra.runs.journal_reader import JournalReader, RecordCorrupt
from schemas.journal import Batch


class DamagedRollout(RecordCorrupt):
    """The same damage, with the step that it is about."""

    def __init__(self, folder: RunFolder, damage: RecordCorrupt, step: int | None) -> None:
        segment, offset = damage.position
        reason = damage.reason
        if step is not None:
            reason += f"; step {step} was trained on it, and nothing behind it can be replayed"
        super().__init__(folder.journal / segment, offset, reason, rollout_id=damage.rollout_id)
        self.step = step


def explained(folder: RunFolder, damage: RecordCorrupt) -> RecordCorrupt:
    """Find the step, if the damaged record still says whose it is."""
    if not damage.rollout_id:
        return damage
    return DamagedRollout(folder, damage, _step_of(folder, damage))


def _step_of(folder: RunFolder, damage: RecordCorrupt) -> int | None:
    """Reads on behind the damage: records that count for nothing else any more."""
    chain = [stretch.segment for stretch in JournalReader(folder.journal).history()]
    segment, offset = damage.position
    behind = chain[chain.index(segment) :] if segment in chain else []
    for number, name in enumerate(behind):
        data = (folder.journal / name).read_bytes()
        found = _batch_with(damage.rollout_id, data, offset if number == 0 else 0)
        if found is not None:
            return found
    return None


def _batch_with(rollout_id: str, data: bytes, offset: int) -> int | None:
    named = f'"{rollout_id}"'.encode()
    while (offset := data.find(MAGIC, offset)) >= 0:
        frame = read_frame(data, offset)
        if isinstance(frame, str):
            offset += 1
            continue
        if frame.header.startswith(b'{"record":"batch"') and named in frame.header:
            return Batch.model_validate_json(frame.header).step
        offset = frame.end
    return None
