"""The tool for people: wake steps by hand, publish recorded messages, ask what would be done."""

VERSION = "0.1.0"
