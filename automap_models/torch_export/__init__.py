"""PyTorch models → profiles, through torch.export on the meta device; importing it takes the torch extra."""

from automap_models.errors import BadInput

try:
    import torch  # noqa: F401
except ImportError as error:
    raise BadInput(f"reading PyTorch models needs torch ({error})", do="pip install 'automap-models[torch]'") from error
