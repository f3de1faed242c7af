"""Programs for contributors: measurements, mutants, tutorials."""
