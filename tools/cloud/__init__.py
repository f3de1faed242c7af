"""``make test-cloud``: questions that only a real Compute Engine can answer.

`questions` has the table of questions, `project` the calls and the cleanup, `answers` the file with the
answers. `test_cloud` runs the same suite against the simulated Compute Engine. See docs/test-cloud.md.
"""
