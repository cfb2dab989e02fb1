"""Records of a remote store with their artifacts."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store


def pull(remote: RemoteStore, keys: Sequence[str], store: Store) -> list[StepRecord] | None:
    """Copy the records of steps that ran together, and their artifacts, into a store; None if one is missing."""
    records = remote.find(keys)
    if records is None or not all(remote.pull_artifact(record.artifact, store) for record in records):
        return None
    for record in records:
        store.write_record(record)
    return records
