"""Tests with a real vLLM run in an environment of their own (`make test-vllm`)."""

from importlib.util import find_spec

# Not a skip: the core suite does not know these tests, and `.ci/run` runs them in the other environment.
collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
