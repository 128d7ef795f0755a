"""Paged KV caches as Apache Arrow: self-describing, verifiable snapshots that any Arrow reader opens."""
