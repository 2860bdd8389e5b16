"""automap: from a profiled training step and a cluster to the best way of training the one on the other.

Importing this package imports numpy at most; torch, onnxruntime, hydra and lightning are imported only
inside the modules that need them.
"""

__version__ = "0.1.0"
