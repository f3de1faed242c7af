"""The pages and tables that are rendered from the code: ``python -m tools.pages`` writes them all."""
