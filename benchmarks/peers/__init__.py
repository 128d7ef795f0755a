"""Every peer on the same work, in one table: ``python -m benchmarks.peers`` or ``make bench-peers``.

Nothing is imported here: the workers run in the peers' own environments, which have neither pyarrow nor this package.
"""
