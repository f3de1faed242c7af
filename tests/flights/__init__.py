"""Flights: recorded runs of `tools.cloud`, repeated with the product's port and the simulation."""
