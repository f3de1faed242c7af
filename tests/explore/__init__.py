"""An explorer: a seed draws a world, breaks it, heals it and demands convergence."""
