"""Rules for the code and the tests themselves."""
