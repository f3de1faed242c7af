"""What several tests share: the product in a simulation, objects, stubs. No module here is a test."""
