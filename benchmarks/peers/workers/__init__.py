"""One small program for each library, with the same three verbs; see :mod:`benchmarks.peers.protocol`."""
