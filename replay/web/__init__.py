"""``kubectl tng web``: a live page on loopback. It only reads, and only while somebody looks."""
