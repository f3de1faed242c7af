"""A rehearsal: the product's own steps on the stand-ins, in one process, on a virtual clock.

Not a stand-in, and the only package of ``local/`` besides tests that imports the product.
"""
