"""How much one installation carries: long runs that write down figures for `docs/scale.md`."""
