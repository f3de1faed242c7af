"""The tool for people: wake steps by hand, publish recorded messages, ask what would be done."""

VERSION = "0.2.0"
"""The version of the whole project: nothing else says one."""
