"""Everything that makes plans, behind one interface."""
