"""The version of the whole project. It is defined only here."""

VERSION = "0.2.0"
