"""``kubectl tng``: explain groups and JobSets, resync them, publish messages again."""
