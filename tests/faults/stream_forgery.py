"""Forge streams: the changes of forgery.py, sent as messages one after another, and small_xxh3 made right again."""

from __future__ import annotations

import json

import pyarrow as pa

from hurray_arrow.arrow.ipc_layout import END_MARKER
from hurray_arrow.arrow.small_columns import small_xxh3
from tests.faults.forgery import INDEX, INDEX_HASH, Forgery, schema_xxh3, xxh3, zst_frame, zst_pairs


class StreamForgery(Forgery):
    """An intact stream taken apart; a stream has no footer, so ``edit_blocks`` changes nothing.

    A row whose bytes Arrow refuses keeps the hash that the intact row had.
    """

    def __init__(self, intact: bytes) -> None:
        reader = pa.ipc.open_stream(pa.BufferReader(intact))
        found = []
        while True:
            try:
                found.append(reader.read_next_batch_with_custom_metadata())
            except StopIteration:
                break
        *rows, (end, pairs) = found
        self._take(reader.schema, [batch for batch, _ in rows], end, pairs)

    def content(self) -> bytes:
        """Return the forged stream."""
        messages = [bytearray(self._message(batch, None, self.compression)) for batch in self.batches]
        self.index["schema_xxh3"] = schema_xxh3(self.schema)
        for number, (stated, row) in enumerate(zip(self.index["rows"], messages, strict=False)):
            self.patches.get(number, lambda _row: None)(row)
            stated["small_xxh3"] = self._small_xxh3(bytes(row)) or stated["small_xxh3"]
        self.edit_rows(self.index["rows"])
        self.edit_index(self.index)
        text = self.edit_text(json.dumps(self.index, sort_keys=True, separators=(",", ":")))
        stored = text if isinstance(text, bytes) else text.encode()
        pairs = zst_pairs(zst_frame(stored)) if self.is_compressed_index else {INDEX: stored, INDEX_HASH: xxh3(stored)}
        end = bytearray(self._message(self.end, self.edit_pairs(pairs) or None, self.end_compression))
        self.edit_end(end)
        return b"".join([self.schema.serialize().to_pybytes(), *messages, end, END_MARKER])

    def _small_xxh3(self, row: bytes) -> str | None:
        try:
            message = pa.ipc.read_message(pa.BufferReader(row))
            batch = pa.ipc.read_record_batch(message, self.schema)
            batch.validate(full=True)
            return small_xxh3(batch)
        except (pa.ArrowException, OSError, ValueError, NotImplementedError):
            return None
