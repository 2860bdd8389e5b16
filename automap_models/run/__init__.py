"""Plans that run: stages on processes of torch, or on sub-meshes of JAX, in the order of a schedule.

torch and jax are imported only by the modules of their names.
"""
