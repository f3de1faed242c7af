"""``kubectl tng``: explain groups and JobSets, resync them, publish messages again."""

VERSION = "0.2.0"
"""The version of the whole project: it is defined only here."""
