"""``make mutants``: change the product line by line, and see whether a test fails."""
