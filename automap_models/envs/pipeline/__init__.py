"""Pipeline planning from the front to the back: instruction cuts and device cuts by turns."""
