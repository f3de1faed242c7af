"""Measurements of the size that one installation supports; long runs, with figures for
`docs/scale.md`."""
