"""Pipeline planning on one problem: a decision is a pivot, which holds an instruction cut and a device cut."""
