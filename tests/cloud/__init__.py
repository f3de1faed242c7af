"""``make test-cloud``: questions to a real Compute Engine that nothing else here can answer.

`questions` is the table, `project` the calls and the cleanup, `answers` the file that is sent in. The
same suite runs against the simulated Compute Engine in `test_cloud`. See docs/test-cloud.md.
"""
